"""Davidson's model of wins, ties and losses against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from reward_models import ties
from reward_models.ties import LOSS, TIE, WIN


def test_probabilities_equal_hand_computed_ones() -> None:
    # d = ln 4: e^(d/2) = 2, e^(-d/2) = 1/2; nu = 1: Z = 3.5, so 4/7, 2/7, 1/7.
    # d = 0, nu = 2: Z = 4, so 1/4, 1/2, 1/4.
    first = ties.probabilities(np.array([math.log(4)]), log_nu=0.0)
    second = ties.probabilities(np.array([0.0]), log_nu=math.log(2))
    np.testing.assert_allclose(first, [[4 / 7, 2 / 7, 1 / 7]], rtol=1e-14)
    np.testing.assert_allclose(second, [[0.25, 0.5, 0.25]], rtol=1e-14)


def test_probabilities_sum_to_one_and_swap_with_the_order() -> None:
    d = np.linspace(-900, 900, 37)  # far beyond where e^d overflows
    p = ties.probabilities(d, log_nu=0.3)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_allclose(p[:, WIN], ties.probabilities(-d, log_nu=0.3)[:, LOSS])


def test_without_ties_it_is_bradley_terry() -> None:
    d = np.array([-3.0, 0.0, 0.7, 2.0])
    p = ties.probabilities(d, ties.NO_TIES)
    np.testing.assert_allclose(p[:, WIN], 1 / (1 + np.exp(-d)), atol=1e-5)
    assert p[:, TIE].max() < 1e-5


def _objective(x: np.ndarray, outcome: np.ndarray, weight: np.ndarray, ridge: float) -> Any:
    """The penalised negative log-likelihood, written out from the docstring of `ties.fit`."""

    def value(theta: np.ndarray) -> float:
        total = 0.0
        for row, seen, w in zip(x, outcome, weight, strict=True):
            d, nu = float(row @ theta[:-1]), math.exp(theta[-1])
            z = math.exp(d / 2) + math.exp(-d / 2) + nu
            top = {WIN: math.exp(d / 2), TIE: nu, LOSS: math.exp(-d / 2)}[int(seen)]
            total -= w * math.log(top / z)
        return total + ridge / 2 * float(theta[:-1] @ theta[:-1]) + 0.005 * theta[-1] ** 2

    return value


@pytest.fixture
def votes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 3))
    p = ties.probabilities(x @ np.array([1.0, -0.5, 0.0]), 0.2)
    outcome = np.array([rng.choice(3, p=row) for row in p])
    return x, outcome, rng.uniform(0.2, 2, size=60)


def test_slope_and_curvature_at_the_fit_equal_finite_differences(
    votes: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    fitted = ties.fit(*votes, ridge=2.0)
    written_out, step = _objective(*votes, ridge=2.0), 1e-4
    best = np.append(fitted.weights, fitted.log_nu)
    unit = np.eye(4) * step
    slope = [(written_out(best + e) - written_out(best - e)) / (2 * step) for e in unit]
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    hessian = [
        [
            (written_out(best + a + b) - written_out(best + a - b) - written_out(best - a + b)
             + written_out(best - a - b)) / (4 * step**2)
            for b in unit
        ]
        for a in unit
    ]  # fmt: skip
    np.testing.assert_allclose(fitted.covariance, np.linalg.inv(hessian)[:3, :3], rtol=1e-4)


def test_where_the_search_begins_changes_nothing(votes: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    x, outcome, weight = votes
    anew = ties.fit(x, outcome, weight, 2.0)
    some = ties.fit(x[:20], outcome[:20], weight[:20], 2.0)
    far = ties.Fit(np.array([9.0, -7.0, 5.0]), 4.0, np.eye(3))
    for start in (some, far):
        again = ties.fit(x, outcome, weight, 2.0, start=start)
        np.testing.assert_allclose(again.weights, anew.weights, atol=1e-9)
        assert again.log_nu == pytest.approx(anew.log_nu, abs=1e-9)


def test_fit_is_at_the_minimum_of_the_written_out_objective(
    votes: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    fitted = ties.fit(*votes, ridge=2.0)
    written_out = _objective(*votes, ridge=2.0)
    best = np.append(fitted.weights, fitted.log_nu)
    rng = np.random.default_rng(0)
    assert all(written_out(best) <= written_out(best + rng.normal(size=4) * 0.01) for _ in range(50))


def test_row_weight_two_is_the_row_twice(votes: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    x, outcome, _ = votes
    twice = ties.fit(x, outcome, np.full(60, 2.0), 1.0)
    doubled = ties.fit(np.vstack([x, x]), np.tile(outcome, 2), np.ones(120), 1.0)
    np.testing.assert_allclose(twice.weights, doubled.weights, atol=1e-6)
    np.testing.assert_allclose(twice.covariance, doubled.covariance, atol=1e-6)


def test_known_weights_are_recovered_within_their_intervals() -> None:
    truth, log_nu = np.array([1.2, -0.6, 0.0, 0.3]), -0.4
    inside, estimates = 0, []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(600, 4))
        p = ties.probabilities(x @ truth, log_nu)
        outcome = (p.cumsum(axis=1) < rng.uniform(size=(600, 1))).sum(axis=1)
        fitted = ties.fit(x, outcome, np.ones(600), ridge=0.1)
        std = np.sqrt(np.diag(fitted.covariance))
        inside += int((np.abs(fitted.weights - truth) < 1.96 * std).sum())
        estimates.append([*fitted.weights, fitted.log_nu])
    # 95 % intervals, 100 of them: fewer than 88 inside would happen once in some 500 tries.
    assert inside >= 88
    np.testing.assert_allclose(np.mean(estimates, axis=0), [*truth, log_nu], atol=0.06)


def test_log_loss_is_the_weighted_mean() -> None:
    fitted = ties.Fit(np.array([math.log(4)]), 0.0, np.eye(1))
    x, outcome, weight = np.array([[1.0], [1.0]]), np.array([WIN, TIE]), np.array([3.0, 1.0])
    wanted = (3 * math.log(7 / 4) + math.log(7 / 2)) / 4
    assert ties.log_loss(x, outcome, weight, fitted) == pytest.approx(wanted, rel=1e-12)
