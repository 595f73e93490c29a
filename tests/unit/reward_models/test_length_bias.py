"""Length's share of a reward, what people's own love of it is, and taking the rest out."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from reward_models import bradley_terry, length_bias, ties
from reward_models.length_bias import NAMES, LengthControlled
from reward_models.scorer import RewardModelError
from tests.unit.reward_models.made import row, shorter_wins, table, text


def found(d, lean, choice, longer) -> dict[str, float]:
    values = length_bias.correlations(length_bias.moments(d, lean, choice, longer).sum(axis=0))
    return dict(zip(NAMES, values.tolist(), strict=True))


def people(seed: int, count: int = 4000, love: float = 0.0):
    """(quality, longer, choice): people choose by quality and, as much as `love`, by length."""
    rng = np.random.default_rng(seed)
    quality, longer = rng.normal(0, 1.5, count), rng.normal(0, 0.8, count)
    p = ties.probabilities(quality + love * longer, -0.3)
    outcome = (rng.random(count)[:, None] > p.cumsum(axis=1)).sum(axis=1)
    return quality, longer, 1.0 - outcome


def lean_of(d):
    p = ties.probabilities(d, -0.3)
    return p[:, 0] - p[:, 2]


def test_correlations_by_hand():
    d, longer = np.array([2.0, -1.0, 1.0]), np.array([1.0, 1.0, 0.0])
    got = found(d, np.array([0.5, -0.25, 0.9]), np.array([1.0, 0.0, -1.0]), longer)
    assert got["pearson"] == pytest.approx(1 / np.sqrt(6 * 2))  # (2 - 1 + 0) / sqrt(6 * 2)
    assert got["people"] == pytest.approx(1 / np.sqrt(2 * 2))
    assert got["expected"] == pytest.approx(0.25 / 2) and got["excess"] == pytest.approx(-0.375)


def test_they_are_those_of_every_pair_in_both_orders():
    rng = np.random.default_rng(2)
    d, longer = rng.normal(size=60).round(1), rng.normal(size=60).round(1)  # rounded: ties among ranks
    got = found(d, d / 10, np.sign(d), longer)
    both, both_longer = np.append(d, -d), np.append(longer, -longer)
    assert got["pearson"] == pytest.approx(pearsonr(both, both_longer).statistic)
    assert got["spearman"] == pytest.approx(spearmanr(both, both_longer).statistic)
    turned = np.where(rng.random(60) < 0.5, -1.0, 1.0)
    assert found(d * turned, d / 10 * turned, np.sign(d) * turned, longer * turned) == pytest.approx(got)


def test_honest_love_of_length_is_no_excess_and_a_biased_reward_is():
    quality, longer, choice = people(3, love=1.0)
    honest = quality + longer
    fair = found(honest, lean_of(honest), choice, longer)
    assert fair["pearson"] > 0.4 and fair["people"] > 0.2 and abs(fair["excess"]) < 0.04
    biased = quality + 3 * longer
    assert found(biased, lean_of(biased), choice, longer)["excess"] > 0.2
    assert found(quality, lean_of(quality), choice, longer)["excess"] < -0.1  # blind to what people like


def test_slope_takes_out_what_people_do_not_pay_for():
    quality, longer, choice = people(4, count=8000, love=0.5)
    biased = quality + 2.0 * longer
    slope = length_bias.slope(ties.probabilities(biased, -0.3), choice, longer)
    assert slope == pytest.approx(1.5, abs=0.12)  # 2 less people's own 0.5; 0.12 is three standard errors
    mended = biased - slope * longer
    after = found(mended, lean_of(mended), choice, longer)
    assert after["excess"] == pytest.approx(0, abs=1e-4)  # the slope's own equation, but for the ridge
    none = length_bias.slope(ties.probabilities(biased, -0.3), choice, longer, "zero")
    assert found(biased - none * longer, lean_of(mended), choice, longer)["pearson"] == pytest.approx(
        0, abs=1e-9
    )


def test_slope_is_finite_where_the_longer_always_wins_and_refuses_equal_lengths():
    d = np.zeros(50)
    p = ties.probabilities(d, ties.NO_TIES)
    assert -30 < length_bias.slope(p, np.ones(50), np.ones(50)) < -5
    with pytest.raises(RewardModelError, match="lengths differ"):
        length_bias.slope(p, np.ones(50), np.zeros(50))
    with pytest.raises(RewardModelError, match="no such target"):
        length_bias.slope(p, np.ones(50), np.ones(50), "none")  # type: ignore[arg-type]


def test_debias_recovers_quality_from_quality_and_length():
    rng = np.random.default_rng(5)
    groups = np.repeat([f"prompt é{i}" for i in range(300)], 4)
    hard = np.repeat(rng.normal(0, 5, 300), 4)  # prompts differ in level and in length: neither counts
    words = rng.normal(5, 0.7, 1200) + hard / 5
    quality = rng.normal(size=1200)
    mended = length_bias.debias(quality + 0.9 * words + hard, words, groups)
    kept = length_bias.within(mended, groups)
    assert np.corrcoef(kept, length_bias.within(quality, groups))[0, 1] > 0.995
    assert kept @ length_bias.within(words, groups) == pytest.approx(0, abs=1e-8)
    half = length_bias.debias(quality + 0.9 * words + hard, words, groups, 0.5)
    slope = np.polyfit(length_bias.within(words, groups), length_bias.within(half, groups), 1)[0]
    assert slope == pytest.approx(0.45, abs=0.06)


def test_debias_takes_style_out_too_and_keeps_group_means():
    rng = np.random.default_rng(6)
    groups = np.repeat(np.arange(200), 3)
    words, lists, quality = rng.normal(size=600), rng.poisson(1.0, 600).astype(float), rng.normal(size=600)
    rewards = quality + words + 2 * lists
    mended = length_bias.debias(rewards, words, groups, style=np.column_stack([lists, np.ones(600)]))
    assert np.corrcoef(length_bias.within(mended, groups), length_bias.within(quality, groups))[0, 1] > 0.99
    means = [np.bincount(groups, weights=v) / 3 for v in (mended, rewards)]
    np.testing.assert_allclose(*means)


def test_debias_of_nothing_of_single_replies_and_of_nonsense():
    assert length_bias.debias(np.zeros(0), np.zeros(0), np.zeros(0)).shape == (0,)
    alone = length_bias.debias(np.array([1.0, 2.0]), np.array([3.0, 9.0]), np.array(["a", "b"]))
    assert alone.tolist() == [1.0, 2.0]  # nothing to compare within a group
    with pytest.raises(RewardModelError, match="share"):
        length_bias.debias(np.ones(2), np.ones(2), np.zeros(2), strength=2)
    with pytest.raises(RewardModelError, match="finite"):
        length_bias.debias(np.array([1.0, np.nan]), np.ones(2), np.zeros(2))


def test_nothing_varies_gives_nan_not_a_number():
    got = found(np.zeros(5), np.zeros(5), np.zeros(5), np.ones(5))
    assert np.isnan(list(got.values())).all()
    assert np.isnan(list(found(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)).values())).all()


def test_words_are_counted_in_any_script():
    np.testing.assert_allclose(length_bias.log_words(["", "Ça va bien?", "你好 世界"]), np.log([1, 4, 3]))
    assert length_bias.log_words([]).shape == (0,)


def test_a_real_scorer_loses_its_length_slope_and_comes_back_from_disk(tiny_base: Path, tmp_path: Path):
    inner = bradley_terry.fit(
        bradley_terry.Config(components=2, max_tokens=64), shorter_wins(60), base=tiny_base, seed=0
    )
    dice = random.Random(1)
    rows = table(
        [
            row(
                n,
                chosen=text(dice.randint(2, 15), dice),
                rejected=text(dice.randint(2, 15), dice),
                user_id=None,
            )
            for n in range(80)
        ]
    )
    controlled = length_bias.length_controlled(inner, rows, "zero")
    chats, texts = rows["prompt"].to_pylist() * 2, rows["chosen"].to_pylist() + rows["rejected"].to_pylist()
    raw, mended = (s.score(chats, texts) for s in (inner, controlled))
    words = length_bias.log_words(texts)
    longer = words[:80] - words[80:]
    assert (raw.mean[:80] - raw.mean[80:]) @ longer < -1  # it learned that shorter wins
    assert (mended.mean[:80] - mended.mean[80:]) @ longer == pytest.approx(0, abs=1e-8)
    np.testing.assert_array_equal(mended.std, raw.std)
    controlled.save(tmp_path / "m")
    again = length_bias.load_length_controlled(tmp_path / "m", tiny_base)
    assert isinstance(again, LengthControlled) and again.trained_on == inner.trained_on
    np.testing.assert_allclose(again.score(chats, texts).mean, mended.mean)
    fair = length_bias.length_controlled(inner, rows)  # these people choose at random
    rewards = fair.score(chats, texts).mean
    p = fair.probabilities(rewards[:80] - rewards[80:])
    assert (1 - p[:, 0] + p[:, 2]) @ longer == pytest.approx(
        0, abs=1.0
    )  # nearly as they choose: no love of the other way is added
    assert (1 - lean_raw(inner, raw.mean)) @ longer > 5  # and before, not


def lean_raw(scorer, rewards):
    p = scorer.probabilities(rewards[:80] - rewards[80:])
    return p[:, 0] - p[:, 2]


def test_a_slope_hears_pairs_by_their_weight():
    p = ties.probabilities(np.array([1.0, -1.0]), -0.3)
    choice, longer = np.array([1.0, 1.0]), np.array([1.0, 1.0])
    light = length_bias.slope(p, choice, longer, "zero", np.array([3.0, 1.0]))
    assert light == pytest.approx((3 * 1.0 - 1 * 1.0) / 4)
