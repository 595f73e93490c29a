"""A number is only ever given with its interval and with how many independent things it rests on.

Which interval. Replies to one prompt resemble each other, so what is resampled are clusters (prompts), never
rows. The plain percentile bootstrap is too narrow with few clusters (it covers about 92 % instead of 95 % at
20), because it uses the normal's quantiles and divides by n instead of n - 1. `bootstrap_ratio` therefore
reads the *expanded* percentiles of Hesterberg, "What Teachers Should Know About the Bootstrap" (The American
Statistician 69, 2015, section 5.3): instead of a = (1 - confidence) / 2 it takes the quantile at

    a' = Phi(-sqrt(n / (n - 1)) * t(1 - a; n - 1))        n = number of clusters

which reproduces Student's interval for symmetric data, and stays inside the range of a bounded metric.

A mean of rare rewards with unequal weights is skewed: most samples have a little too few of the heavy ones. With
`skewed` the quantiles are moved for bias and skewness as in Efron's BCa interval ("Better Bootstrap Confidence
Intervals", JASA 82, 1987), from the same tail a':

    Phi(z0 + (z0 + z) / (1 - s (z0 + z)))     z = Phi^-1(a'),  z0 = Phi^-1(share of samples below the estimate)
                                              s = sum(e^3) / (6 sum(e^2)^1.5),  e: each cluster's residual
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.errors import EvaluationError

Array = npt.NDArray[Any]
RESAMPLES = 2000
# Index matrices are made in pieces of at most this many numbers (8 bytes each), so that 100,000 prompts
# need no more memory than 1,000.
CHUNK = 2_000_000


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    `n` counts independent units (clusters such as prompts), not rows. Where nothing can be said about the
    spread (fewer than two clusters) the interval is infinite, or the metric's whole range if it has one.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95

    def to_dict(self) -> dict[str, float | int | None]:
        """As plain JSON: what is not finite becomes null."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        finite = {key: (float(end) if math.isfinite(end) else None) for key, end in ends.items()}
        return {**finite, "n": int(self.n), "confidence": self.confidence}


def bootstrap_mean(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike | None = None,
    *,
    seed: int,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """Mean of `values` with a cluster-bootstrap interval (see the module's text).

    Args:
        values: shape (N,), finite numbers.
        clusters: shape (N,), what each value belongs to; None: every value is independent.
        seed: of the resampling; the same seed gives the same interval.
        resamples: how many bootstrap samples.
        confidence: of the two-sided interval.
        bounds: the metric's range, when it has one, e.g. (0, 1) for a share.

    Raises:
        EvaluationError: shapes differ, or a value is not finite.
    """
    numerator = np.asarray(values, dtype=np.float64)
    return bootstrap_ratio(
        numerator,
        np.ones_like(numerator),
        clusters,
        seed=seed,
        resamples=resamples,
        confidence=confidence,
        bounds=bounds,
    )


def bootstrap_ratio(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    clusters: npt.ArrayLike | None = None,
    *,
    seed: int,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = None,
    skewed: bool = False,
) -> Estimate:
    """sum(numerator) / sum(denominator) with a cluster-bootstrap interval; both of shape (N,).

    A bounded ratio that is the same in every cluster has no visible spread, which does not mean it has none:
    twenty wins of twenty do not prove a win rate of 100 %. Its interval is then Wilson's.

    Raises:
        EvaluationError: shapes differ, or a value is not finite.
    """
    top, bottom = _cluster_sums(numerator, denominator, clusters)
    n = len(top)
    if n == 0 or bottom.sum() == 0:
        low, high = bounds or (-math.inf, math.inf)
        return Estimate(math.nan, low, high, n, confidence)
    value = float(top.sum() / bottom.sum())
    if n == 1:
        low, high = bounds or (-math.inf, math.inf)
        return Estimate(value, low, high, n, confidence)
    if bounds is not None and np.ptp(top / np.where(bottom == 0, 1, bottom)) == 0:
        floor, ceiling = bounds
        share = wilson((value - floor) / (ceiling - floor) * n, n, confidence=confidence)
        return Estimate(
            value,
            floor + share.low * (ceiling - floor),
            floor + share.high * (ceiling - floor),
            n,
            confidence,
        )
    draws = resampled_ratios(top, bottom, seed=seed, resamples=resamples)
    tail = expanded_tail(n, confidence)
    levels = _corrected(draws, value, top - value * bottom, tail) if skewed else (tail, 1 - tail)
    low, high = np.quantile(draws, levels)
    return Estimate(value, float(low), float(high), n, confidence)


def _corrected(draws: Array, value: float, residuals: Array, tail: float) -> tuple[float, float]:
    """The quantiles of BCa; see the module's text."""
    from scipy.special import ndtr, ndtri

    below = float(np.mean(draws < value) + np.mean(draws == value) / 2)
    shift = float(ndtri(np.clip(below, 1 / len(draws), 1 - 1 / len(draws))))
    spread = float((residuals**2).sum())
    skew = float((residuals**3).sum()) / (6 * spread**1.5) if spread else 0.0
    z = float(ndtri(tail))
    low, high = (float(ndtr(shift + (shift + q) / (1 - skew * (shift + q)))) for q in (z, -z))
    return low, high


def resampled_ratios(top: Array, bottom: Array, *, seed: int, resamples: int) -> Array:
    """Ratios of sums over clusters drawn with replacement, shape (resamples,)."""
    rng = np.random.default_rng(seed)
    n = len(top)
    step = max(1, CHUNK // n)
    pieces = []
    for start in range(0, resamples, step):
        drawn_R_N = rng.integers(0, n, size=(min(step, resamples - start), n))
        sums = bottom[drawn_R_N].sum(axis=1)
        # A sample without any denominator says nothing about the ratio.
        pieces.append(top[drawn_R_N].sum(axis=1)[sums != 0] / sums[sums != 0])
    return np.concatenate(pieces)


def of_sums(
    parts: Array,
    clusters: Array,
    statistic: Callable[[Array], Array],
    bounds: list[tuple[float, float]],
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> list[Estimate]:
    """Functions of column sums with cluster-bootstrap intervals (expanded percentiles, see the module's text).

    Args:
        parts: (N, C) what each row adds.
        clusters: (N,) what each row belongs to.
        statistic: from (..., C) sums to (..., K) values; NaN where it is not defined.
        bounds: K ranges, which are the intervals where nothing can be said about the spread.
        seed: of the resampling.
        resamples: how many samples.
    """
    codes, groups = cluster_codes(clusters, len(parts))
    by_cluster = np.zeros((groups, parts.shape[1]))
    np.add.at(by_cluster, codes, parts)
    values = statistic(by_cluster.sum(axis=0))
    ends = np.array(bounds, dtype=float)
    if groups >= 2:
        rng, step, draws = np.random.default_rng(seed), max(1, CHUNK // groups), []
        for start in range(0, resamples, step):
            size = min(step, resamples - start)
            times = rng.multinomial(groups, np.full(groups, 1 / groups), size=size)
            draws.append(statistic(times @ by_cluster))
        tail = expanded_tail(groups, 0.95)
        drawn = np.concatenate(draws)
        known = np.isfinite(values) & np.isfinite(drawn).any(axis=0)
        ends[known] = np.nanquantile(drawn[:, known], [tail, 1 - tail], axis=0).T
    return [
        Estimate(float(v), float(lo), float(hi), groups) for v, (lo, hi) in zip(values, ends, strict=True)
    ]


def expanded_tail(n: int, confidence: float) -> float:
    """The quantile level a' of the module's text for `n` >= 2 clusters."""
    from scipy.special import ndtr, stdtrit

    student = float(stdtrit(n - 1, 1 - (1 - confidence) / 2))
    return float(ndtr(-math.sqrt(n / (n - 1)) * student))


def wilson(successes: float, n: int, *, confidence: float = 0.95) -> Estimate:
    """A share with Wilson's score interval (JASA 22, 1927): honest for small n and at 0 and 1.

    `successes` may be fractional: half a success for a tie.

    Raises:
        EvaluationError: successes outside [0, n].
    """
    from scipy.special import ndtri

    if not 0 <= successes <= n:
        raise EvaluationError("A share needs 0 <= successes <= n.", got=f"{successes} of {n}")
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, confidence)
    z2 = float(ndtri(1 - (1 - confidence) / 2)) ** 2
    share = successes / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2) / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # At the ends the formula gives the end itself, but for rounding.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Estimate(share, low, high, n, confidence)


def cluster_codes(clusters: npt.ArrayLike | None, size: int) -> tuple[Array, int]:
    """(code of each row, shape (N,); how many clusters). Codes follow the sorted names, not their order."""
    if clusters is None:
        return np.arange(size), size
    names = np.asarray(clusters)
    if names.shape != (size,):
        raise EvaluationError("Every value needs its cluster.", got=f"{names.shape} for {size} values")
    distinct, codes = np.unique(names.astype(str), return_inverse=True)
    return codes, len(distinct)


def _cluster_sums(
    numerator: npt.ArrayLike, denominator: npt.ArrayLike, clusters: npt.ArrayLike | None
) -> tuple[Array, Array]:
    top = np.asarray(numerator, dtype=np.float64)
    bottom = np.asarray(denominator, dtype=np.float64)
    if top.ndim != 1 or top.shape != bottom.shape:
        raise EvaluationError(
            "Numerators and denominators must be two lists of one length.", got=f"{top.shape}, {bottom.shape}"
        )
    if not (np.isfinite(top).all() and np.isfinite(bottom).all()):
        raise EvaluationError(
            "An average needs finite numbers.",
            got=f"{int((~np.isfinite(top)).sum())} of {len(top)} values are NaN or infinite",
            next_step="look at the scorer that made them; a missing score is not a score",
        )
    codes, n = cluster_codes(clusters, len(top))
    return (
        np.bincount(codes, weights=top, minlength=n),
        np.bincount(codes, weights=bottom, minlength=n),
    )
