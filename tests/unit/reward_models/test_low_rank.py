"""The shared basis: shrinkage by hand, and people whose tastes are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reward_models.low_rank import LowRankConfig, Votes, _group_means, fit
from reward_models.taste import Belief
from reward_models.ties import LOSS, TIE, WIN, outcome_loss
from reward_models.trust import choose_trust, forward_loss


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


def uneven(people: int, seed: int = 0) -> tuple[Votes, np.ndarray]:
    """Votes of people who said a lot or little, some of nobody, in mixed order; and what is known of each."""
    votes, _, _ = simulated(people, 12, seed=seed)
    dice = np.random.default_rng(seed)
    kept = dice.permutation(np.flatnonzero(dice.random(len(votes.user)) < 0.5 + votes.user / people / 2))
    votes = votes.take(kept)
    votes = replace(
        votes,
        user=np.where(dice.random(len(kept)) < 0.05, -1, votes.user),
        weight=dice.uniform(0.2, 2, len(kept)),
        log_words=dice.normal(size=len(kept)),
    )
    return votes, dice.normal(size=(people, 2))


def test_people_learned_together_are_as_each_learned_alone() -> None:
    votes, known = uneven(40)
    found = fit(votes, known, LowRankConfig(rank=2, rounds=3))
    for trust in (1.0, 0.3, 0.0):
        taste = replace(found, trust=trust)
        order, people, first = votes.grouped()
        means, covariances = taste.learn_all(votes.take(order), first, known[people])
        for u, (person, rows) in enumerate(votes.by_person()):
            alone = taste.learn(votes.take(rows), taste.prior(known[person]))
            np.testing.assert_allclose(means[u], alone.mean, atol=1e-8)
            np.testing.assert_allclose(covariances[u], alone.covariance, atol=1e-8)


def test_everybody_is_predicted_from_their_own_earlier_votes_only() -> None:
    votes, known = uneven(30, seed=1)
    found = fit(votes, known, LowRankConfig(rank=2, rounds=3))
    for trust in (0.0, 0.5, 1.0):
        taste, total = replace(found, trust=trust), 0.0
        for person, rows in votes.by_person():
            own, done, belief, loss = votes.take(rows), 0, taste.prior(known[person]), 0.0
            while done < len(rows):
                block = own.take(np.arange(done, min(2 * done + 1, len(rows))))
                p = taste.predict(block, belief if trust else None)
                loss += float(block.weight @ outcome_loss(p, block.outcome))
                done += len(block.outcome)
                belief = taste.learn(own.take(np.arange(done)), taste.prior(known[person]))
            total += loss / own.weight.sum()
        assert forward_loss(taste, votes, known) == pytest.approx(total, abs=1e-8)


def test_trust_is_given_where_people_differ_and_not_where_they_are_alike() -> None:
    config = LowRankConfig(rank=1, rounds=4)
    differ, _, _ = simulated(40, 20, taste=1.5)
    alike, _, _ = simulated(40, 20, taste=0.0, seed=3)
    assert choose_trust(differ, nobody(40), config, (0.25, 1.0), 0) == 1.0
    assert choose_trust(alike, nobody(40), config, (1.0,), 0) == 0.0
    empty = differ.take(np.flatnonzero(differ.user < 0))
    assert forward_loss(fit(differ, nobody(40), config), empty, nobody(40)) == 0.0


def test_rows_of_people_are_grouped_in_their_order() -> None:
    votes, _, _ = simulated(3, 2)
    votes = replace(votes, user=np.array([2, -1, 0, 2, 0, -1]))
    order, people, first = votes.grouped()
    assert (order.tolist(), people.tolist(), first.tolist()) == ([2, 4, 0, 3], [0, 2], [0, 2])
    assert [(who, rows.tolist()) for who, rows in votes.by_person()] == [(0, [2, 4]), (2, [0, 3])]
    nobodys = votes.take(np.array([1, 5]))
    assert list(nobodys.by_person()) == []
