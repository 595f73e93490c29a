"""Votes in one pass: what recurs is learned, what does not take part stays as it was."""

from __future__ import annotations

import numpy as np
import pytest

from reward_models.online import OnlineVotes, Term
from reward_models.taste import Belief, updated
from reward_models.ties import TIE, WIN


def reply(name: str, sign: float) -> Term:
    return Term(("reply", name), np.array([1.0]), np.array([[sign], [0.0]]))


def tie(name: str) -> Term:
    return Term(("person", name), np.array([1.0]), np.array([[0.0], [1.0]]))


def test_before_anything_is_known_it_is_even() -> None:
    p = OnlineVotes().predict([reply("a", 1), reply("b", -1)])
    assert p[0] == pytest.approx(p[2])
    assert p.sum() == pytest.approx(1)


def test_a_reply_that_wins_is_expected_to_win_against_others_too() -> None:
    online = OnlineVotes()
    for _ in range(5):
        online.learn([reply("a", 1), reply("b", -1)], WIN)
    against_new = online.predict([reply("a", 1), reply("c", -1)])
    assert against_new[0] > 0.4 > 0.25 > against_new[2]
    assert ("reply", "c") not in online.beliefs  # predicting makes nothing


def test_only_what_takes_part_changes() -> None:
    online = OnlineVotes()
    online.learn([reply("a", 1), reply("b", -1), tie("x")], TIE)
    kept = online.beliefs["person", "x"]
    online.learn([reply("a", 1), reply("b", -1), tie("y")], TIE)
    assert online.beliefs["person", "x"] is kept
    assert online.beliefs["person", "y"].mean[0] > 0


def test_it_is_the_update_of_taste() -> None:
    online = OnlineVotes()
    online.learn([reply("a", 1)], WIN, weight=0.5)
    (by_hand,) = updated([Belief.independent([1.0])], [np.array([[1.0], [0.0]])], WIN, weight=0.5)
    np.testing.assert_array_equal(online.beliefs["reply", "a"].mean, by_hand.mean)


def test_strengths_are_recovered_in_order() -> None:
    dice = np.random.default_rng(0)
    truth = np.linspace(-1.5, 1.5, 6)
    online = OnlineVotes()
    for _ in range(600):
        a, b = dice.choice(6, 2, replace=False)
        weights = np.exp([(truth[a] - truth[b]) / 2, -0.5, (truth[b] - truth[a]) / 2])
        outcome = int(dice.choice(3, p=weights / weights.sum()))
        level = Term("level", np.array([1.0]), np.array([[0.0], [1.0]]))
        online.learn([reply(str(a), 1), reply(str(b), -1), level], outcome)
    found = [online.beliefs["reply", str(i)].mean[0] for i in range(6)]
    assert np.argsort(found).tolist() == list(range(6))
    spread = np.array([online.beliefs["reply", str(i)].covariance[0, 0] ** 0.5 for i in range(6)])
    assert (np.abs(np.array(found) - truth) < 3 * spread + 0.2).all()
    assert online.beliefs["level"].mean[0] == pytest.approx(-0.5, abs=0.3)
