"""The shared basis: shrinkage by hand, and people whose tastes are known."""

from __future__ import annotations

import numpy as np
import pytest

from reward_models.low_rank import LowRankConfig, Votes, _group_means, fit
from reward_models.taste import Belief
from reward_models.ties import LOSS, TIE, WIN


def simulated(
    people: int, each: int, *, taste: float = 1.0, seed: int = 0, d: int = 6
) -> tuple[Votes, np.ndarray, np.ndarray]:
    """Votes of people who differ in one direction; (votes, that direction, each one's place on it)."""
    dice = np.random.default_rng(seed)
    direction = np.zeros(d)
    direction[1] = direction[2] = 0.5**0.5
    place = dice.normal(size=people) * taste
    user = np.repeat(np.arange(people), each)
    x = dice.normal(size=(len(user), d))
    w = np.zeros(d)
    w[0] = 1.0
    difference = x @ w + place[user] * (x @ direction)
    weights = np.exp(np.stack([difference / 2, np.full(len(user), -0.3), -difference / 2], axis=1))
    p = weights / weights.sum(axis=1, keepdims=True)
    outcome = (dice.random(len(user))[:, None] > p.cumsum(axis=1)).sum(axis=1)
    ones = np.ones(len(user))
    return Votes(x, np.zeros(len(user)), outcome, user, ones, ones, ones), direction, place


def nobody(people: int) -> np.ndarray:
    return np.zeros((people, 0))


def test_the_direction_in_which_people_differ_is_found() -> None:
    votes, direction, place = simulated(60, 40)
    found = fit(votes, nobody(60), LowRankConfig(rank=1))
    basis = found.basis[:, 0]
    assert abs(basis @ direction) / np.linalg.norm(basis) > 0.9
    own = [found.learn(votes.take(np.flatnonzero(votes.user == u)), found.prior()).mean[0] for u in range(60)]
    assert abs(np.corrcoef(own, place)[0, 1]) > 0.85
    spread = float(np.linalg.norm(basis) * found.covariance[0, 0] ** 0.5)
    assert 0.6 < spread < 1.3  # the truth is 1


def test_shared_weights_are_recovered_within_their_intervals() -> None:
    inside = 0
    for seed in range(20):
        votes, _, _ = simulated(30, 20, taste=0.3, seed=seed)
        found = fit(votes, nobody(30), LowRankConfig(rank=1, ridge=0.1, rounds=5))
        error = found.shared.mean[0] - 1.0
        inside += abs(error) < 2.5 * found.shared.covariance[0, 0] ** 0.5
    assert inside >= 17  # of 20; the approximation pulls large effects a little to zero


def test_without_votes_a_person_is_as_the_population() -> None:
    votes, _, _ = simulated(20, 10)
    found = fit(votes, nobody(20), LowRankConfig(rank=2, rounds=3))
    assert not found.prior().mean.any()
    assert found.learn(votes.take(np.arange(0)), found.prior()).mean.tolist() == [0.0] * 5


def test_no_trust_is_the_shared_taste_exactly() -> None:
    from dataclasses import replace

    votes, _, _ = simulated(20, 10)
    found = replace(fit(votes, nobody(20), LowRankConfig(rank=2, rounds=3)), trust=0.0)
    own = votes.take(np.arange(10))
    belief = found.learn(own, found.prior())
    np.testing.assert_allclose(found.predict(own, belief), found.predict(own, None), atol=1e-6)


def test_group_means_are_shrunk_by_hand() -> None:
    # Four people of one group with effects 1, 1, 1, 1 and a pull of four people: half is believed.
    assert _group_means(np.ones((4, 1)), np.ones((4, 2)), 4.0).tolist() == [[0.5, 0.5]]


def test_a_group_that_differs_is_known_before_it_votes() -> None:
    dice = np.random.default_rng(0)
    group = np.repeat([1.0, -1.0], 25)
    user = np.repeat(np.arange(50), 30)
    x = dice.normal(size=(1500, 3))
    p = 1 / (1 + np.exp(-1.5 * group[user] * x[:, 0]))
    outcome = np.where(dice.random(1500) < p, WIN, LOSS)
    ones = np.ones(1500)
    votes = Votes(x, np.zeros(1500), outcome, user, ones, 0 * ones, 0 * ones)
    found = fit(votes, group[:, None], LowRankConfig(rank=1))
    effect = (found.basis @ found.prior(np.array([1.0])).mean[:1])[0]
    assert 0.5 < effect < 1.6
    assert (found.basis @ found.prior(np.array([-1.0])).mean[:1])[0] == pytest.approx(-effect)


def test_a_person_who_ties_often_is_known_to() -> None:
    n = 30
    ones = np.ones(2 * n)
    outcome = np.r_[np.full(n, TIE), np.tile([WIN, LOSS], n // 2)]
    user = np.repeat([0, 1], n)
    x = np.random.default_rng(0).normal(size=(2 * n, 2))
    votes = Votes(x, np.zeros(2 * n), outcome, user, ones, ones, ones)
    found = fit(votes, nobody(2), LowRankConfig(rank=0))
    belief = [found.learn(votes.take(np.flatnonzero(user == u)), found.prior()) for u in (0, 1)]
    ties = [found.predict(votes, b)[:, TIE].mean() for b in belief]
    assert ties[0] > 0.7 > 0.3 > ties[1]


def test_a_single_reply_has_no_tie() -> None:
    ones = np.ones(1)
    thumb = Votes(np.ones((1, 2)), 0 * ones, np.array([WIN]), np.array([0]), ones, ones, 0 * ones)
    votes, _, _ = simulated(10, 10, d=2 + 1)
    votes = votes.take(np.arange(100))
    found = fit(votes, nobody(10), LowRankConfig(rank=1, rounds=2))
    thumb = Votes(np.ones((1, 3)), 0 * ones, np.array([WIN]), np.array([0]), ones, ones, 0 * ones)
    assert found.predict(thumb, Belief(np.zeros(4), found.covariance))[0, TIE] < 1e-3
