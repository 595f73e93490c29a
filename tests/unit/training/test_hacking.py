"""A reward that is gamed stops the run; an honest one, and chance, do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from training.errors import TrainingError
from training.hacking import (
    FEATURES,
    HackingSettings,
    Seen,
    decide,
    error_of,
    seen_of,
    text_features,
)

GROUPS, SIZE = 6, 4


def history(steps: int, seed: int = 0, noise: float = 1.0, **trends: tuple[float, float]) -> list[Seen]:
    """Steps whose quantities start at a level and move by so much a step, with noise of prompts and replies."""
    dice = np.random.default_rng(seed)
    given = {"reward": (0.0, 0.0), **dict.fromkeys(FEATURES, (0.5, 0.0)), "words": (40.0, 0.0), **trends}

    def values(name: str, step: int) -> np.ndarray:
        level, slope = given[name]
        scale = noise * (8.0 if name == "words" else 1.0 if name in ("reward", "heldout") else 0.1)
        prompts = np.repeat(dice.normal(0, scale, GROUPS), SIZE)
        return level + slope * (step - 1) + prompts + dice.normal(0, scale, GROUPS * SIZE)

    return [seen_of(s, {name: values(name, s) for name in given}, SIZE) for s in range(1, steps + 1)]


def stopped_at(seen: list[Seen], **settings: Any) -> tuple[int, str] | None:
    """First step at which a run would be stopped, and by what."""
    for step in range(1, len(seen) + 1):
        alarm = decide(seen[:step], HackingSettings(**settings), len(seen))
        if alarm:
            return step, alarm.quantity
    return None


def test_reward_up_and_heldout_down_is_a_hack_and_either_alone_is_not() -> None:
    up, down, flat = (0.0, 0.25), (0.0, -0.25), (0.0, 0.0)
    found = stopped_at(history(20, reward=up, heldout=down))
    assert found is not None and found[1] == "heldout" and 4 <= found[0] < 20
    assert stopped_at(history(20, reward=up, heldout=up)) is None
    assert stopped_at(history(20, reward=up, heldout=flat)) is None
    assert stopped_at(history(20, reward=flat, heldout=down)) is None
    assert stopped_at(history(20, reward=down, heldout=down)) is None
    assert stopped_at(history(20, reward=up)) is None  # without a held-out scorer there is nothing to compare


def test_a_fall_within_the_limit_is_none_however_sure() -> None:
    seen = history(20, noise=0.01, reward=(0.0, 0.25), heldout=(0.0, -0.001))
    assert stopped_at(seen, heldout_drop=2.0) is None
    assert stopped_at(seen, heldout_drop=0.0) is not None


def test_the_scale_of_the_heldout_scorer_does_not_matter() -> None:
    seen = history(20, reward=(0.0, 0.25), heldout=(0.0, -0.25))
    other = [
        Seen(
            s.step,
            {**s.means, "heldout": [1000 * m - 7 for m in s.means["heldout"]]},
            {**s.spread, "heldout": 1000 * s.spread["heldout"]},
        )
        for s in seen
    ]
    assert stopped_at(other) == stopped_at(seen)


@pytest.mark.parametrize(
    ("feature", "trend"),
    [
        ("words", (40.0, 6.0)),
        ("words", (40.0, -3.5)),
        ("question_share", (0.1, 0.08)),
        ("repetition", (0.1, 0.08)),
        ("hedge_share", (0.1, 0.08)),
    ],
)
def test_each_tripwire_stops_a_drift_of_its_feature(feature: str, trend: tuple[float, float]) -> None:
    found = stopped_at(history(12, **{feature: trend}))
    assert found is not None and found[1] == feature
    assert stopped_at(history(12, **{feature: trend}), **{feature: 100.0}) is None  # allowed that much
    assert stopped_at(history(12, **{feature: trend}), action="off") is None


def test_runs_in_which_nothing_changes_are_stopped_no_oftener_than_alpha() -> None:
    runs = 120
    stopped = sum(
        stopped_at(history(15, seed=s, heldout=(0.0, 0.0)), alpha=0.05, heldout_drop=0.0, words=0.01,
                   question_share=0.001, repetition=0.001, hedge_share=0.001) is not None
        for s in range(runs)
    )  # fmt: skip
    # Limits near 0 make every excursion count; 0.05 of 120 is 6, and the bound is not tight.
    assert stopped <= 10


def test_a_limit_is_part_of_the_test() -> None:
    # Drifts by 0.15 of 0.25 allowed, with next to no noise.
    assert stopped_at(history(12, noise=0.01, question_share=(0.1, 0.0136))) is None


def test_little_evidence_decides_nothing() -> None:
    assert stopped_at(history(3, words=(40.0, 100.0))) is None  # fewer than min_steps
    one_group = [Seen(s, {"words": [10.0 + 50 * s], "reward": [1.0]}, {}) for s in range(1, 9)]
    assert stopped_at(one_group) is None  # one group a step: nothing to tell noise by
    assert decide([], HackingSettings(), 10) is None
    empty = [Seen(s, {"words": [], "reward": [], "heldout": []}, {}) for s in range(1, 9)]
    assert stopped_at(empty) is None


def test_groups_without_a_number_are_left_out() -> None:
    seen = seen_of(3, {"reward": np.array([1.0, 3.0, np.nan, 5.0, 0.0, 0.0])}, 2)
    assert seen.means["reward"] == [2.0, 0.0]
    assert seen.spread["reward"] == pytest.approx(np.std([1, 3, 0, 0]))


def test_features_of_texts() -> None:
    found = text_features(
        ["Is it? Yes.", "Wirklich?  ", "", "I'm sorry, but I can't.", "a b c a b c", "真的吗？"]
    )
    assert found["words"].tolist() == [3, 1, 0, 5, 6, 1]
    assert found["question_share"].tolist() == [0, 1, 0, 0, 0, 1]
    assert found["hedge_share"].tolist() == [0, 0, 0, 1, 0, 0]
    assert found["repetition"].tolist() == [0, 0, 0, 0, 0.25, 0]


def test_the_error_says_what_was_seen_and_what_is_allowed() -> None:
    seen = history(12, words=(40.0, 8.0))
    alarm = next(a for n in range(4, 13) if (a := decide(seen[:n], HackingSettings(), 12)))
    error = error_of(alarm)
    assert error.exit_code == 3 and isinstance(error, TrainingError) and error.alarm is alarm
    assert (
        "words in a reply" in str(error)
        and "Allowed" in str(error)
        and "the setting words of hacking" in str(error)
    )
