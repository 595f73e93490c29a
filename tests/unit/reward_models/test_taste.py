"""Beliefs of one person's taste: hand-computed votes, and what must hold of any."""

from __future__ import annotations

import time

import numpy as np
import pytest

from reward_models import laplace, taste
from reward_models.taste import Belief, expected_probabilities, posterior, posteriors, predictors, updated
from reward_models.ties import LOSS, NO_TIES, TIE, WIN

ONE = np.array([[1.0], [0.0]])  # one effect, on the reward difference alone
NO_TIE = np.array([0.0, NO_TIES])


def test_one_win_by_hand() -> None:
    # theta ~ N(0, 1), P(win) = 1 / (1 + e^-theta). The mode solves theta = 1 - sigmoid(theta): 0.401058, where
    # sigmoid = 0.598942. The precision is 1 + 0.598942 * 0.401058 = 1.240211, the variance 0.806315.
    (after,) = updated([Belief.independent([1.0])], [ONE], WIN, offset=NO_TIE)
    assert after.mean[0] == pytest.approx(0.401058, abs=2e-5)
    assert after.covariance[0, 0] == pytest.approx(0.806315, abs=2e-5)


def test_one_tie_by_hand() -> None:
    # The effect is the log-weight of a tie, at d = 0: P(tie) = e^t / (2 + e^t), t ~ N(0, 1). The mode solves
    # t = 1 - P(tie) = 2 / (2 + e^t): at t = 0.5386, e^t = 1.7136 and 2 / 3.7136 = 0.5386. P = 0.4614, and the
    # precision is 1 + 0.4614 * 0.5386 = 1.2485.
    (after,) = updated([Belief.independent([1.0])], [np.array([[0.0], [1.0]])], TIE)
    assert after.mean[0] == pytest.approx(0.5386, abs=2e-4)
    assert after.covariance[0, 0] == pytest.approx(1 / 1.2485, abs=2e-4)


def votes(seed: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    dice = np.random.default_rng(seed)
    offset = dice.normal(size=(n, 2)) * 0.3
    return dice.normal(size=(n, 2, k)), dice.integers(0, 3, n), dice.uniform(0.2, 2, n), offset


def test_one_vote_at_a_time_is_the_joint_posterior_for_one_vote() -> None:
    designs, outcome, weight, offset = votes(1, 1, 4)
    prior = Belief.independent([0.5, 1.0, 2.0, 0.1], np.array([0.1, -0.2, 0.0, 0.3]))
    (online,) = updated([prior], [designs[0]], int(outcome[0]), weight=float(weight[0]), offset=offset[0])
    joint = posterior(prior, designs, outcome, weight, offset)
    np.testing.assert_allclose(online.mean, joint.mean, atol=1e-6)
    np.testing.assert_allclose(online.covariance, joint.covariance, atol=1e-6)


def test_many_people_at_once_are_the_same_as_each_alone() -> None:
    designs, outcome, weight, offset = votes(2, 30, 3)
    first = np.array([0, 4, 4, 17])  # the second person has no votes
    means = np.random.default_rng(3).normal(size=(4, 3)) * 0.2
    prior = Belief.independent([0.7, 0.4, 1.0])
    theta, covariances = posteriors(means, prior.covariance, designs, outcome, weight, offset, first)
    for u, (lo, hi) in enumerate(zip(first, [*first[1:], 30], strict=True)):
        rows = slice(lo, hi)
        alone = posterior(
            Belief(means[u], prior.covariance), designs[rows], outcome[rows], weight[rows], offset[rows]
        )
        np.testing.assert_allclose(theta[u], alone.mean, atol=1e-6)
        np.testing.assert_allclose(covariances[u], alone.covariance, atol=1e-6)
    np.testing.assert_array_equal(theta[1], means[1])
    np.testing.assert_array_equal(covariances[1], prior.covariance)


def test_the_order_of_votes_hardly_matters() -> None:
    designs, outcome, weight, offset = votes(4, 40, 3)
    prior = Belief.independent([0.3, 0.3, 0.3])

    def after(order: np.ndarray) -> np.ndarray:
        belief = prior
        for i in order:
            (belief,) = updated(
                [belief], [designs[i]], int(outcome[i]), weight=float(weight[i]), offset=offset[i]
            )
        return belief.mean

    joint = posterior(prior, designs, outcome, weight, offset)
    for order in (np.arange(40), np.arange(40)[::-1]):
        np.testing.assert_allclose(after(order), joint.mean, atol=0.03)


def test_weight_zero_changes_nothing_and_weight_two_is_twice_the_same_vote() -> None:
    prior = Belief.independent([1.0])
    assert updated([prior], [ONE], LOSS, weight=0.0) == [prior]
    (twice,) = updated([prior], [ONE], LOSS, weight=2.0, offset=NO_TIE)
    joint = posterior(prior, np.stack([ONE, ONE]), np.array([LOSS, LOSS]), np.ones(2), np.stack([NO_TIE] * 2))
    np.testing.assert_allclose(twice.mean, joint.mean, atol=1e-8)


def test_beliefs_that_made_a_vote_together_share_what_it_says_by_their_uncertainty() -> None:
    sure, unsure = Belief.independent([0.1]), Belief.independent([1.0])
    a, b = updated([sure, unsure], [ONE, ONE], WIN, offset=NO_TIE)
    assert b.mean[0] / a.mean[0] == pytest.approx(100)  # in proportion to their variances
    mean, spread = predictors([a, b], [ONE, ONE])
    assert mean[0] == pytest.approx(a.mean[0] + b.mean[0])
    assert spread[0, 0] == pytest.approx(a.covariance[0, 0] + b.covariance[0, 0])


def test_expected_probabilities_against_sampling() -> None:
    spread = np.array([[1.5, 0.4], [0.4, 0.8]])
    mean = np.array([0.7, -0.2])
    drawn = np.random.default_rng(0).multivariate_normal(mean, spread, 400_000)
    half = drawn[:, 0] / 2
    weights = np.exp(np.stack([half, drawn[:, 1], -half], axis=1))
    sampled = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    found = expected_probabilities(mean[None], spread[None])[0]
    np.testing.assert_allclose(found, sampled, atol=2e-3)
    assert found.sum() == pytest.approx(1)


def test_extreme_votes_stay_finite() -> None:
    wide = Belief.independent([50.0, 50.0])
    design = np.array([[40.0, 0.0], [0.0, 40.0]])
    for outcome in (WIN, TIE, LOSS):
        (after,) = updated([wide], [design], outcome, weight=1e3)
        assert np.isfinite(after.mean).all() and np.linalg.eigvalsh(after.covariance).min() > -1e-6


def test_a_vote_takes_less_than_a_millisecond() -> None:
    designs, outcome, weight, offset = votes(5, 200, 8)
    belief, took = Belief.independent(np.full(8, 0.5)), []
    for i in range(200):
        started = time.perf_counter()
        (belief,) = updated(
            [belief], [designs[i]], int(outcome[i]), weight=float(weight[i]), offset=offset[i]
        )
        took.append(time.perf_counter() - started)
    assert np.median(took) < 1e-3


def test_the_mode_is_where_the_slope_is_zero_and_the_covariance_the_inverse_curvature() -> None:
    designs, outcome, weight, offset = votes(6, 60, 3)
    prior = Belief.independent([0.7, 0.4, 1.0], np.array([0.2, 0.0, -0.1]))

    def log_posterior(theta: np.ndarray) -> float:
        h = offset + designs @ theta
        logits = np.stack([h[:, 0] / 2, h[:, 1], -h[:, 0] / 2], axis=1)
        said = logits[np.arange(60), outcome] - np.log(np.exp(logits).sum(axis=1))
        away = theta - prior.mean
        return float(weight @ said - away @ np.linalg.solve(prior.covariance, away) / 2)

    found = posterior(prior, designs, outcome, weight, offset)
    e = 1e-4 * np.eye(3)
    slope = [(log_posterior(found.mean + s) - log_posterior(found.mean - s)) / 2e-4 for s in e]
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    at = log_posterior
    curved = [
        [(at(found.mean + s + t) - at(found.mean + s - t) - at(found.mean - s + t) + at(found.mean - s - t)) / 4e-8
         for t in e] for s in e
    ]  # fmt: skip
    np.testing.assert_allclose(-np.linalg.inv(curved), found.covariance, rtol=1e-3, atol=1e-4)


def test_very_many_votes_of_one_person_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    designs, outcome, weight, offset = votes(7, 50, 3)
    prior = Belief.independent([0.7, 0.4, 1.0])
    whole = posterior(prior, designs, outcome, weight, offset)
    p = expected_probabilities(offset, np.tile(np.eye(2), (50, 1, 1)))
    monkeypatch.setattr(laplace, "TOGETHER", 7)
    monkeypatch.setattr(taste, "TOGETHER", 7)
    parts = posterior(prior, designs, outcome, weight, offset)
    np.testing.assert_allclose(parts.mean, whole.mean, atol=1e-10)
    np.testing.assert_allclose(parts.covariance, whole.covariance, atol=1e-10)
    np.testing.assert_allclose(expected_probabilities(offset, np.tile(np.eye(2), (50, 1, 1))), p, atol=1e-14)
    assert expected_probabilities(np.zeros((0, 2)), np.zeros((0, 2, 2))).shape == (0, 3)


def test_nobody_is_no_fault() -> None:
    none = np.zeros(0, dtype=int)
    theta, covariances = posteriors(
        np.zeros((0, 3)), np.eye(3), np.zeros((0, 2, 3)), none, np.zeros(0), np.zeros((0, 2)), none
    )
    assert theta.shape == (0, 3) and covariances.shape == (0, 3, 3)
