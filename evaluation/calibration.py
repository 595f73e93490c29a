"""Does a reward model's probability mean what it says?

The model says P(chosen is preferred). Said with 80 % and right 80 times of 100 is calibrated; said with 99 %
and right 80 times is overconfident, and a policy trained on it is pushed too hard.

    accuracy   mean of 1 (P > 1/2), 0.5 (P = 1/2), 0; for a tie always 0.5
    log_loss   mean of -(y log P + (1 - y) log(1 - P)), nats, y = 1 (chosen preferred) or 0.5 (a tie);
               a coin has log 2 = 0.693
    ece        expected calibration error: sum over bins of (n_bin / N) * |right share - mean confidence|,
               confidence = max(P, 1 - P); Guo et al., "On Calibration of Modern Neural Networks", ICML 2017

The ECE of few pairs is above zero even for a perfectly calibrated model. `ece_if_calibrated` says how high it
gets by chance alone (95 % of the draws are below): an ECE under it is no sign of a fault.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.errors import EvaluationError
from evaluation.estimates import Estimate, bootstrap_mean, cluster_codes, expanded_tail, wilson

Array = npt.NDArray[Any]
MIN_PER_BIN = 10
# A probability of exactly 0 or 1 would make one surprise infinitely bad.
CLIP = 1e-6


@dataclass(frozen=True)
class Bin:
    """Pairs of similar confidence: what was said, what was right (Wilson interval), how many."""

    confidence: float
    right: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Calibration:
    """Accuracy, log-loss and calibration of predicted preferences, each with its interval."""

    accuracy: Estimate
    log_loss: Estimate
    ece: Estimate
    ece_if_calibrated: float
    bins: tuple[Bin, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "accuracy": self.accuracy.to_dict(),
            "log_loss": self.log_loss.to_dict(),
            "ece": self.ece.to_dict(),
            "ece_if_calibrated": self.ece_if_calibrated,
            "bins": [asdict(one) for one in self.bins],
        }


def calibrate(
    probability: npt.ArrayLike,
    *,
    outcome: npt.ArrayLike | None = None,
    clusters: npt.ArrayLike | None = None,
    seed: int,
    bins: int = 10,
    resamples: int = 1000,
) -> Calibration:
    """How good predicted preferences are.

    Args:
        probability: shape (N,), predicted P(chosen is preferred), in [0, 1].
        outcome: shape (N,), 1 where the chosen one was preferred, 0.5 for ties; None: all 1.
        clusters: shape (N,), the prompt (or user) of each pair; None: pairs are independent.
        seed: of the bootstrap.
        bins: at most this many, of about equal count, one for every 10 pairs.
        resamples: bootstrap samples for the ECE.

    Raises:
        EvaluationError: no pairs, or numbers outside [0, 1].
    """
    p, y = _checked(probability, outcome)
    sure = np.maximum(p, 1 - p)
    right = np.where(p == 0.5, 0.5, np.where(p > 0.5, y, 1 - y))
    clipped = np.clip(p, CLIP, 1 - CLIP)
    loss = -(y * np.log(clipped) + (1 - y) * np.log(1 - clipped))
    bin_of, count = _bins(sure, bins)
    codes, groups = cluster_codes(clusters, len(p))
    gap = _bin_gaps(right - sure, bin_of, codes, groups, count)
    value = float(np.abs(gap.sum(axis=0)).sum() / len(p))
    low, high = _ece_interval(gap, codes, groups, seed, resamples)
    return Calibration(
        accuracy=bootstrap_mean(right, clusters, seed=seed, bounds=(0, 1)),
        log_loss=bootstrap_mean(loss, clusters, seed=seed),
        ece=Estimate(value, min(low, value), max(high, value), groups),
        ece_if_calibrated=_chance_ece(sure, bin_of, count, seed, resamples),
        bins=tuple(_bin(sure[bin_of == b], right[bin_of == b]) for b in range(count)),
    )


def _checked(probability: npt.ArrayLike, outcome: npt.ArrayLike | None) -> tuple[Array, Array]:
    p = np.asarray(probability, dtype=np.float64)
    y = np.ones_like(p) if outcome is None else np.asarray(outcome, dtype=np.float64)
    if p.ndim != 1 or len(p) == 0 or p.shape != y.shape:
        raise EvaluationError(
            "Calibration needs a list of probabilities and as many outcomes.", got=f"{p.shape}, {y.shape}"
        )
    for name, numbers in (("probability", p), ("outcome", y)):
        bad = ~((numbers >= 0) & (numbers <= 1))
        if bad.any():
            raise EvaluationError(
                f"A {name} must be in [0, 1].", got=f"{numbers[bad][0]} and {int(bad.sum())} such in all"
            )
    return p, y


def _bins(sure: Array, bins: int) -> tuple[Array, int]:
    """(bin of each pair, how many bins), of about equal counts.

    Pairs of the same confidence stay together: to part them by anything else would invent a difference.
    """
    wanted = max(1, min(bins, len(sure) // MIN_PER_BIN))
    inner = np.quantile(sure, np.linspace(0, 1, wanted + 1)[1:-1])
    _, bin_of = np.unique(np.searchsorted(inner, sure, side="right"), return_inverse=True)
    return bin_of, int(bin_of.max()) + 1


def _bin(sure: Array, right: Array) -> Bin:
    share = wilson(float(right.sum()), len(right))
    return Bin(float(sure.mean()), share.value, share.low, share.high, len(right))


def _bin_gaps(gap: Array, bin_of: Array, codes: Array, groups: int, count: int) -> Array:
    """Sum of (right - confidence) by cluster and bin, shape (G, B)."""
    flat = np.bincount(codes * count + bin_of, weights=gap, minlength=groups * count)
    return flat.reshape(groups, count)


def _ece_interval(gap: Array, codes: Array, groups: int, seed: int, resamples: int) -> tuple[float, float]:
    """Cluster bootstrap of the ECE with bins held fixed (expanded percentiles)."""
    if groups < 2:
        return 0.0, 1.0
    sizes = np.bincount(codes, minlength=groups).astype(np.float64)
    rng = np.random.default_rng(seed)
    times_R_G = rng.multinomial(groups, np.full(groups, 1 / groups), size=resamples).astype(np.float64)
    draws = np.abs(times_R_G @ gap).sum(axis=1) / (times_R_G @ sizes)
    tail = expanded_tail(groups, 0.95)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def _chance_ece(sure: Array, bin_of: Array, count: int, seed: int, resamples: int) -> float:
    """95th percentile of the ECE if every pair were right with exactly the confidence stated for it."""
    rng = np.random.default_rng(seed + 1)
    draws = np.empty(resamples)
    for i in range(resamples):
        right = rng.random(len(sure)) < sure
        draws[i] = np.abs(np.bincount(bin_of, weights=right - sure, minlength=count)).sum() / len(sure)
    return float(np.quantile(draws, 0.95))
