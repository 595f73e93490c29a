"""Calibration on probabilities whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.calibration import calibrate
from evaluation.errors import EvaluationError


def simulated(seed, n, sharpen=1.0):
    """Probabilities of a model whose log-odds are `sharpen` times the true ones, and what happened."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(0, 1.5, n)
    outcome = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(float)
    return 1 / (1 + np.exp(-sharpen * logit)), outcome


def test_by_hand():
    """Right, right, wrong and undecided."""
    found = calibrate([0.9, 0.6, 0.2, 0.5], seed=1)
    assert found.accuracy.value == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert found.log_loss.value == pytest.approx(-np.log([0.9, 0.6, 0.2, 0.5]).mean())
    (only,) = found.bins
    assert only.n == 4 and only.confidence == pytest.approx((0.9 + 0.6 + 0.8 + 0.5) / 4)
    assert found.ece.value == pytest.approx(abs(0.625 - 0.7))


def test_a_tie_is_half_right_and_costs_least_at_one_half():
    assert calibrate([0.9, 0.9], outcome=[0.5, 0.5], seed=1).accuracy.value == 0.5
    tie, sure = (calibrate([p] * 2, outcome=[0.5] * 2, seed=1).log_loss.value for p in (0.5, 0.9))
    assert tie == pytest.approx(math.log(2)) and sure > tie


def test_a_calibrated_model_looks_calibrated_and_an_overconfident_one_does_not():
    good = calibrate(*simulated(2, 1000)[:1], outcome=simulated(2, 1000)[1], seed=1)
    assert good.ece.value < good.ece_if_calibrated
    assert sum(one.low <= one.confidence <= one.high for one in good.bins) >= 8
    p, outcome = simulated(2, 1000, sharpen=3.0)
    loud = calibrate(p, outcome=outcome, seed=1)
    assert loud.ece.value > 2 * loud.ece_if_calibrated
    assert loud.ece.low > loud.ece_if_calibrated
    assert loud.accuracy.value == good.accuracy.value
    assert loud.log_loss.value > good.log_loss.value
    assert all(one.right < one.confidence for one in loud.bins[-3:])


def test_bins_hold_every_pair_once_and_are_not_too_small():
    p, outcome = simulated(3, 57)
    found = calibrate(p, outcome=outcome, seed=1)
    assert sum(one.n for one in found.bins) == 57
    assert min(one.n for one in found.bins) >= 10
    assert [one.confidence for one in found.bins] == sorted(one.confidence for one in found.bins)


def test_pairs_of_the_same_confidence_stay_in_one_bin():
    """To part them into right and wrong ones would make any model look miscalibrated."""
    found = calibrate([0.8] * 80 + [0.2] * 20, seed=1)
    assert [(one.n, one.right) for one in found.bins] == [(100, 0.8)]
    assert found.ece.value == pytest.approx(0)


def test_certainty_that_is_wrong_is_bad_but_finite():
    found = calibrate([0.0, 1.0], seed=1)
    assert math.isfinite(found.log_loss.value) and found.log_loss.value > 6


def test_orientation_and_order_do_not_matter():
    p, outcome = simulated(4, 200)
    turned = calibrate(1 - p, outcome=1 - outcome, seed=1)
    plain = calibrate(p, outcome=outcome, seed=1)
    mixed = calibrate(p[::-1], outcome=outcome[::-1], seed=1)
    for other in (turned, mixed):
        assert other.accuracy.value == pytest.approx(plain.accuracy.value)
        assert other.ece.value == pytest.approx(plain.ece.value)
        assert [one.n for one in other.bins] == [one.n for one in plain.bins]


def test_clusters_widen_the_interval():
    p, outcome = np.repeat(simulated(5, 40)[0], 5), np.repeat(simulated(5, 40)[1], 5)
    alone = calibrate(p, outcome=outcome, seed=1)
    together = calibrate(p, outcome=outcome, clusters=np.repeat(np.arange(40), 5), seed=1)
    assert together.accuracy.n == 40
    wide, narrow = (one.accuracy.high - one.accuracy.low for one in (together, alone))
    assert wide > 1.5 * narrow


@pytest.mark.parametrize("bad", [[], [1.2], [math.nan], [[0.5]]])
def test_what_is_no_probability_is_refused(bad):
    with pytest.raises(EvaluationError):
        calibrate(bad, seed=1)
