"""Drift is found where there is some, and where there is none only as often as promised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from reward_models import drift
from reward_models.drift import Config, Seen
from reward_models.heldout import Heldout
from reward_models.scorer import RewardModelError
from reward_models.wild_bootstrap import wild_p
from tests.unit.reward_models.made import row, table

FAST = Config(resamples=499)


def world(
    seed: int, *, before: int = 40, after: int = 40, both: int = 20, moved: float = 0.0, worse: float = 0.0
):
    """(votes, recent): people differ in loss, inputs and agent, `both` of them vote in both windows, 8 times each."""
    rng = np.random.default_rng(seed)
    people = before + after - both
    who = np.concatenate([np.repeat(np.arange(before), 8), np.repeat(np.arange(before - both, people), 8)])
    recent = np.arange(len(who)) >= before * 8
    inputs = rng.normal(size=(len(who), 10)) + 0.7 * rng.normal(size=(people, 10))[who]
    inputs[recent, 0] += moved
    loss = 0.5 * rng.exponential(size=len(who)) + 0.3 * rng.exponential(size=people)[who] + worse * recent
    agents = np.array(["coder", "planner", "Prüfer"], dtype=object)[rng.integers(0, 3, people)][who]
    return Seen(loss, who, inputs, tuple(f"f{i}" for i in range(10)), agents), recent


def verdicts(runs: int, **how) -> dict[str, float]:
    found = []
    for seed in range(runs):
        votes, recent = world(seed, **how)
        found.append(drift.compare(votes, recent, age_days=3, config=FAST, seed=seed).verdict)
    return {name: found.count(name) / runs for name in ("none", "inputs", "worse")}


@pytest.mark.parametrize("how", [{"both": 40}, {"both": 5, "after": 20}])
def test_false_alarms_are_as_rare_as_promised(how):
    alarms = 1 - verdicts(150, **how)["none"]
    assert alarms <= 0.087  # level 5 % and two standard errors of 150 runs


def test_a_test_that_took_votes_for_independent_would_raise_too_many():
    """The simulated people resemble themselves enough for clusters to matter."""
    alarms = 0
    for seed in range(40):
        votes, recent = world(seed, both=0)
        alone = Seen(votes.loss, np.arange(len(votes.loss)), votes.inputs, votes.names, votes.agents)
        alarms += drift.compare(alone, recent, age_days=3, config=FAST, seed=seed).verdict != "none"
    assert alarms > 6


def test_worse_predictions_and_moved_inputs_are_found():
    assert verdicts(40, worse=0.25)["worse"] >= 0.8
    assert verdicts(40, moved=0.7, both=40)["inputs"] >= 0.8
    assert verdicts(40, worse=-0.25)["worse"] <= 0.05  # predicting better is no fault


def test_a_rise_too_small_to_matter_is_none():
    votes, recent = world(1, both=40, worse=0.3)
    tolerant = Config(resamples=499, min_worse_nats=1.0)
    assert drift.compare(votes, recent, age_days=3, config=FAST, seed=1).verdict == "worse"
    assert drift.compare(votes, recent, age_days=3, config=tolerant, seed=1).verdict != "worse"


def test_a_new_agent_is_found_and_named():
    votes, recent = world(2)
    agents = np.where(recent, "newcomer", votes.agents).astype(object)
    found = drift.compare(
        Seen(votes.loss, votes.clusters, votes.inputs, votes.names, agents), recent, age_days=3, seed=1
    )
    (newcomer,) = [m for m in found.inputs if m.name == "agent newcomer"]
    assert found.verdict == "inputs" and newcomer.drifted and found.psi > 1
    assert (newcomer.before, newcomer.now, newcomer.smd) == (0.0, 1.0, np.inf)


def test_stability_index_by_hand():
    before, now = np.array(["a"] * 3 + ["b"]), np.array(["a"] * 1 + ["b"] * 3)
    # Half a vote each: p = 3.5 / 5, 1.5 / 5 and q = 1.5 / 5, 3.5 / 5.
    assert drift.stability_index(before, now) == pytest.approx(2 * 0.4 * np.log(7 / 3))
    assert drift.stability_index(before, before) == 0


def test_benjamini_hochberg_by_hand():
    p = np.array([0.04, 0.01, 0.03, 0.5])  # limits 0.0125, 0.025, 0.0375, 0.05: only the first holds
    assert drift.benjamini_hochberg(p, 0.05).tolist() == [False, True, False, False]
    assert not len(drift.benjamini_hochberg(np.zeros(0), 0.05))


def test_the_statistic_is_welchs_where_everybody_votes_once():
    """Compared through the p-value of a plain permutation of signs, which it then agrees with asymptotically."""
    from scipy.stats import ttest_ind

    rng = np.random.default_rng(3)
    values, recent = rng.normal(size=300), np.arange(300) >= 120
    values[recent] += 0.25
    two, one = wild_p(values[:, None], recent, np.arange(300), seed=1, resamples=9999)
    assert two[0] == pytest.approx(
        ttest_ind(values[recent], values[~recent], equal_var=False).pvalue, abs=0.006
    )
    assert one[0] == pytest.approx(two[0] / 2, abs=0.006)


def test_constants_do_not_drift_and_nan_is_refused():
    votes, recent = world(4)
    same = Seen(
        np.ones_like(votes.loss), votes.clusters, np.ones_like(votes.inputs), votes.names, votes.agents
    )
    found = drift.compare(same, recent, age_days=3, config=FAST, seed=1)
    assert found.verdict == "none" and found.worse_p == 1
    votes.loss[3] = np.nan
    with pytest.raises(RewardModelError, match="finite"):
        drift.compare(votes, recent, age_days=3, config=FAST, seed=1)


@pytest.mark.parametrize("kept", ["none recent", "one person", "nothing"])
def test_too_little_is_not_tested_and_says_so(kept):
    votes, recent = world(5)
    rows = {
        "none recent": np.flatnonzero(~recent),
        "one person": np.flatnonzero(~recent | (votes.clusters == 59)),
        "nothing": np.zeros(0, dtype=int),
    }[kept]
    found = drift.compare(votes.take(rows), recent[rows], age_days=7, config=FAST, seed=1)
    assert found.verdict == "none" and not found.tested and found.why.startswith("Not tested")
    assert found.age_days == 7 and found.recent == ((8, 1) if kept == "one person" else (0, 0))


def test_order_of_rows_does_not_matter():
    votes, recent = world(6, moved=0.4)
    order = np.random.default_rng(1).permutation(len(recent))
    a = drift.compare(votes, recent, age_days=3, config=FAST, seed=2)
    b = drift.compare(votes.take(order), recent[order], age_days=3, config=FAST, seed=2)
    assert a.worse_p == b.worse_p and [m.p for m in a.inputs] == [m.p for m in b.inputs]


def test_age_is_of_the_newest_row_that_has_a_time():
    newest = datetime(2026, 3, 1, tzinfo=UTC)
    rows = table([row(1), row(2, event_time=newest), row(3, event_time=None)])
    now = datetime(2026, 3, 11, 14, tzinfo=timezone(timedelta(hours=2)))
    assert drift.age_days(rows, now) == 10.5
    assert drift.age_days(rows, newest - timedelta(hours=1)) == 0
    assert np.isnan(drift.age_days(rows.slice(2), now)) and np.isnan(drift.age_days(rows.slice(0, 0), now))
    with pytest.raises(RewardModelError, match="zone"):
        drift.age_days(rows, datetime(2026, 3, 11))


def test_rows_become_named_inputs():
    rows = table([row(1, chosen="Süß! Gut!", rejected="a b", agent=None), row(2, margin=0.0)])
    seen = drift.seen(
        rows, Heldout(np.full((2, 3), 1 / 3), np.array([0, 1]), np.array(["u", "v"], dtype=object))
    )
    named = dict(zip(seen.names, seen.inputs[0], strict=True))
    assert named["log_words"] == pytest.approx(np.log(3)) and named["tie"] == 0
    assert named["exclamations"] == pytest.approx(np.log(3) / 2)
    assert seen.inputs[1][-1] == 1 and seen.agents.tolist() == [drift.NOBODY, "assistant"]
    np.testing.assert_allclose(seen.loss, np.log(3))
