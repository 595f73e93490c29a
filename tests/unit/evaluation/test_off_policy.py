"""Off-policy values by hand, in simulation, and where they are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluation.errors import EvaluationError
from evaluation.off_policy import (
    Config,
    InsufficientOverlap,
    Logged,
    crossfitted_means,
    effective_sample_size,
    evaluate,
)

FEW = Config(min_ess=1, resamples=200)
HAND = Logged(
    reward=np.array([1.0, 0.0, 1.0, 0.0]),
    propensity=np.array([0.5, 0.5, 0.25, 0.25]),
    target=np.array([0.5, 0.25, 0.5, 0.0]),
)


def test_by_hand() -> None:
    # w = 1, 0.5, 2, 0. ips = (1 + 0 + 2 + 0) / 4 = 0.75; snips = 3 / 3.5; ess = 3.5^2 / (1 + 0.25 + 4) = 2.3333.
    value = evaluate(HAND, FEW, seed=0)
    assert value.ips.value == pytest.approx(0.75)
    assert value.snips.value == pytest.approx(3 / 3.5)
    assert value.ess == pytest.approx(12.25 / 5.25)
    assert value.dr is None and value.capped == 0


def test_doubly_robust_by_hand() -> None:
    # v + w (r - q): 0.6 + 1 * 0.5 = 1.1, 0.6 - 0.5 * 0.5 = 0.35, 0.6 + 2 * 0.5 = 1.6, 0.6: their mean is 0.9125.
    model = replace(HAND, predicted=np.full(4, 0.5), predicted_target=np.full(4, 0.6))
    value = evaluate(model, FEW, seed=0)
    assert value.dr is not None and value.dr.value == pytest.approx(0.9125)


def test_a_cap_takes_weight_and_says_how_much() -> None:
    value = evaluate(HAND, FEW.model_copy(update={"max_weight": 1.0}), seed=0)
    assert value.ips.value == pytest.approx(0.5)
    assert value.capped == pytest.approx(1 / 3.5)


def simulated(seed: int, n: int) -> tuple[Logged, float]:
    """Three actions, rewards by action and situation, a skewed logged policy; the target's true value."""
    dice = np.random.default_rng(seed)
    situation = dice.integers(0, 2, n)
    logged = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])[situation]
    target = np.array([[0.2, 0.3, 0.5], [0.4, 0.4, 0.2]])[situation]
    mean = np.array([[0.2, 0.5, 0.8], [0.6, 0.3, 0.1]])
    action = (dice.random(n)[:, None] > logged.cumsum(axis=1)).sum(axis=1)
    reward = (dice.random(n) < mean[situation, action]).astype(float)
    cell = situation * 3 + action
    means, fold = crossfitted_means(cell, reward, 6, seed=seed)
    rows = np.arange(n)
    by_action = means[fold].reshape(n, 2, 3)[rows, situation]
    truth = float((np.array([[0.2, 0.3, 0.5], [0.4, 0.4, 0.2]]) * mean).sum(axis=1).mean())
    found = Logged(
        reward,
        logged[rows, action],
        target[rows, action],
        None,
        means[fold, cell],
        (by_action * target).sum(axis=1),
    )
    return found, truth


def test_intervals_cover_the_truth_and_a_model_narrows_them() -> None:
    inside, widths = np.zeros(3), np.zeros(3)
    for seed in range(60):
        logged, truth = simulated(seed, 400)
        value = evaluate(logged, FEW, seed=seed)
        assert value.dr is not None
        for i, estimate in enumerate((value.ips, value.snips, value.dr)):
            inside[i] += estimate.low <= truth <= estimate.high
            widths[i] += estimate.high - estimate.low
    assert (inside >= 52).all()  # of 60, 57 expected: 0.95 less three standard deviations
    assert widths[2] < widths[0] and widths[1] < widths[0]


def test_no_overlap_is_refused() -> None:
    n = 2000
    target = np.zeros(n)
    target[:5] = 1.0
    rows = Logged(np.ones(n), np.full(n, 0.01), target)
    with pytest.raises(InsufficientOverlap, match=r"effective sample size 5\.0 of 2000"):
        evaluate(rows, Config(), seed=0)
    with pytest.raises(InsufficientOverlap):
        evaluate(replace(rows, target=np.zeros(n)), Config(), seed=0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"propensity": np.array([0.5, np.nan, 0.5, 0.5])}, "propensity is missing"),
        ({"propensity": np.array([0.5, 0.0, 0.5, 0.5])}, "propensity is a probability"),
        ({"target": np.array([0.5, 1.5, 0.5, 0.5])}, "target is a probability"),
        ({"target": np.array([0.5, 0.5])}, "each of its numbers"),
        ({"predicted": np.zeros(4)}, "or neither"),
    ],
)
def test_what_cannot_be_used_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        replace(HAND, **changes)  # type: ignore[arg-type]


def test_effective_sample_size() -> None:
    assert effective_sample_size([1, 1, 1, 1]) == pytest.approx(4)
    assert effective_sample_size([4, 0, 0]) == pytest.approx(1)
    assert effective_sample_size([0, 0]) == 0


def test_no_row_is_predicted_from_itself() -> None:
    cell, reward = np.zeros(10, dtype=int), np.arange(10.0)
    means, fold = crossfitted_means(cell, reward, 1, folds=5, pull=0.0, seed=3)
    for i in range(10):
        assert means[fold[i], 0] == pytest.approx(reward[fold != fold[i]].mean())


@pytest.mark.parametrize("max_weight", [None, 0.5])
def test_what_was_never_logged_is_refused_though_the_sample_size_is_perfect(max_weight: float | None) -> None:
    # A and B are logged half each, C never; the target plays C nine times of ten. Every weight is 0.05 / 0.5 = 0.1.
    n = 4000
    rows = Logged((np.random.default_rng(0).random(n) < 0.2).astype(float), np.full(n, 0.5), np.full(n, 0.05))
    with pytest.raises(InsufficientOverlap, match=r"mean weight 0\.100"):
        evaluate(rows, Config(resamples=200, max_weight=max_weight), seed=0)


def test_wrong_propensities_are_refused_and_right_ones_hardly_ever() -> None:
    refused = 0
    for seed in range(40):
        logged, _ = simulated(seed, 2000)
        try:
            evaluate(logged, FEW, seed=seed)
        except InsufficientOverlap:
            refused += 1
    assert refused <= 1
    with pytest.raises(InsufficientOverlap, match="do not average 1"):
        evaluate(replace(logged, propensity=logged.propensity / 2), FEW, seed=0)


def test_rewards_that_never_vary_are_refused() -> None:
    silent = Logged(np.zeros(1000), np.full(1000, 0.5), np.full(1000, 0.5))
    with pytest.raises(InsufficientOverlap, match="All rewards are the same"):
        evaluate(silent, Config(), seed=0)
