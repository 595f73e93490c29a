"""Predictions of held-out pairs: in which order replies are shown, and whose word counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from reward_models import personal, ties
from reward_models.heldout import bare, compare, corrected, loser_first, predict, presented
from reward_models.length_bias import LengthControlled, log_words
from reward_models.low_rank import LowRankConfig
from reward_models.scorer import Rewards
from reward_models.temperature import Temperature, Tempered
from tests.unit.reward_models.made import row, table, text

HOT = Temperature(2.0, 0.5, 2.0, 1.5, 2.5, 0.1, 100, 10)


@dataclass(frozen=True)
class ByWords:
    """So much reward for each log word."""

    weight: float = 1.0
    trained_on: frozenset[str] = frozenset()

    def score(self, prompts, completions, user_ids=None, agents=None) -> Rewards:  # noqa: ARG002
        return Rewards(self.weight * log_words(completions), np.zeros(len(completions)))

    def probabilities(self, difference) -> np.ndarray:
        return ties.probabilities(difference, -0.5)

    def save(self, directory: Path) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class OfPeople(ByWords):
    """The same, but it knows who says tie whatever is asked."""

    def compare(self, prompts, first, second, user_ids=None, agents=None) -> np.ndarray:  # noqa: ARG002
        said = ties.probabilities(self.weight * (log_words(first) - log_words(second)), -0.5)
        undecided = np.array([user == "Žofie" for user in user_ids])
        return np.where(undecided[:, None], [0.1, 0.8, 0.1], said)


def rows(count: int = 40, **changes):
    return [row(n, **{"chosen": "One.", "rejected": "One two three.", **changes}) for n in range(count)]


def test_half_of_the_pairs_are_shown_loser_first_and_probabilities_follow() -> None:
    made = table(rows()).sort_by("preference_id")
    shown, flip = presented(made), loser_first(made["preference_id"].to_pylist())
    assert 8 < flip.sum() < 32
    assert [a for a, turned in zip(shown.first, flip, strict=True) if turned] == [
        "One two three."
    ] * flip.sum()
    np.testing.assert_array_equal(shown.outcome, np.where(flip, ties.LOSS, ties.WIN))
    said = predict(ByWords(), made)
    # log(1 + 3 words) - log(1 + 1 word) = log 2 in favour of the loser
    chosen = said.probabilities[np.arange(40), shown.outcome]
    np.testing.assert_allclose(chosen, 2**-0.5 / (2**0.5 + 2**-0.5 + np.exp(-0.5)))
    assert said.correct.tolist() == [0.0] * 40
    assert predict(ByWords(), table(rows(margin=0.0))).outcome.tolist() == [ties.TIE] * 40


def test_a_model_that_knows_its_people_is_asked_about_them() -> None:
    made = table(
        [*rows(), *(r | {"user_id": "Žofie", "preference_id": f"{i:064x}"} for i, r in enumerate(rows(6)))]
    )
    plain, asked = predict(ByWords(), made), predict(OfPeople(), made)
    hers = asked.clusters == "Žofie"
    assert hers.sum() == 6
    np.testing.assert_array_equal(asked.probabilities[hers], [[0.1, 0.8, 0.1]] * 6)
    np.testing.assert_allclose(asked.probabilities[~hers], plain.probabilities[~hers])
    np.testing.assert_array_equal(asked.outcome, plain.outcome)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda scorer: Tempered(scorer, HOT),
        lambda scorer: LengthControlled(scorer, 0.7, 1.0),
        lambda scorer: Tempered(LengthControlled(scorer, 0.7), HOT),
        lambda scorer: LengthControlled(Tempered(scorer, HOT), -0.3),
    ],
)
def test_what_is_wrapped_around_a_model_counts_for_its_own_comparison_too(wrap) -> None:
    made = table(rows())
    # For people without habits a comparison says what the difference of rewards says, so both ways must agree.
    np.testing.assert_allclose(
        predict(wrap(OfPeople()), made).probabilities, predict(wrap(ByWords()), made).probabilities
    )
    assert not np.allclose(
        predict(wrap(ByWords()), made).probabilities, predict(ByWords(), made).probabilities
    )
    assert bare(wrap(ByWords(3.0))) == ByWords(3.0)


def test_corrections_by_hand() -> None:
    said, longer = np.array([[0.6, 0.2, 0.2]]), np.array([np.log(2)])
    np.testing.assert_array_equal(corrected(ByWords(), said, longer), said)
    # Odds of 3 less one for twice the words: 3 / 2, ties as before against the geometric mean.
    win, tie, loss = corrected(LengthControlled(ByWords(), 1.0), said, longer)[0]
    assert win / loss == pytest.approx(1.5)
    assert tie / np.sqrt(win * loss) == pytest.approx(0.2 / np.sqrt(0.12))
    win, tie, loss = corrected(Tempered(ByWords(), HOT), said, longer)[0]
    assert win / loss == pytest.approx(3**0.5)
    assert tie / np.sqrt(win * loss) == pytest.approx(np.exp(0.5) * 0.2 / np.sqrt(0.12))


def test_nothing_is_predicted_of_nothing() -> None:
    for scorer in (ByWords(), OfPeople(), Tempered(OfPeople(), HOT)):
        assert predict(scorer, table([])).probabilities.shape == (0, 3)
        assert predict(scorer, table(rows(3, rejected=None, label=True))).outcome.shape == (0,)
    assert compare(OfPeople(), [], [], [], [], []).shape == (0, 3)


def test_a_personal_model_predicts_with_habits_of_ties(tiny_base: Path) -> None:
    import random

    dice, made = random.Random(0), []
    for n in range(144):
        pair = sorted((text(dice.randint(2, 5), dice), text(dice.randint(9, 14), dice)), key=len)
        made.append(
            row(n, chosen=pair[0], rejected=pair[1], margin=float(n % 12 > 2), user_id=f"user-{n % 12:02}")
        )
    config = personal.Config(components=2, max_tokens=64, taste=LowRankConfig(rank=2, rounds=6))
    model = personal.fit(config, table(made), base=tiny_base, seed=0)
    assert model.taste.trust > 0
    asked = [one | {"preference_id": f"{i:064x}"} for i, one in enumerate(made)]
    said = predict(model, table(asked))
    often = np.isin(said.clusters, ["user-00", "user-01", "user-02"])
    assert said.probabilities[often, ties.TIE].min() > 0.5 > said.probabilities[~often, ties.TIE].max()
    strangers = predict(replace(model, people={}), table(asked))
    assert said.log_loss.mean() < strangers.log_loss.mean() - 0.1
