"""A candidate falls with the reward model that it rests on, and with no other."""

from __future__ import annotations

import pytest

from evaluation.compare import Comparison
from evaluation.errors import GateError
from evaluation.gates import configure, judge_all
from evaluation.gates.reward_models import EXTRA, Used
from evaluation.verdicts import Verdict

NOTHING = Comparison(metrics={}, wins=0, ties=0, losses=0, prompts=0, seed=1)


def said(gate: str, outcome: str, why: str = "Because.") -> Verdict:
    return Verdict(gate, outcome, 0.4, 0.3, 0.5, 12, 0.5, "formula", why)


def judged(*used: Used, **settings) -> Verdict:
    (found,) = judge_all(NOTHING, {"reward_models": settings}, {EXTRA: used})
    assert found.gate == "reward_models" and found.why and found.formula
    return found


def test_one_failed_gate_of_the_judge_fails_the_candidate_by_name():
    found = judged(
        Used(
            "evaluation scorer",
            "judged",
            [
                said("heldout_accuracy", "pass"),
                said("calibration", "fail", "Stated and observed shares differ by 0.200 ☃."),
                said("worst_decile_users", "insufficient_data"),
            ],
        )
    )
    assert (found.verdict, found.value, found.low, found.high, found.n, found.threshold) == (
        "fail", 1.0, 1.0, 1.0, 3, 0.0,
    )  # fmt: skip
    assert found.why == (
        "The evaluation scorer, which judged it, fails calibration: Stated and observed shares differ by 0.200 ☃. "
        "Of the evaluation scorer, which judged it, could not decide: worst_decile_users."
    )


def test_failures_of_several_reward_models_are_counted_and_each_is_named():
    found = judged(
        Used("training scorer", "trained", [said("data_freshness", "fail"), said("calibration", "fail")]),
        Used("evaluation scorer", "judged", [said("heldout_accuracy", "fail")]),
    )
    assert (found.verdict, found.value, found.n) == ("fail", 3.0, 3)
    for words in (
        "The training scorer, which trained it, fails data_freshness: Because.",
        "The training scorer, which trained it, fails calibration: Because.",
        "The evaluation scorer, which judged it, fails heldout_accuracy: Because.",
    ):
        assert words in found.why


def test_what_passed_passes():
    found = judged(
        Used("training scorer", "trained", [said("calibration", "pass")]),
        Used("evaluation scorer", "judged", [said("calibration", "pass"), said("my:gate", "pass")]),
    )
    assert (found.verdict, found.value, found.n) == ("pass", 0.0, 3)
    assert found.why == (
        "The training scorer, which trained it, passed every gate of its own. "
        "The evaluation scorer, which judged it, passed every gate of its own."
    )


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        (
            [said("calibration", "insufficient_data"), said("heldout_accuracy", "insufficient_data")],
            "could not decide: calibration, heldout_accuracy.",
        ),
        ([], "no gate was judged."),
    ],
)
def test_what_could_not_decide_passes_is_told_and_stops_where_that_is_asked(verdicts, told):
    used = Used("evaluation scorer", "judged", verdicts)
    found = judged(used)
    assert (found.verdict, found.value) == ("pass", 0.0) and told in found.why
    strict = judged(used, must_decide=True)
    assert strict.verdict == "insufficient_data" and strict.why == found.why
    failed = judged(Used("evaluation scorer", "judged", [*verdicts, said("x", "fail")]), must_decide=True)
    assert failed.verdict == "fail"


def test_a_candidate_that_rests_on_no_reward_model_is_not_proven():
    assert judged().verdict == "insufficient_data"
    (found,) = judge_all(NOTHING, {"reward_models": {}})  # nobody said on what it rests
    assert (found.verdict, found.value, found.n) == ("insufficient_data", 0.0, 0)


def test_settings_it_does_not_have_are_refused():
    with pytest.raises(GateError, match=r"(?s)must_deside.*must_decide"):
        configure({"reward_models": {"must_deside": True}})
