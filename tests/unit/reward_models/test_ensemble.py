"""Ensembles: weights over people, what is a difference and what an offset, abstaining, whole models on a tiny base."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from reward_models import bradley_terry, ensemble, preference_lm, scorer, ties
from reward_models.bootstrap import clusters, weights_of_members
from reward_models.heldout import predict
from reward_models.low_rank import LowRankConfig
from reward_models.personal import Config as PersonalConfig
from reward_models.scorer import NotEnoughVotes, RewardModelError
from tests.unit.reward_models.made import row, shorter_wins, table, text

CONFIG = ensemble.Config(bradley_terry=bradley_terry.Config(components=4, max_tokens=64))
PROMPT = [{"role": "user", "content": "What about the harbour?"}]
SHORT, LONG = "Nets and gulls.", "Nets and gulls and bread and sugar and milk and apples and wind and rust."


def votes(count: int, *, first: int = 0, seed: int = 0, people: int = 10) -> list[dict[str, Any]]:
    """Shorter replies win three times of four."""
    dice = random.Random(seed)
    rows = shorter_wins(count, first=first, seed=seed).to_pylist()
    for number, made in enumerate(rows):
        made["user_id"] = f"person {number % people}"
        if dice.random() < 0.25:
            made["chosen"], made["rejected"] = made["rejected"], made["chosen"]
    return rows


@pytest.fixture(scope="module")
def fitted(tiny_base: Path) -> ensemble.Ensemble:
    return ensemble.fit(CONFIG, table(votes(80)), base=tiny_base, seed=0)


# --- whom the members heard


def test_no_row_is_lost_and_a_persons_rows_have_one_weight() -> None:
    codes = np.repeat(np.arange(200), 3)
    factors = weights_of_members(codes, 50, seed=0)
    assert factors.shape == (50, 600) and (factors > 0).all()
    assert (np.ptp(factors.reshape(50, 200, 3), axis=2) == 0).all()
    np.testing.assert_allclose(factors.mean(axis=1), 1, atol=0.01)
    # Flat Dirichlet of 200, times 200: variance 199 / 201 of each.
    assert factors[:, ::3].var() == pytest.approx(199 / 201, rel=0.1)
    np.testing.assert_array_equal(factors, weights_of_members(codes, 50, seed=0))
    assert (factors != weights_of_members(codes, 50, seed=1)).any()
    assert weights_of_members(np.zeros(0, int), 3, seed=0).shape == (3, 0)


def test_the_bootstrap_of_a_mean_has_the_means_standard_error() -> None:
    dice = np.random.default_rng(4)
    values = dice.normal(size=100)
    factors = weights_of_members(np.arange(100), 4000, seed=0)
    means = (factors * values).mean(axis=1)
    # Rubin 1981: variance of the sample, divided by n + 1.
    assert means.std() == pytest.approx(values.std() / np.sqrt(101), rel=0.05)


def test_people_vary_and_where_they_are_few_prompts_or_rows_do() -> None:
    def told(rows: list[dict[str, Any]]) -> list[int]:
        codes = clusters(table(rows))
        return np.unique(codes, return_inverse=True)[1].tolist()

    many = [row(n, user_id=f"ü{n // 2:02}") for n in range(20)]
    assert told(many) == [n // 2 for n in range(20)]
    crowd = [row(n, user_id=None, prompt_key=f"p{n // 4:02}") for n in range(40)]
    assert told(crowd) == [n // 4 for n in range(40)]
    alone = [row(n, user_id="me", prompt_key=f"p{n // 2:02}") for n in range(20)]
    assert told(alone) == [n // 2 for n in range(20)]
    one_prompt = [row(n, user_id="me", prompt_key="p") for n in range(5)]
    assert told(one_prompt) == [0, 1, 2, 3, 4]
    assert told([]) == []
    # A person whose id is a prompt's key is not that prompt.
    mixed = [row(n, user_id=f"k{n}", prompt_key="x") for n in range(8)]
    assert len(set(told([*mixed, row(8, user_id=None, prompt_key="k1")]))) == 9


# --- what members say together


def test_mean_and_standard_deviation_by_hand() -> None:
    mean = np.array([[1.0, 0.0], [2.0, 0.0], [6.0, 3.0]])
    std = np.array([[0.0, np.nan], [1.0, np.nan], [2.0, np.nan]])
    told = ensemble.combined(mean, std)
    np.testing.assert_allclose(told.mean, [3.0, 1.0])
    # Between: (4 + 1 + 9) / 2 = 7 and (1 + 1 + 4) / 2 = 3; own: (0 + 1 + 4) / 3 and none.
    np.testing.assert_allclose(told.std, np.sqrt([7 + 5 / 3, 3.0]))


def test_it_abstains_by_the_difference_alone() -> None:
    # Members' differences: mean 1, standard deviation sqrt(((-1)^2 + 1^2) / 1) = 1.414.
    difference = np.array([[0.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    assert ensemble.too_close(difference, 1.0).tolist() == [True, False, False]
    assert ensemble.too_close(difference, 0.7).tolist() == [False, False, False]


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_standard_deviation_is_that_of_other_samples_of_people(spread: float) -> None:
    """30 people with 8 votes each, heard again and again; tastes the same, or differing by `spread`."""
    dice = np.random.default_rng(1)
    shared, probe = np.array([1.0, -0.5, 0.3, 0.0]), np.vstack([np.eye(4), np.ones(4)])
    codes = np.repeat(np.arange(30), 8)
    found, told = [], []
    for sample in range(60):
        x = dice.standard_normal((240, 4))
        taste = shared + spread * dice.standard_normal((30, 4))
        won = dice.random(240) < 1 / (1 + np.exp(-(x * taste[codes]).sum(axis=1)))
        outcome = np.where(won, ties.WIN, ties.LOSS)
        members = [ties.fit(x, outcome, f, 1.0) for f in weights_of_members(codes, 5, seed=sample)]
        own = [np.sqrt(np.einsum("bi,ij,bj->b", probe, m.covariance, probe)) for m in members]
        rewards = ensemble.combined(np.array([probe @ m.weights for m in members]), np.array(own))
        found.append(probe @ ties.fit(x, outcome, np.ones(240), 1.0).weights)
        told.append(rewards.std**2)
    ratio = np.sqrt(np.mean(told, axis=0)) / np.std(found, axis=0, ddof=1)
    assert (ratio > 1).all() and (ratio < 2).all(), ratio


# --- whole models


def test_it_scores_like_its_members_around_one_zero(fitted: ensemble.Ensemble) -> None:
    rows = table(votes(20, first=500, seed=7)).to_pydict()
    told = [m.score(rows["prompt"], rows["chosen"]) for m in fitted.members]
    together = fitted.score(rows["prompt"], rows["chosen"])
    own = np.array([t.mean for t in told]) - fitted.zero[:, None]
    np.testing.assert_allclose(together.mean, own.mean(axis=0))
    assert (together.std > np.array([t.std for t in told]).min(axis=0)).all()
    assert np.std([m.fitted.weights for m in fitted.members], axis=0).max() > 0.01  # they heard differently
    assert predict(fitted, shorter_wins(60, first=1000, seed=1)).correct.mean() > 0.9
    assert fitted.trained_on == frozenset(r["preference_id"] for r in votes(80))
    empty = fitted.score([], [])
    assert empty.mean.shape == empty.std.shape == (0,)


def test_offsets_of_members_do_not_count(fitted: ensemble.Ensemble) -> None:
    class Moved:
        def __init__(self, member: Any, by: float) -> None:
            self.member, self.by = member, by

        def score(self, *given: Any) -> scorer.Rewards:
            told = self.member.score(*given)
            return scorer.Rewards(told.mean + self.by, told.std)

    by = [3.0, -1.0, 10.0, 0.0, 0.5]
    moved = ensemble.Ensemble(
        CONFIG,
        tuple(Moved(m, b) for m, b in zip(fitted.members, by, strict=True)),
        fitted.zero + np.array(by),
    )
    ours, theirs = (e.score([PROMPT] * 2, [SHORT, LONG]) for e in (fitted, moved))
    np.testing.assert_allclose(ours.mean, theirs.mean)
    np.testing.assert_allclose(ours.std, theirs.std)
    np.testing.assert_allclose(
        fitted.differences([PROMPT], [SHORT], [LONG]), moved.differences([PROMPT], [SHORT], [LONG])
    )


def test_it_is_less_sure_of_replies_unlike_those_it_heard_about(fitted: ensemble.Ensemble) -> None:
    rows = table(votes(40, first=500, seed=7)).to_pydict()
    like = fitted.score(rows["prompt"], rows["chosen"]).std
    strange = ["• 7!\n• 8?\n```x```\n" * 20, "Çà 🙂 " * 60, "# I can't. Perhaps you might? " * 40]
    assert fitted.score([PROMPT] * 3, strange).std.min() > np.median(like)
    assert fitted.score([PROMPT] * 3, strange).std.mean() > 2 * like.mean()


def test_it_abstains_where_replies_are_alike(fitted: ensemble.Ensemble) -> None:
    dice = random.Random(3)
    prompts, n = [PROMPT] * 60, 60
    same = [text(6, dice) for _ in range(n)], [text(6, dice) for _ in range(n)]
    apart = [text(3, dice) for _ in range(n)], [text(14, dice) for _ in range(n)]
    unsure, sure = (fitted.abstains(prompts, *pair) for pair in (same, apart))
    assert unsure.shape == (n,) and unsure.dtype == bool
    assert unsure.mean() > 0.1 and sure.mean() < 0.05
    assert fitted.abstains([PROMPT], [SHORT], [SHORT]).tolist() == [
        False
    ]  # no difference, and no doubt of it


def test_probabilities_are_the_means_of_members(fitted: ensemble.Ensemble) -> None:
    d = np.array([-1.0, 0.0, 2.0])
    expected = np.mean([m.probabilities(d) for m in fitted.members], axis=0)
    np.testing.assert_allclose(fitted.probabilities(d), expected)
    pair = fitted.compare([PROMPT], [SHORT], [LONG])
    assert pair.shape == (1, 3) and pair.sum() == pytest.approx(1) and pair[0, ties.WIN] > 0.5


def test_saved_and_loaded_it_is_the_same_and_an_older_larger_one_leaves_nothing(
    fitted: ensemble.Ensemble, tiny_base: Path, tmp_path: Path
) -> None:
    (tmp_path / "member-7").mkdir()
    fitted.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *(f"member-{n}" for n in range(5)),
        "reward_model.json",
    ]
    again = scorer.load(tmp_path, tiny_base, tmp_path / "cache")
    assert isinstance(again, ensemble.Ensemble) and again.config == CONFIG
    ours, theirs = (e.score([PROMPT] * 2, [SHORT, LONG]) for e in (fitted, again))
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(ours.std, theirs.std)
    assert again.trained_on == fitted.trained_on
    (tmp_path / "member-2" / "reward_model.json").unlink()
    with pytest.raises(RewardModelError, match="cannot be read"):
        scorer.load(tmp_path, tiny_base)


def test_the_seed_and_not_the_order_of_rows_decides(fitted: ensemble.Ensemble, tiny_base: Path) -> None:
    rows = votes(80)
    again = ensemble.fit(CONFIG, table(rows[::-1]), base=tiny_base, seed=0)
    other = ensemble.fit(CONFIG, table(rows), base=tiny_base, seed=1)
    ours, theirs, others = (e.score([PROMPT], [LONG]) for e in (fitted, again, other))
    assert (ours.mean, ours.std) == (theirs.mean, theirs.std)
    assert ours.mean != others.mean


def test_rows_that_members_do_not_hear_change_nothing(fitted: ensemble.Ensemble, tiny_base: Path) -> None:
    unheard = [row(900, rejected=None, label=True, margin=None, user_id="z"), row(901, weight=0.0)]
    again = ensemble.fit(CONFIG, table([*votes(80), *unheard]), base=tiny_base, seed=0)
    assert again.score([PROMPT], [LONG]).mean == fitted.score([PROMPT], [LONG]).mean
    with pytest.raises(NotEnoughVotes):
        ensemble.fit(CONFIG, table([]), base=tiny_base, seed=0)


def test_members_may_know_who_asks(tiny_base: Path, tmp_path: Path) -> None:
    rows = shorter_wins(120).to_pylist()
    for number, made in enumerate(rows):
        made["user_id"] = f"person {number % 12}"
        if number % 2:
            made["chosen"], made["rejected"] = made["rejected"], made["chosen"]
    own = PersonalConfig(components=2, max_tokens=64, taste=LowRankConfig(rank=1, rounds=4))
    config = ensemble.Config(member="personal", members=2, personal=own)
    model = ensemble.fit(config, table(rows), base=tiny_base, seed=0, cache_dir=tmp_path / "cache")

    def gap(user: str | None) -> float:
        return float(model.differences([PROMPT], [LONG], [SHORT], [user]).mean())

    assert gap("person 0") < gap(None) < gap("person 1")
    assert model.compare([PROMPT], [LONG], [SHORT], ["person 1"])[0, ties.WIN] > 0.5


def test_who_asks_and_who_answers_reaches_every_member() -> None:
    class Fond:
        """Likes what one agent answers to one person."""

        def score(self, _: Any, texts: Any, users: Any, agents: Any) -> scorer.Rewards:
            fond = [float(u == "ü" and a == "guard") for u, a in zip(users, agents, strict=True)]
            return scorer.Rewards(np.array(fond) * [len(t) for t in texts], np.full(len(texts), np.nan))

    model = ensemble.Ensemble(CONFIG, (Fond(), Fond()), np.zeros(2))
    asked = {"user_ids": ["ü", "ü", None], "agents": ["guard", None, "guard"]}
    assert model.score([PROMPT] * 3, ["ab"] * 3, **asked).mean.tolist() == [2, 0, 0]
    found = model.differences([PROMPT] * 3, ["abc"] * 3, ["a"] * 3, **asked)
    assert found.tolist() == [[2, 0, 0], [2, 0, 0]]
    assert model.abstains([PROMPT] * 3, ["abc"] * 3, ["a"] * 3, **asked).tolist() == [False] * 3


def test_networks_that_differ_by_their_seeds(tiny_base: Path, tmp_path: Path) -> None:
    own = preference_lm.Config(learning_rate=3e-3, max_tokens=64, lora_r=2, min_rows=16)
    config = ensemble.Config(member="preference_lm", members=2, variation="deep", preference_lm=own)
    told: list[tuple[int, int]] = []
    model = ensemble.fit(config, shorter_wins(32), base=tiny_base, seed=0, progress=lambda *a: told.append(a))
    rewards = model.score([PROMPT] * 2, [SHORT, LONG])
    assert (rewards.std > 0).all()  # one network says nothing of its own uncertainty, two do
    assert told == sorted(told) and told[-1][0] == told[-1][1]
    model.save(tmp_path)
    again = scorer.load(tmp_path, tiny_base).score([PROMPT] * 2, [SHORT, LONG])
    np.testing.assert_array_equal(rewards.std, again.std)


def test_settings_under_which_all_members_are_one_are_refused() -> None:
    with pytest.raises(ValidationError, match="times the same bradley_terry"):
        ensemble.Config(variation="deep")
    with pytest.raises(ValidationError):
        ensemble.Config(members=1)
    with pytest.raises(ValidationError):
        ensemble.Config(member="ensemble")
