"""Intervals: what they cover, simulated; and what they do at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.errors import EvaluationError
from evaluation.estimates import bootstrap_mean, bootstrap_ratio, wilson


def simulated_outcomes(rng, *, prompts, replies, p, ties, spread):
    """Win (1), tie (.5), loss (0) of `replies` per prompt; prompts differ by a beta distribution."""
    rate = rng.beta(p / spread, (1 - p) / spread, prompts) if spread else np.full(prompts, p)
    won = (rng.random((prompts, replies)) < rate[:, None]).astype(float)
    won[rng.random((prompts, replies)) < ties] = 0.5
    return won.ravel(), np.repeat(np.arange(prompts), replies)


@pytest.mark.parametrize(
    ("prompts", "replies", "p", "ties", "spread", "comparisons"),
    [
        (20, 1, 0.7, 0.1, 0.0, 1000),
        (20, 3, 0.6, 0.1, 0.25, 1000),
        (30, 2, 0.8, 0.0, 0.25, 1000),
        (50, 2, 0.5, 0.1, 0.4, 1000),
        (150, 2, 0.55, 0.2, 0.25, 1000),
    ],
)
def test_the_interval_holds_the_true_win_rate_in_93_to_97_percent_of_comparisons(
    prompts, replies, p, ties, spread, comparisons
):
    rng = np.random.default_rng(5)
    truth = ties / 2 + (1 - ties) * p
    covered = 0
    for seed in range(comparisons):
        won, prompt = simulated_outcomes(rng, prompts=prompts, replies=replies, p=p, ties=ties, spread=spread)
        found = bootstrap_mean(won, prompt, seed=seed, resamples=1000, bounds=(0, 1))
        covered += found.low <= truth <= found.high
    assert 0.93 <= covered / comparisons <= 0.97


def test_twenty_coin_flips_are_covered_as_well_as_their_lattice_allows():
    """Yes or no twenty times: sets of covered counts have 95.9 % (6 to 14 wins) or 98.8 % (5 to 15)."""
    rng = np.random.default_rng(5)
    covered = 0
    for seed in range(1000):
        won, _ = simulated_outcomes(rng, prompts=20, replies=1, p=0.5, ties=0, spread=0)
        found = bootstrap_mean(won, seed=seed, bounds=(0, 1))
        covered += found.low <= 0.5 <= found.high
    assert 0.945 <= covered / 1000 <= 0.99


def test_ignoring_the_clusters_would_be_overconfident():
    """The same comparisons, replies taken as independent: the interval must not be what we use."""
    rng = np.random.default_rng(6)
    by_cluster = by_row = 0
    for seed in range(300):
        won, prompt = simulated_outcomes(rng, prompts=30, replies=6, p=0.5, ties=0, spread=1.0)
        with_clusters = bootstrap_mean(won, prompt, seed=seed, resamples=500)
        without = bootstrap_mean(won, seed=seed, resamples=500)
        by_cluster += with_clusters.low <= 0.5 <= with_clusters.high
        by_row += without.low <= 0.5 <= without.high
    assert by_row / 300 < 0.85 < 0.92 < by_cluster / 300


def test_a_candidate_like_the_champion_is_declared_better_in_about_one_of_forty():
    rng = np.random.default_rng(7)
    better = 0
    for seed in range(1000):
        won, prompt = simulated_outcomes(rng, prompts=40, replies=1, p=0.5, ties=0.1, spread=0)
        better += bootstrap_mean(won, prompt, seed=seed, resamples=1000, bounds=(0, 1)).low > 0.5
    assert better / 1000 <= 0.04


def test_the_interval_of_skewed_differences_and_of_a_ratio():
    rng = np.random.default_rng(8)
    covered_mean = covered_ratio = 0
    for seed in range(500):
        difference = rng.normal(0.3, 1.0, 25)
        found = bootstrap_mean(difference, seed=seed, resamples=1000)
        covered_mean += found.low <= 0.3 <= found.high
        champion = rng.gamma(5, 10, 60)
        candidate = champion * rng.gamma(20, 1 / 20, 60) * 1.2
        ratio = bootstrap_ratio(candidate, champion, seed=seed, resamples=1000)
        covered_ratio += ratio.low <= 1.2 <= ratio.high
    assert 0.925 <= covered_mean / 500 <= 0.975
    assert 0.92 <= covered_ratio / 500 <= 0.975


def test_the_interval_of_symmetric_data_is_students():
    """20 values 1..20: mean 10.5, s = 5.916, t(.975; 19) = 2.093, so 10.5 +- 2.77."""
    found = bootstrap_mean(np.arange(1, 21), seed=1, resamples=20_000)
    assert found.value == 10.5
    assert found.low == pytest.approx(10.5 - 2.77, abs=0.1)
    assert found.high == pytest.approx(10.5 + 2.77, abs=0.1)


def test_wilson_on_known_numbers():
    """8 of 10: 0.490 to 0.943, as in any textbook; 0 and all are not certain."""
    found = wilson(8, 10)
    assert (found.value, found.n) == (0.8, 10)
    assert (round(found.low, 3), round(found.high, 3)) == (0.490, 0.943)
    assert wilson(0, 20).low == 0 and wilson(0, 20).high == pytest.approx(0.161, abs=0.001)
    assert wilson(20, 20).high == 1 and wilson(20, 20).low == pytest.approx(0.839, abs=0.001)
    assert math.isnan(wilson(0, 0).value) and (wilson(0, 0).low, wilson(0, 0).high) == (0, 1)
    with pytest.raises(EvaluationError, match="successes"):
        wilson(3, 2)


def test_twenty_wins_of_twenty_do_not_prove_one_hundred_percent():
    found = bootstrap_mean([1.0] * 20, seed=1, bounds=(0, 1))
    assert found.value == 1 and found.high == 1 and found.low == pytest.approx(0.839, abs=0.001)


def test_too_little_data_says_that_nothing_is_known():
    none = bootstrap_mean([], seed=1, bounds=(0, 1))
    assert math.isnan(none.value) and (none.low, none.high, none.n) == (0, 1, 0)
    one = bootstrap_mean([0.4, 0.6], ["a", "a"], seed=1)
    assert (one.value, one.low, one.high, one.n) == (0.5, -math.inf, math.inf, 1)
    assert one.to_dict() == {"value": 0.5, "low": None, "high": None, "n": 1, "confidence": 0.95}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_none_is_refused(bad):
    with pytest.raises(EvaluationError, match="1 of 2 values"):
        bootstrap_mean([1.0, bad], seed=1)
    with pytest.raises(EvaluationError, match="one length"):
        bootstrap_ratio([1.0], [1.0, 2.0], seed=1)
    with pytest.raises(EvaluationError, match="cluster"):
        bootstrap_mean([1.0, 2.0], ["a"], seed=1)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 0.5, 1.0])), min_size=2),
    seed=st.integers(0, 9),
    order=st.randoms(use_true_random=False),
)
def test_same_rows_in_any_order_give_the_same_interval_around_the_value(rows, seed, order):
    shuffled = rows[:]
    order.shuffle(shuffled)
    one, other = (
        bootstrap_mean([v for _, v in r], [c for c, _ in r], seed=seed, resamples=200, bounds=(0, 1))
        for r in (rows, shuffled)
    )
    assert one == other
    assert 0 <= one.low <= one.high <= 1
    assert one.n == len({c for c, _ in rows})


def test_intervals_of_rare_rewards_hold_the_truth_when_corrected_for_skewness() -> None:
    # 1 % rewards with weights from 0.1 to 10: plain quantiles miss on the low side far more often than on the high.
    missed = {True: 0, False: 0}
    for seed in range(150):
        dice = np.random.default_rng(seed)
        weights = np.exp(dice.normal(size=1500)) / np.exp(0.5)
        rewards = weights * (dice.random(1500) < 0.01)
        for skewed in missed:
            found = bootstrap_ratio(rewards, np.ones(1500), seed=seed, resamples=400, skewed=skewed)
            missed[skewed] += not found.low <= 0.01 <= found.high
    assert missed[True] < missed[False]
    assert missed[True] <= 21  # 7.5 expected at 95 %, 15 at 90 %
