"""On which reward models a candidate rests, and what is said of one that is looked at again."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from evaluation.reward_case import Pairs, RewardCase
from evaluation.reward_case import judge as judge_pairs
from evaluation.verdicts import Verdict
from palate.judge import used_scorers
from palate.reward_case import JudgedReward
from palate.reward_check import fitness
from reward_models.drift import Drift
from reward_models.heldout import Heldout

SMALL = "Not tested: the time since has 3 votes of 2 people; 50 of 20 are needed."


def judged(*verdicts: Verdict) -> JudgedReward:
    return JudgedReward(Path("reward"), "bradley_terry", None, verdicts, {})


def said(gate: str, outcome: str, value: float = 0.0, threshold: float = 1.0) -> Verdict:
    return Verdict(gate, outcome, value, value, value, 30, threshold, "formula", "Because.")


def case(drift: str, *, tested: bool) -> RewardCase:
    """A case whose drift was found so; everything else in it is that of four votes."""
    p = 0.001 if tested else math.nan
    found = Drift(drift, "Moved." if tested else SMALL, 3.0, 0.4, p, (), math.nan, (60, 20), (60, 20))
    predicted = Heldout(np.full((4, 3), 1 / 3), np.array([0, 1, 2, 0]), np.array(list("abcd"), dtype=object))
    return judge_pairs(Pairs(predicted, np.array([1.0, -1.0, 0.5, 0.2]), found, 0.25), seed=1)


def test_a_policy_of_dpo_rests_on_the_scorer_that_judges_only():
    both = {
        "training": judged(said("calibration", "fail")),
        "evaluation": judged(said("calibration", "pass")),
    }
    assert [(one.who, one.how) for one in used_scorers(both, "dpo")] == [("evaluation scorer", "judged")]
    # Whoever learns from scores, and whoever is not known not to, falls with the scorer for training.
    found = used_scorers(both, "grpo")
    assert [(one.who, one.how) for one in found] == [
        ("training scorer", "trained"), ("evaluation scorer", "judged"),
    ]  # fmt: skip
    assert [one.verdicts[0].verdict for one in found] == ["fail", "pass"]
    assert used_scorers({"training": judged()}, "dpo") == ()


FRESH = said("data_freshness", "pass", value=3.0, threshold=90.0)


@pytest.mark.parametrize(
    ("verdicts", "found", "expected"),
    [
        (
            [FRESH, said("calibration", "pass")],
            ("none", True),
            "v7 is still fit to be used: every gate passed.",
        ),
        (
            [FRESH],
            ("none", False),
            "v7 is still fit to be used: every gate passed. Drift was not tested: the time since has 3 votes of "
            "2 people; 50 of 20 are needed.",
        ),
        # Where drift is not asked for, nothing is said of it.
        ([said("calibration", "pass")], ("none", False), "v7 is still fit to be used: every gate passed."),
        (
            [said("data_freshness", "fail", 120.0, 90.0)],
            ("none", True),
            "v7 is not fit to be used: it is too old.",
        ),
        (
            [said("data_freshness", "fail", 3.0, 90.0)],
            ("worse", True),
            "v7 is not fit to be used: it has drifted.",
        ),
        (
            [
                said("data_freshness", "fail", 120.0, 90.0),
                said("calibration", "fail"),
                said("my:own", "fail"),
            ],
            ("worse", True),
            "v7 is not fit to be used: it is too old, has drifted, is miscalibrated and fails the gate my:own.",
        ),
        (
            [
                FRESH,
                said("calibration", "insufficient_data"),
                said("worst_decile_users", "insufficient_data"),
            ],
            ("none", True),
            "v7 could not be judged fully: nothing speaks against it, but calibration and worst_decile_users could "
            "not decide.",
        ),
    ],
)
def test_one_sentence_says_whether_it_is_fit(verdicts, found, expected):
    drift, tested = found
    assert fitness("v7", verdicts, case(drift, tested=tested)) == expected


def test_every_reward_gate_that_ships_has_words_for_its_failure():
    from evaluation import reward_gates

    for gate in reward_gates.names():
        sentence = fitness("v1", [said(gate, "fail", 120.0, 90.0)], case("worse", tested=True))
        assert "fails the gate" not in sentence and sentence.startswith("v1 is not fit to be used: it ")


def test_without_a_heldout_pair_nothing_is_claimed():
    assert fitness("v2", [], None) == (
        "v2 could not be judged: there is no explicit held-out pair, or no gate is set."
    )
