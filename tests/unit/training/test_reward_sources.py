"""What a reply is paid, source by source."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.unit.training.grpo_case import Scores
from training.errors import TrainingError
from training.reward_sources import Replies, RewardError, RewardSettings, Source, scored, sources_of
from training.reward_sources_rules import GUARDS, RULES, RuleSettings

HERE = "tests.unit.training.test_reward_sources"


def replies(*texts: str, finished: bool = True) -> Replies:
    n = len(texts)
    return Replies(
        [[{"role": "user", "content": f"Q{i}"}] for i in range(n)],
        list(texts),
        np.array([len(t) for t in texts]),
        np.full(n, finished),
        [f"u{i}" for i in range(n)],
        [None] * n,
    )


def rule(name: str, *texts: str, finished: bool = True, **settings: Any) -> list[float]:
    of = {**RULES, **GUARDS}[name]
    return [round(float(v), 6) for v in of(replies(*texts, finished=finished), RuleSettings(**settings))]


def test_length_is_best_at_the_target_and_alike_on_both_sides() -> None:
    found = rule("length", "one two three", "one", "a b c d e f g", "", target_words=3)
    assert found == [0.0, round(-math.log(2), 6), round(-math.log(2), 6), round(-math.log(4), 6)]


def test_a_finished_sentence_is_one_that_the_policy_ended() -> None:
    texts = ("Yes.", "Ja", "そうです。", "“Really?”", "", "   ", "No!  ")
    assert rule("finished", *texts) == [1, 0, 1, 1, 0, 0, 1]
    assert rule("finished", *texts, finished=False) == [0] * 7


def test_format_is_of_the_whole_reply() -> None:
    assert rule("format", "<a>\nx</a>", "<a>x</a> and more", "", pattern=r"<a>.*</a>") == [1, 0, 0]


def test_repetition_counts_beyond_what_is_allowed() -> None:
    # 9 words, 7 phrases, of which 3 are distinct: 4/7 repeated.
    text = "a b c a b c a b c"
    assert rule("repetition", text, max_repetition=0.0) == [round(4 / 7, 6)]
    assert rule("repetition", text, max_repetition=0.5) == [round((4 / 7 - 0.5) / 0.5, 6)]
    assert rule("repetition", text, "no repeats in this one", "", max_repetition=4 / 7)[1:] == [0, 0]


def test_empty_and_questions() -> None:
    assert rule("empty", "", "  ...  ", "a", "雨") == [1, 1, 0, 0]
    assert rule("questions", "A?", "A? B?", "A? B? C? D?", "A? B? C? D? E?", "真的吗？吗？") == [
        0,
        round(1 / 3, 6),
        1,
        1,
        round(1 / 3, 6),
    ]
    assert rule("questions", "What?!?? Eh.") == [round(1 / 3, 6)]  # a run of marks is one question
    assert rule("questions", "A?", max_questions=0) == [round(1 / 3, 6)]


def test_total_is_the_weighted_sum_and_each_source_is_kept_apart() -> None:
    settings = RewardSettings(
        sources={"reward_model": 2.0, "finished": 0.5}, guards={"empty": 3.0}, rules=RuleSettings()
    )
    sources = sources_of(settings, Scores(len))
    assert [(s.name, s.weight) for s in sources] == [
        ("finished", 0.5),
        ("reward_model", 2.0),
        ("guard_empty", -3.0),
    ]
    found = scored(sources, replies("Yes.", "No", ""), 1)
    assert found.values["reward_model"].tolist() == [4, 2, 0]
    assert found.total.tolist() == [8.5, 4.0, -3.0]
    assert found.faults == {}


def test_users_and_agents_reach_the_reward_model() -> None:
    scorer = Scores(len)
    given = replies("a", "b")
    scored(sources_of(RewardSettings(guards={}), scorer), given, 2)
    assert [row[2:] for row in scorer.asked] == [("u0", None), ("u1", None)]
    assert scorer.asked[0][0] == given.prompts[0]


def odd(replies: Replies) -> list[float]:
    """Raises where it sees a b."""
    if "b" in replies.texts:
        raise KeyError("b")
    return [1.0] * len(replies)


def test_a_fault_is_of_its_group_alone() -> None:
    sources = [
        Source("odd", 1.0, odd),
        Source("nan", 1.0, lambda r: [float("nan") if t == "c" else 2.0 for t in r.texts]),
    ]
    found = scored(sources, replies("a", "a", "b", "a", "a", "c", "a", "a"), 2)
    assert found.faults == {1: ("odd", "KeyError: 'b'"), 2: ("nan", "nan is not a finite number")}
    assert np.isnan(found.total).tolist() == [False, False, True, True, True, True, False, False]
    assert found.total[[0, 1, 6, 7]].tolist() == [3.0] * 4
    assert np.isnan(found.values["odd"]).tolist() == [False] * 2 + [True] * 2 + [False] * 4


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda r: [1.0], "1 values for 2 replies"),
        (lambda r: [None, 1.0], "nan is not"),
        (lambda r: [float("inf"), 1.0], "inf is not"),
        (lambda r: ["x", 1.0], "could not convert"),
        (lambda r: None, "TypeError"),
    ],
)
def test_what_is_no_reward_is_a_fault(value: Any, said: str) -> None:
    found = scored([Source("bad", 1.0, value)], replies("a", "b"), 2)
    assert said in found.faults[0][1]
    assert np.isnan(found.total).all()


def test_ones_own_rule_is_found() -> None:
    settings = RewardSettings(sources={f"{HERE}:odd": 1.0}, guards={f"{HERE}:odd": 2.0})
    sources = sources_of(settings, None)
    assert [s.name for s in sources] == [f"{HERE}.odd", f"guard_{HERE}.odd"]
    assert scored(sources, replies("a"), 1).total.tolist() == [-1.0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sources": {"lenght": 1.0}}, "finished, format, length, reward_model"),
        ({"guards": {"finished": 1.0}}, "empty, questions, repetition"),
        ({"sources": {"reward_model": 1.0}}, "there is none"),
        ({"sources": {"no.such.module:f": 1.0}}, "no.such.module"),
        ({"sources": {f"{HERE}:nothing": 1.0}}, "nothing"),
        ({"sources": {f"{HERE}:HERE": 1.0}}, "is not a function"),
        ({"sources": {"format": 1.0}}, "no pattern"),
    ],
)
def test_rewards_that_do_not_exist_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        sources_of(RewardSettings(**{"guards": {}, "sources": {}, **settings}), None)
    assert issubclass(RewardError, TrainingError)


def test_a_pattern_that_is_none_is_refused_with_the_settings() -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        RuleSettings(pattern="(")
