"""Who happens to rate: what selects is found and undone, what does not is left alone, and what hides is bounded."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from evaluation.estimates import Estimate, bootstrap_ratio
from reward_models.rating_model import Served, logistic
from reward_models.rating_propensity import (
    Config,
    calibrated,
    cap_for,
    effective_size,
    known_when_served,
    sensitivity,
    verdict,
    weigh,
)
from reward_models.scorer import RewardModelError


def served(rated: np.ndarray, features: np.ndarray | None = None, **known: np.ndarray | None) -> Served:
    features = np.zeros((len(rated), 0)) if features is None else features
    return Served(known.pop("user", None), known.pop("agent", None), features, rated, **known)


def long_replies_are_rated_more(seed: int, n: int = 6000) -> tuple[Served, np.ndarray]:
    """Long replies are rated more and liked more; noise columns beside; who rates does not depend on liking."""
    dice = np.random.default_rng(seed)
    x = dice.normal(size=(n, 4))
    liked = dice.random(n) < expit(1.2 * x[:, 0])
    rated = dice.random(n) < expit(-1.5 + 1.0 * x[:, 0])
    user = np.array([f"user-{i}" for i in dice.integers(0, 300, n)], dtype=object)
    return served(rated, x, user=user), liked


def shares(data: Served, liked: np.ndarray, weight: np.ndarray) -> tuple[Estimate, Estimate]:
    """Share of liked among the rated: raw and weighted, with intervals over users."""
    assert data.user is not None
    yes, who = liked[data.rated].astype(float), data.user[data.rated]
    return (
        bootstrap_ratio(yes, np.ones(len(yes)), who, seed=0),
        bootstrap_ratio(yes * weight, weight, who, seed=0),
    )


def test_selection_by_what_is_known_is_undone() -> None:
    held = 0
    for seed in range(4):
        data, liked = long_replies_are_rated_more(seed)
        found = weigh(data)
        raw, weighted = shares(data, liked, found.weight)
        assert raw.low > liked.mean() + 0.05  # biased, and sure of it
        held += weighted.low <= liked.mean() <= weighted.high
        assert abs(weighted.value - liked.mean()) < 0.25 * abs(raw.value - liked.mean())
        assert found.weight.mean() == pytest.approx(1)
        assert found.report.effective < found.report.rated
    assert held >= 3


def test_propensities_are_those_of_the_simulation() -> None:
    data, _ = long_replies_are_rated_more(0)
    report = weigh(data).report
    truth = expit(-1.5 + data.features[:, 0])
    assert np.abs(weigh(data).propensity - truth).mean() < 0.02
    assert sum(n for _, _, n in report.calibration) == len(truth)
    for predicted, observed, n in report.calibration:
        assert abs(predicted - observed) < 4 * (predicted * (1 - predicted) / n) ** 0.5
    # The gain is that of the truth over the constant, but for what was lost in learning it.
    best = -np.where(data.rated, np.log(truth), np.log1p(-truth)).mean()
    constant = -np.where(data.rated, np.log(data.rated.mean()), np.log1p(-data.rated.mean())).mean()
    assert report.gain == pytest.approx(constant - best, abs=0.005)


def test_people_who_rate_much_and_like_everything() -> None:
    dice = np.random.default_rng(3)
    people, each = 400, 40
    rate = dice.beta(1.2, 4, people)
    user = np.repeat(np.arange(people), each)
    liked = dice.random(len(user)) < (0.2 + 0.7 * (rate > 0.25))[user]
    rated = dice.random(len(user)) < rate[user]
    data = served(rated, user=np.array([f"ü-{u}" for u in user], dtype=object))
    found = weigh(data, Config(max_weight=50))
    raw, weighted = shares(data, liked, found.weight)
    assert raw.low > liked.mean() + 0.1
    assert abs(weighted.value - liked.mean()) < 0.25 * (raw.value - liked.mean())
    assert weighted.low <= liked.mean() <= weighted.high


def test_where_nothing_selects_nothing_is_corrected() -> None:
    touched = 0
    for seed in range(12):
        dice = np.random.default_rng(seed)
        user = np.array([f"user-{u}" for u in dice.integers(0, 60, 800)], dtype=object)
        agent = np.array(["a", "b", None], dtype=object)[dice.integers(0, 3, 800)]
        found = weigh(
            served(
                dice.random(800) < 0.3,
                dice.normal(size=(800, 5)),
                user=user,
                agent=agent,
                position=dice.integers(0, 9, 800),
            )
        )
        touched += found.report.corrected
        if not found.report.corrected:
            np.testing.assert_array_equal(found.weight, np.ones(len(found.weight)))
            assert found.report.effective == len(found.weight)
            assert "every rating counts the same" in found.report.sentence
            assert "does not tell who rates" in found.report.why_not
    assert touched <= 2  # 5 % of 12 is less than one


def test_agents_and_places_in_the_session_select_too() -> None:
    dice = np.random.default_rng(5)
    n = 4000
    agent = np.array(["coder", "writer", None], dtype=object)[dice.integers(0, 3, n)]
    position = dice.integers(0, 12, n)
    truth = np.where(agent == "coder", 0.5, 0.15) * np.where(position == 0, 0.4, 1.0)
    rated = dice.random(n) < truth
    both = weigh(served(rated, agent=agent, position=position))
    neither = weigh(served(rated))
    assert both.report.corrected and not neither.report.corrected
    assert np.corrcoef(both.propensity, truth)[0, 1] > 0.95
    assert both.report.gain > weigh(served(rated, agent=agent)).report.gain > 0


def test_a_rows_own_rating_has_no_part_in_its_propensity() -> None:
    data, _ = long_replies_are_rated_more(1, n=600)
    config = Config(ridges=(10.0,))
    before = weigh(data, config)
    for i in (0, 17, 599):
        other = data.rated.copy()
        other[i] = ~other[i]
        after = weigh(Served(data.user, None, data.features, other), config)
        assert after.propensity[i] == before.propensity[i]
        # The same person's other replies are touched: they have one rating more or less beside them.
        assert data.user is not None
        same = (data.user == data.user[i]) & (np.arange(600) != i)
        assert (after.propensity[same] != before.propensity[same]).all()


def test_what_belongs_together_is_in_one_fold() -> None:
    """Twins of one conversation would give each other away: without folds by conversation the gain is invented."""
    dice = np.random.default_rng(2)
    talk = np.repeat(np.arange(200), 3)
    rated = np.repeat(dice.random(200) < 0.5, 3)
    mark = np.eye(200)[talk] * 30
    apart = weigh(served(rated, mark))
    together = weigh(served(rated, mark, together=talk.astype(object)))
    assert apart.report.corrected
    assert not together.report.corrected


def test_effective_size_and_cap_by_hand() -> None:
    weight = np.array([1.0, 1.0, 2.0])
    assert effective_size(weight) == pytest.approx(16 / 6)
    assert effective_size(np.ones(7)) == 7
    assert effective_size(np.zeros(0)) == 0
    assert cap_for(weight, 10.0, 0.8) == 10.0  # 16/18 is enough
    # Two ones and c: (2 + c)^2 / (2 + c^2) = 2.88 has the roots (4 ± sqrt(16 - 4 * 1.88 * 1.76)) / 3.76.
    assert cap_for(weight, 10.0, 0.96) == pytest.approx((4 + (16 - 4 * 1.88 * 1.76) ** 0.5) / 3.76)
    assert cap_for(weight, 1.5, 0.8) == 1.5
    assert cap_for(np.array([1.0, 1.0, 100.0]), 1000.0, 1.0) == pytest.approx(1.0)


def test_caps_are_counted_and_lowered_as_far_as_needed() -> None:
    data, _ = long_replies_are_rated_more(4)
    free = weigh(data, Config(max_weight=1000, min_effective_share=0.01)).report
    assert free.capped == 0 and not free.cap_lowered
    assert free.effective == free.effective_uncapped
    at_two = weigh(data, Config(max_weight=2, min_effective_share=0.01))
    stabilised = data.rated.mean() / at_two.propensity[data.rated]
    cut = np.minimum(stabilised, 2)
    np.testing.assert_allclose(at_two.weight, cut / cut.mean())
    assert at_two.report.capped == (stabilised > 2).sum() > 0
    strict = weigh(data, Config(max_weight=1000, min_effective_share=0.9))
    assert strict.report.cap_lowered and "lowered" in strict.report.sentence
    assert effective_size(strict.weight) / len(strict.weight) == pytest.approx(0.9, abs=1e-6)
    assert strict.report.effective_uncapped == pytest.approx(free.effective)


def test_calibration_by_hand() -> None:
    p = np.array([0.9, 0.1, 0.5])
    assert calibrated(p, np.array([True, False, True])) == ((0.1, 0.0, 1), (0.5, 1.0, 1), (0.9, 1.0, 1))
    assert calibrated(np.zeros(0), np.zeros(0, bool)) == ()


def test_the_logistic_fit_is_at_its_maximum() -> None:
    dice = np.random.default_rng(0)
    x = dice.normal(size=(500, 3))
    y = dice.random(500) < expit(0.5 + x @ np.array([1.0, -1.0, 0.0]))
    theta = logistic(x, y, ridge=2.0)
    residual = y - expit(theta[0] + x @ theta[1:])
    assert residual.sum() == pytest.approx(0, abs=0.05)  # the intercept has no prior
    np.testing.assert_allclose(x.T @ residual, 2.0 * theta[1:], atol=0.05)
    # Without columns it is the share.
    assert logistic(np.zeros((4, 0)), np.array([True, False, False, False]), 1.0)[0] == pytest.approx(
        logit(0.25)
    )


def test_sensitivity_by_hand() -> None:
    liked, weight = np.array([True, False]), np.ones(2)
    assert sensitivity(liked, weight, 1) == (0.5, 0.5)
    assert sensitivity(liked, weight, 2) == pytest.approx((1 / 3, 2 / 3))
    assert sensitivity(liked, np.array([3.0, 1.0]), 3) == pytest.approx((0.5, 0.9))
    assert sensitivity(np.ones(3, bool), np.ones(3), 5) == (1.0, 1.0)
    assert sensitivity(np.zeros(0, bool), np.zeros(0), 2) == (0.0, 1.0)
    with pytest.raises(RewardModelError):
        sensitivity(liked, weight, 0.5)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("gamma", [0.25, 1.0, 4.0])
def test_sensitivity_holds_the_truth_where_liking_selects(rate: float, gamma: float) -> None:
    """Exact shares, no sampling: strata of replies that differ in how liked and how rated they are."""
    truth = np.array([0.1, 0.5, 0.8])  # share of liked in three equally large strata
    dislikers = np.array([rate, rate / 2, rate / 3])  # probability that one who does not like rates
    likers = expit(logit(dislikers) + np.log(gamma))
    among = truth * likers + (1 - truth) * dislikers
    # Rated likers and dislikers of each stratum, weighted by the inverse of its propensity.
    weight = np.concatenate([truth * likers / among, (1 - truth) * dislikers / among])
    liked = np.arange(6) < 3
    low, high = sensitivity(liked, weight, 4.0)
    assert low <= truth.mean() <= high
    if gamma != 1 and rate <= 0.3:
        pulled = sensitivity(liked, weight, 1.01)
        assert not pulled[0] <= truth.mean() <= pulled[1]  # weights alone do not mend it
    if rate == 0.01:  # in one stratum, where hardly anybody rates, the bound is reached
        one = sensitivity(liked[[0, 3]], weight[[0, 3]], 4.0)
        assert {0.25: one[1], 1.0: 0.1, 4.0: one[0]}[gamma] == pytest.approx(0.1, abs=0.01)


def test_too_little_to_compare_is_said() -> None:
    nothing = weigh(served(np.zeros(0, bool)))
    assert nothing.weight.shape == nothing.propensity.shape == (0,)
    assert "0 rated" in nothing.report.sentence
    for value in (True, False):
        one_class = weigh(served(np.full(100, value), np.zeros((100, 1))))
        assert len(one_class.weight) == (100 if value else 0)
        assert (one_class.weight == 1).all()
        assert "too few to compare" in one_class.report.why_not
    alone = weigh(served(np.arange(100) % 2 == 0, user=np.full(100, "one", dtype=object)))
    assert "too few to learn from others" in alone.report.why_not


def test_people_without_a_name_are_each_for_themselves() -> None:
    data, _ = long_replies_are_rated_more(6, n=2000)
    nameless = np.array([None, float("nan")], dtype=object)[np.arange(2000) % 2]
    one = weigh(served(data.rated, data.features, user=nameless))
    other = weigh(served(data.rated, data.features))
    np.testing.assert_array_equal(one.weight, other.weight)
    assert one.report.corrected


@pytest.mark.parametrize(
    "broken",
    [
        lambda: served(np.ones(3, bool), np.full((3, 1), np.nan)),
        lambda: served(np.ones(3, bool), position=np.array([0.0, 1.0, np.nan])),
        lambda: served(np.array([1.0, 0.0, np.nan])),
        lambda: served(np.ones(3, bool), np.zeros((2, 1))),
        lambda: served(np.ones(3, bool), user=np.array(["a"], dtype=object)),
    ],
)
def test_what_is_no_number_or_does_not_fit_is_refused(broken: object) -> None:
    with pytest.raises(RewardModelError):
        broken()  # type: ignore[operator]


def test_the_same_every_time_and_whatever_the_scale() -> None:
    data, _ = long_replies_are_rated_more(7, n=1500)
    one = weigh(data, seed=1)
    np.testing.assert_array_equal(one.weight, weigh(data, seed=1).weight)
    scaled = Served(data.user, None, data.features * 1000 + 5, data.rated)
    np.testing.assert_allclose(weigh(scaled, seed=1).weight, one.weight, rtol=1e-3)


def test_text_that_is_known_when_it_is_served() -> None:
    known = known_when_served(["Wie spät?", ""], ["Zwölf Uhr 🕛.", ""])
    assert known.shape[0] == 2 and np.isfinite(known).all()
    assert known[0].any() and len(set(map(tuple, known))) == 2


def test_the_verdict_is_what_the_interval_says() -> None:
    assert verdict(1.5, 0.2, 2.8) == "The correction helps: +1.5 points [+0.2, +2.8]."
    assert verdict(1.5, -0.2, 2.8).startswith(
        "The correction does not help: +1.5 points [-0.2, +2.8], the interval"
    )
    assert verdict(0.0, 0.0, 0.0).startswith("The correction does not help")
    assert verdict(-2.0, -3.0, -1.0).endswith("it hurts.")


def test_a_sample_of_the_silent_gives_the_weights_of_all():
    data, liked = long_replies_are_rated_more(3, n=20_000)
    whole = weigh(data, Config())
    kept = data.rated | (np.random.default_rng(0).random(len(data.rated)) < 0.3)
    assert data.user is not None
    part = Served(data.user[kept], None, data.features[kept], data.rated[kept], silent_share=0.3)
    sampled = weigh(part, Config())
    assert part.rated.sum() == data.rated.sum()
    assert np.corrcoef(sampled.weight, whole.weight)[0, 1] > 0.99
    assert np.average(liked[data.rated], weights=sampled.weight) == pytest.approx(
        np.average(liked[data.rated], weights=whole.weight), abs=0.01
    )
    assert sampled.propensity[part.rated].mean() == pytest.approx(
        whole.propensity[data.rated].mean(), abs=0.01
    )
    with pytest.raises(RewardModelError, match="share"):
        Served(None, None, data.features, data.rated, silent_share=0.0)
