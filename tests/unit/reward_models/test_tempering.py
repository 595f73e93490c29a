"""A temperature from folds of people and prompts: nobody tells it what their model has heard."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reward_models import bradley_terry, tempering
from reward_models.heldout import predict
from reward_models.scorer import Rewards, Scorer
from reward_models.temperature import Config, Tempered
from tests.unit.reward_models.made import row, table, text

FEW = Config(folds=4, min_votes=20, min_users=4)
Make = Callable[[pa.Table], Scorer]


def votes(
    people: int, each: int, *, first: int = 0, prompts: int | None = None, right: float = 0.7, seed: int = 0
) -> pa.Table:
    """Everybody's votes on prompts of their own, or on the same few; the shorter reply wins as often as `right`."""
    dice = random.Random(f"{seed}-{first}")
    rows = []
    for n in range(first, first + people * each):
        pair = [text(dice.randint(2, 8), dice), text(dice.randint(9, 15), dice)]
        if dice.random() > right:
            pair.reverse()
        key = f"own-{n}" if prompts is None else f"shared-{n % prompts}"
        rows.append(
            row(n, chosen=pair[0], rejected=pair[1], user_id=f"ürsula-{first}-{n % people}", prompt_key=key)
        )
    return table(rows)


@pytest.fixture(scope="module")
def overfitting(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A real model without the restraint of a ridge, on a cache of vectors that all tests share."""
    cache = tmp_path_factory.mktemp("vectors") / "made"
    config = bradley_terry.Config(components=16, max_tokens=64, ridges=(1e-3,))
    return lambda rows: bradley_terry.fit(config, rows, base=tiny_base, seed=0, cache_dir=cache)


@dataclass
class Watched:
    """A scorer that remembers whom it was asked about."""

    scorer: Scorer
    learned: pa.Table
    asked: list[str | None]

    @property
    def trained_on(self) -> frozenset[str]:
        return self.scorer.trained_on

    def score(self, prompts: Any, completions: Any, user_ids: Any = None, agents: Any = None) -> Rewards:
        self.asked += completions
        return self.scorer.score(prompts, completions, user_ids, agents)

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        return self.scorer.probabilities(difference)

    def save(self, directory: Path) -> None:  # noqa: ARG002 - the protocol of scorers
        raise AssertionError("models of folds are not kept")


def watched(make: Make, seen: list[Watched]) -> Make:
    def made(rows: pa.Table) -> Scorer:
        seen.append(Watched(make(rows), rows, []))
        return seen[-1]

    return made


def test_own_prompts_follow_their_person_and_shared_ones_the_most_votes() -> None:
    people = np.repeat(np.arange(8), 3)
    may = np.ones(24, dtype=bool)
    person, prompt = tempering.folds_of(people, np.arange(24), may, 4, seed=1)
    assert (person == prompt).all()
    assert sorted(np.bincount(person[::3])) == [2, 2, 2, 2]
    # Three people of three folds vote on prompt 0, the first one twice: it goes with that one, whatever the lot.
    for seed in range(20):
        person, prompt = tempering.folds_of(np.array([0, 0, 1, 2]), np.zeros(4, int), may[:4], 3, seed)
        assert (prompt == person[0]).all() and len(set(person)) == 3
    # What may not be predicted has no say, as long as anything may.
    person, prompt = tempering.folds_of(np.array([0, 0, 1]), np.zeros(3, int), np.array([0, 0, 1]) > 0, 2, 5)
    assert (prompt == person[2]).all()
    assert tempering.folds_of(np.zeros(0, int), np.zeros(0, int), may[:0], 4, 0)[0].shape == (0,)


@pytest.mark.parametrize("prompts", [None, 7])
def test_nobody_is_predicted_by_a_model_that_knows_them_or_their_prompt(
    overfitting: Make, prompts: int | None
) -> None:
    rows = votes(12, 10, prompts=prompts)
    about = {r["chosen"]: r for r in rows.to_pylist()}
    seen: list[Watched] = []
    config = Config(folds=4, min_votes=2, min_users=2)
    found = tempering.fit(watched(overfitting, seen), rows, config, seed=3)
    predicted: list[str] = []
    for each in seen:
        held = [about[reply] for reply in each.asked if reply in about]
        predicted += [r["preference_id"] for r in held]
        assert not {r["user_id"] for r in held} & set(each.learned["user_id"].to_pylist())
        assert not {r["prompt_key"] for r in held} & set(each.learned["prompt_key"].to_pylist())
    assert len(predicted) == len(set(predicted)) == found.votes
    assert len(seen) == 4
    # Own prompts: every vote once. Shared ones: at least the largest of four parts of each prompt.
    assert found.votes == 120 if prompts is None else 30 <= found.votes < 120


def test_where_prompts_are_not_held_out_people_alone_are_kept_apart(overfitting: Make) -> None:
    rows, seen = votes(12, 10, prompts=7), list[Watched]()
    found = tempering.fit(watched(overfitting, seen), rows, FEW, prompts_apart=False, seed=3)
    assert found.votes == 120 and [each.learned.num_rows for each in seen] == [90] * 4
    for each in seen:
        assert len(set(each.learned["user_id"].to_pylist())) == 9
        assert len(set(each.learned["prompt_key"].to_pylist())) == 7


def test_an_overconfident_model_predicts_strangers_better_for_it(overfitting: Make) -> None:
    learned, new = votes(30, 6, right=0.6, seed=3), votes(60, 10, first=10_000, right=0.6, seed=3)
    raw = overfitting(learned)
    found = tempering.fit(overfitting, learned, seed=0)
    assert found.reason == "" and found.low > 1.2, found
    before, after = predict(raw, new), predict(Tempered(raw, found), new)
    by_person = [
        (before.log_loss - after.log_loss)[before.clusters == who].mean() for who in set(before.clusters)
    ]
    gain, error = np.mean(by_person), np.std(by_person) / np.sqrt(len(by_person))
    assert gain > 3 * error > 0 and gain > 0.03
    assert gain == pytest.approx(
        found.gain, abs=0.05
    )  # what it said of people it had, of people it never had
    np.testing.assert_array_equal(before.correct, after.correct)


def test_a_model_that_is_not_overconfident_is_hardly_touched(tiny_base: Path, tmp_path: Path) -> None:
    config = bradley_terry.Config(components=2, max_tokens=64)

    def make(rows: pa.Table) -> Scorer:
        return bradley_terry.fit(config, rows, base=tiny_base, seed=0, cache_dir=tmp_path / "vectors")

    learned, new = votes(40, 10, seed=5), votes(40, 10, first=10_000, seed=5)
    raw = make(learned)
    found = tempering.fit(make, learned, seed=0)
    before, after = predict(raw, new), predict(Tempered(raw, found), new)
    assert (before.log_loss - after.log_loss).mean() > -0.01
    assert found.low < 1 < found.high


def test_once_fits_once_on_the_rest_of_a_fold(overfitting: Make) -> None:
    rows, seen, told = votes(20, 10), list[Watched](), list[tuple[int, int]]()
    found = tempering.fit(
        watched(overfitting, seen), rows, FEW, seed=1, once=True, progress=lambda *at: told.append(at)
    )
    assert len(seen) == 1 and told == [(1, 1)]
    assert (found.votes, found.users) == (50, 5)
    assert seen[0].learned.num_rows == 150


def test_only_what_may_tell_it_does(overfitting: Make) -> None:
    rows = votes(12, 10)
    single = table(
        [row(900 + n, rejected=None, label=True, margin=None, user_id=f"ürsula-0-{n}") for n in range(12)]
    )
    rows = pa.concat_tables([rows, single])
    told = np.array([n % 3 > 0 for n in range(rows.num_rows)])
    found = tempering.fit(overfitting, rows, FEW, told=told, seed=1)
    assert found.votes == 80  # of 120 pairs; single replies tell nothing


def test_without_ids_prompts_are_who_they_are_of(overfitting: Make) -> None:
    rows = votes(12, 10, prompts=30)
    at = rows.schema.get_field_index("user_id")
    nobody = rows.set_column(at, rows.schema.field(at), pa.nulls(120, pa.string()))
    found = tempering.fit(overfitting, nobody, FEW, seed=1)
    assert (found.votes, found.users) == (120, 30)


def test_the_order_of_rows_changes_nothing(overfitting: Make) -> None:
    rows = votes(12, 10, prompts=40)
    turned = rows.take(np.random.default_rng(1).permutation(120))
    a, b = (tempering.fit(overfitting, each, FEW, seed=1) for each in (rows, turned))
    assert (a.votes, a.users, a.reason) == (b.votes, b.users, b.reason)
    assert a.estimate == pytest.approx(b.estimate, rel=1e-6)


@pytest.mark.parametrize("people, each", [(0, 0), (1, 200), (30, 1)])
def test_with_few_votes_or_people_nothing_is_fitted_and_it_says_why(people: int, each: int) -> None:
    def never(rows: pa.Table) -> Scorer:
        raise AssertionError("a fit for nothing")

    found = tempering.fit(never, votes(people, each), seed=0)
    assert found.tau == 1 and np.isnan(found.estimate)
    assert f"{people * each} held-out votes of {people} people are too few" in found.reason
    assert found.sentence.startswith("The temperature stays 1. ")


def test_too_few_rows_without_a_fold_leave_it_alone(overfitting: Make) -> None:
    everybody_on_one_prompt = votes(30, 10, prompts=1)
    found = tempering.fit(overfitting, everybody_on_one_prompt, FEW, seed=0)
    assert found.tau == 1 and "too few rows are left to fit: 0, at least 12" in found.reason
