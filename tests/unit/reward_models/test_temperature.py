"""Temperature scaling against numbers solved by hand, and against simulated people."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reward_models import bradley_terry, temperature, temperature_likelihood, ties
from reward_models.heldout import predict
from reward_models.scorer import RewardModelError
from reward_models.temperature import Config, Tempered
from tests.unit.reward_models.made import shorter_wins


def simulated(users: int, votes_each: int, seed: int, log_nu: float = -0.2):
    """(true differences, outcomes, users)."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(users), votes_each)
    d = rng.normal(0, 1.5, len(who))
    p = ties.probabilities(d, log_nu)
    return d, (rng.random(len(d))[:, None] > p.cumsum(axis=1)).sum(axis=1), who


def repeated(wins: int, tied: int, losses: int):
    """Outcomes with these counts, of ten people who vote alike, half of the pairs turned round."""
    once = np.repeat([ties.WIN, ties.TIE, ties.LOSS], [wins, tied, losses])
    outcome, sign = np.tile(once, 20), np.repeat([1.0, -1.0], len(once) * 10)
    return sign, np.where(sign > 0, outcome, 2 - outcome), np.repeat(np.arange(10).tolist() * 2, len(once))


def test_without_ties_it_is_the_difference_over_the_log_odds_seen():
    sign, outcome, who = repeated(6, 0, 2)  # said with log-odds 2, right three times of four
    found = temperature.fit(ties.probabilities(2 * sign, ties.NO_TIES), outcome, who, seed=1).temperature
    assert found.tau == pytest.approx(2 / np.log(3), rel=1e-3)
    assert (found.reason, found.votes, found.users) == ("", 160, 10)


def test_with_ties_both_numbers_are_those_solved_by_hand():
    sign, outcome, who = repeated(6, 3, 2)
    fitted = temperature.fit(ties.probabilities(2 * sign, 0.4), outcome, who, seed=1)
    found = fitted.temperature
    # e^(2 / tau) = 6 / 2 and nu e^shift = 3 / sqrt(6 * 2), as in Davidson's likelihood equations.
    assert found.tau == pytest.approx(2 / np.log(3), rel=1e-3)
    assert found.shift == pytest.approx(np.log(3 / np.sqrt(12)) - 0.4, abs=1e-3)
    first = fitted.temperature.apply(ties.probabilities(np.array([2.0]), 0.4))
    np.testing.assert_allclose(first, [[6 / 11, 3 / 11, 2 / 11]], atol=1e-3)


def test_a_doubled_difference_is_recovered_within_its_interval_as_often_as_it_says():
    covered, taus = 0, []
    for seed in range(60):
        d, outcome, who = simulated(60, 10, seed)
        found = temperature.fit(ties.probabilities(2 * d, 0.3), outcome, who, seed=seed).temperature
        covered += found.low <= 2 <= found.high
        taus.append(found.tau)
        assert found.gain > 0 and found.reason == ""
    assert covered >= 52  # of 60 at 95 %: fewer has a chance of 1 in 700
    assert np.mean(taus) == pytest.approx(2, rel=0.06)


def test_figures_are_of_other_peoples_votes():
    """Each person's probabilities must not change with their own outcomes."""
    d, outcome, who = simulated(12, 20, 3)
    raw = ties.probabilities(3 * d, -0.2)
    before = temperature.fit(raw, outcome, who, Config(folds=12), seed=5).probabilities
    changed = np.where(who == 4, 2 - outcome, outcome)
    after = temperature.fit(raw, changed, who, Config(folds=12), seed=5).probabilities
    np.testing.assert_allclose(after[who == 4], before[who == 4], atol=1e-7)
    assert np.abs(after[who != 4] - before[who != 4]).max() > 1e-4


def test_it_improves_what_is_overconfident_out_of_sample_by_what_it_says():
    d, outcome, who = simulated(80, 10, 8)
    raw = ties.probabilities(2.5 * d, -0.2)
    fitted = temperature.fit(raw, outcome, who, seed=2)
    fall = ties.outcome_loss(raw, outcome) - ties.outcome_loss(fitted.probabilities, outcome)
    assert fitted.temperature.gain == pytest.approx(fall.mean()) and fall.mean() > 0.1


@pytest.mark.parametrize("users, votes", [(9, 100), (40, 2), (0, 0)])
def test_few_votes_leave_it_alone_and_say_so(users, votes):
    d, outcome, who = simulated(users, votes, 1)
    fitted = temperature.fit(ties.probabilities(3 * d, -0.2), outcome, who, seed=1)
    assert fitted.temperature.tau == 1 and "too few" in fitted.temperature.reason
    np.testing.assert_allclose(fitted.probabilities, ties.probabilities(3 * d, -0.2))


def test_what_is_calibrated_is_mostly_left_alone():
    left = 0
    for seed in range(30):
        d, outcome, who = simulated(30, 10, seed)
        found = temperature.fit(ties.probabilities(d, -0.2), outcome, who, seed=seed).temperature
        left += found.tau == 1 and "no better" in found.reason
        assert abs(np.log(found.tau)) < 0.6
    assert left >= 15


def test_votes_against_the_model_are_not_mended():
    d, outcome, who = simulated(40, 10, 2)
    found = temperature.fit(ties.probabilities(-d, -0.2), outcome, who, seed=1).temperature
    assert found.tau == 1 and "do not follow" in found.reason and found.high == np.inf


def test_a_model_that_tells_nothing_apart_is_left_alone():
    _, outcome, who = simulated(40, 10, 2)
    found = temperature.fit(ties.probabilities(np.zeros(400), -0.2), outcome, who, seed=1).temperature
    assert found.tau == 1 and "apart" in found.reason


def test_only_ties_stay_finite():
    d, _, who = simulated(40, 10, 2)
    found = temperature.fit(ties.probabilities(d, -0.2), np.ones(400, int), who, seed=1)
    assert np.isfinite(found.probabilities).all() and np.isfinite(found.temperature.shift)


def test_rows_in_another_order_give_the_same():
    d, outcome, who = simulated(30, 10, 4)
    names = np.array([f"ü-{w}" for w in who], dtype=object)
    order = np.random.default_rng(1).permutation(300)
    p = ties.probabilities(2 * d, -0.2)
    a = temperature.fit(p, outcome, names, seed=9).temperature
    b = temperature.fit(p[order], outcome[order], names[order], seed=9).temperature
    assert a.tau == pytest.approx(b.tau, rel=1e-6) and a.gain == pytest.approx(b.gain, rel=1e-6)


def test_differences_and_tie_parameter_are_read_back_from_probabilities():
    d, log_nu = temperature.parts(ties.probabilities(np.array([-3.0, 0.0, 40.0]), 0.7))
    np.testing.assert_allclose(d, [-3, 0, 40], atol=1e-9)
    np.testing.assert_allclose(log_nu, 0.7, atol=1e-9)


def test_nan_is_refused():
    with pytest.raises(RewardModelError, match="NaN"):
        temperature.fit(np.full((200, 3), np.nan), np.zeros(200), np.arange(200), seed=1)


def test_a_tempered_scorer_says_calibrated_probabilities_and_comes_back_from_disk(
    tiny_base: Path, tmp_path: Path
):
    rows = shorter_wins(60)
    inner = bradley_terry.fit(bradley_terry.Config(components=4, max_tokens=64), rows, base=tiny_base, seed=0)
    setting = temperature.Temperature(2.5, 0.3, 2.5, 2.0, 3.0, 0.1, 200, 20)
    tempered = Tempered(inner, setting)
    new = shorter_wins(20, first=1000, seed=1)
    raw, said = predict(inner, new), predict(tempered, new)
    np.testing.assert_allclose(said.probabilities, setting.apply(raw.probabilities), atol=1e-9)
    chats, texts = new["prompt"].to_pylist(), new["chosen"].to_pylist()
    plain, scaled = inner.score(chats, texts), tempered.score(chats, texts)
    np.testing.assert_allclose(scaled.mean, plain.mean / 2.5)
    np.testing.assert_allclose(scaled.std, plain.std / 2.5)
    assert (scaled.std > 0).all()
    tempered.save(tmp_path / "model")
    again = temperature.load_tempered(tmp_path / "model", tiny_base)
    assert again.temperature == setting and again.trained_on == inner.trained_on
    np.testing.assert_allclose(predict(again, new).probabilities, said.probabilities)
    (tmp_path / "model" / "reward_model.json").unlink()
    with pytest.raises(RewardModelError):
        temperature.load_tempered(tmp_path / "model", tiny_base)


def unreadable(constant: str) -> float:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize(
    "found",
    [
        temperature.Temperature(1.0, 0.0, np.nan, np.nan, np.nan, np.nan, 3, 2, "3 votes of 2 people: naïve"),
        temperature.Temperature(1.0, 0.0, np.inf, 4.0, np.inf, -0.2, 400, 40, "They do not follow."),
        temperature.Temperature(1.7, -0.1, 1.7, 1.2, np.inf, 0.03, 400, 40),
    ],
)
def test_what_is_not_finite_is_kept_as_json_that_every_reader_knows(
    found: temperature.Temperature, tiny_base: Path, tmp_path: Path
):
    inner = bradley_terry.fit(
        bradley_terry.Config(components=2, max_tokens=64), shorter_wins(20), base=tiny_base, seed=0
    )
    Tempered(inner, found).save(tmp_path / "m")
    json.loads((tmp_path / "m" / "reward_model.json").read_text(), parse_constant=unreadable)
    again = temperature.load_tempered(tmp_path / "m", tiny_base).temperature
    np.testing.assert_array_equal(list(vars(again).values())[:6], list(vars(found).values())[:6])
    assert (again.votes, again.users, again.reason) == (found.votes, found.users, found.reason)
    assert type(again.votes) is int


def test_a_sentence_says_what_was_found():
    applied = temperature.Temperature(1.7, -0.1, 1.7, 1.2, np.inf, 0.031, 400, 40).sentence
    assert "divided by 1.70" in applied and "from 1.20 upwards" in applied and "0.031 nats better" in applied
    assert "400 votes of 40 people" in applied
    assert temperature.Temperature(1, 0, 1, 1, 1, 1, 3, 2, "Why.").sentence == "The temperature stays 1. Why."


def test_a_vote_of_double_weight_is_two_votes():
    d, outcome, who = simulated(30, 10, 4)
    p, heavy = ties.probabilities(2 * d, -0.2), np.where(who < 10, 2.0, 1.0)
    twice = np.concatenate([np.arange(300), np.flatnonzero(who < 10)])
    a = temperature.fit(p, outcome, who, seed=9, weight=5 * heavy).temperature  # only shares count
    b = temperature.fit(p[twice], outcome[twice], who[twice], seed=9).temperature
    assert a.tau == pytest.approx(b.tau, rel=1e-4) and a.gain == pytest.approx(b.gain, rel=1e-3)
    assert (a.low, a.high) == pytest.approx((b.low, b.high), rel=1e-3)
    alike = temperature.fit(p, outcome, who, seed=9).temperature
    assert abs(alike.tau - a.tau) > 1e-3 and (a.votes, b.votes) == (300, 400)


def test_one_loud_person_of_little_weight_does_not_decide():
    d, outcome, who = simulated(40, 10, 6)
    rng = np.random.default_rng(7)
    loud = rng.normal(0, 1.5, 4000)
    d, who = np.append(d, loud), np.append(who, np.full(4000, 99))
    outcome = np.append(outcome, rng.choice([ties.WIN, ties.LOSS], 4000))  # at random
    weight = np.where(who == 99, 10 / 4000, 1.0)
    p = ties.probabilities(d, -0.2)
    capped = temperature.fit(p, outcome, who, seed=1, weight=weight).temperature
    assert abs(np.log(capped.estimate)) < 0.3
    assert temperature.fit(p, outcome, who, seed=1).temperature.estimate > 3  # what the cap is for


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_weights_that_are_none_are_refused(weight):
    d, outcome, who = simulated(40, 10, 2)
    with pytest.raises(RewardModelError, match="weigh something"):
        temperature.fit(ties.probabilities(d, 0.0), outcome, who, seed=1, weight=np.full(400, weight))


def test_a_slope_that_might_be_nothing_is_not_taken_for_it():
    # Mean of the normal distribution cut off below 0: sqrt(2 / pi) at 0, and by its table at -1, 1 and 4.
    for z, mean in ((0.0, 0.797885), (-1.0, 0.525135), (1.0, 1.287600), (4.0, 4.000134)):
        assert temperature_likelihood.positive(0.3 * z, 0.3) == pytest.approx(0.3 * mean, rel=1e-5)
    assert temperature_likelihood.positive(0.2, 0.0) == 0.2
    assert temperature_likelihood.positive(-0.3 * 50, 0.3) > 0


def test_however_little_votes_follow_the_differences_no_reward_is_divided_by_a_thousand():
    applied = 0
    for seed in range(40):
        d, outcome, who = simulated(20, 10, seed)
        noise = np.random.default_rng([seed, 1]).normal(0, 3, len(d))
        found = temperature.fit(ties.probabilities(noise, -0.2), outcome, who, seed=seed).temperature
        applied += found.reason == ""
        assert found.tau < 60
    assert applied >= 10
