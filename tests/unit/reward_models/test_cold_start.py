"""The next question: by hand, against sampling, and on people whose tastes are opposed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reward_models import personal
from reward_models.cold_start import information, next_questions
from reward_models.scorer import RewardModelError
from reward_models.ties import NO_TIES
from reward_models.votes_of_rows import Given
from tests.unit.reward_models.made import table
from tests.unit.reward_models.test_personal import CONFIG, LONG, PROMPT, SHORT, opposed


def test_information_of_a_narrow_belief_by_hand() -> None:
    # d ~ N(0, 0.04), no ties: p = 1/2, I = p (1 - p) Var(d) / 2 = 0.25 * 0.04 / 2 = 0.005.
    told = information(np.array([[0.0, NO_TIES]]), np.array([[[0.04, 0.0], [0.0, 0.0]]]))
    assert told[0] == pytest.approx(0.005, rel=0.03)


def test_information_against_sampling() -> None:
    spread = np.array([[2.0, 0.3], [0.3, 1.0]])
    drawn = np.random.default_rng(0).multivariate_normal([0.5, -0.5], spread, 300_000)
    logits = np.stack([drawn[:, 0] / 2, drawn[:, 1], -drawn[:, 0] / 2], axis=1)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    mean = p.mean(axis=0)
    sampled = -(mean * np.log(mean)).sum() + (p * np.log(p)).sum(axis=1).mean()
    assert information(np.array([[0.5, -0.5]]), spread[None])[0] == pytest.approx(sampled, abs=2e-3)


def test_what_is_known_tells_nothing() -> None:
    certain = information(np.zeros((1, 2)), np.zeros((1, 2, 2)))
    assert certain[0] == pytest.approx(0, abs=1e-9)


@pytest.fixture(scope="module")
def fitted(tiny_base: Path) -> personal.Personal:
    return personal.fit(CONFIG, table(opposed(20, 12)), base=tiny_base, seed=0)


def test_a_stranger_is_asked_what_people_differ_in(fitted: personal.Personal) -> None:
    same = "Nets and gulls and bread."
    pairs = Given([PROMPT] * 3, [same, LONG, same], [same, SHORT, "Gulls and nets and bread."])
    (first,) = next_questions(fitted, pairs, None)
    assert first.pair == 1 and first.information > 0.1
    assert first.probabilities.sum() == pytest.approx(1)


def test_who_has_answered_often_is_told_little_more(fitted: personal.Personal) -> None:
    pairs = Given([PROMPT], [LONG], [SHORT])
    known = next_questions(fitted, pairs, "user-00")[0].information
    assert known < next_questions(fitted, pairs, "a stranger")[0].information / 2


def test_the_second_question_is_not_the_first_again(fitted: personal.Personal) -> None:
    pairs = Given([PROMPT] * 2, [LONG, LONG + " Yes."], [SHORT, SHORT])
    one, two = next_questions(fitted, pairs, None, count=2)
    assert {one.pair, two.pair} == {0, 1}
    assert two.information < one.information / 1.5


def test_what_cannot_be_asked_is_said(fitted: personal.Personal) -> None:
    with pytest.raises(RewardModelError, match="no pair"):
        next_questions(fitted, Given([], [], []), None)
    alike = replace(fitted, taste=replace(fitted.taste, trust=0.0))
    with pytest.raises(RewardModelError, match="one taste for everybody"):
        next_questions(alike, Given([PROMPT], [LONG], [SHORT]), None)
