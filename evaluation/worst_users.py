"""How the worst tenth of people are served, without taking noise for a fault.

A mean of few votes is noisy, and the worst tenth of noisy means is bad even where all people are served alike. With
person u's mean gain g_u of n_u votes, the variance s^2 of votes within people and t^2 of true means between people
(both from the analysis of variance, for unequal n_u; t^2 at least 0), the mean is moved towards all people's, m, to

    m + sqrt(b_u) (g_u - m)      b_u = t^2 / (t^2 + s^2 / n_u)

The root makes the spread of the moved means that of the true ones, where plain shrinkage by b_u would hide the tail:
Louis, "Estimating a Population of Parameter Values Using Bayes and Empirical Bayes Methods", JASA 79, 1984. Intervals
resample people and repeat all of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.estimates import RESAMPLES, Estimate, cluster_codes, expanded_tail

Array = npt.NDArray[Any]
WORST_SHARE = 0.1
_CHUNK = 2_000_000


def worst_users(
    gain: Array, users: Array, min_votes: int, *, seed: int, resamples: int = RESAMPLES
) -> Estimate:
    """Mean true gain of the worst tenth of people with at least `min_votes` votes; see the module's text.

    Args:
        gain: (N,) nats of each vote.
        users: (N,) who voted.
        min_votes: at least 2.
        seed: of the resampling of people.
        resamples: how many samples.
    """
    codes, _ = cluster_codes(users, len(gain))
    n = np.bincount(codes).astype(float)
    mean = np.bincount(codes, weights=gain) / np.maximum(n, 1)
    square = np.bincount(codes, weights=(gain - mean[codes]) ** 2)
    n, mean, square = (part[n >= min_votes] for part in (n, mean, square))
    people = len(n)
    if people < 2:
        return Estimate(float(mean[0]) if people else math.nan, -math.inf, math.inf, people)
    value = float(_worst_tenth(n[None], mean[None], square[None])[0])
    rng, step, draws = np.random.default_rng(seed), max(1, _CHUNK // people), []
    for start in range(0, resamples, step):
        drawn = rng.integers(0, people, size=(min(step, resamples - start), people))
        draws.append(_worst_tenth(n[drawn], mean[drawn], square[drawn]))
    tail = expanded_tail(people, 0.95)
    low, high = np.quantile(np.concatenate(draws), [tail, 1 - tail])
    return Estimate(value, float(min(low, value)), float(max(high, value)), people)


def _worst_tenth(n: Array, mean: Array, square: Array) -> Array:
    """(R,) for R samples of G people: (R, G) votes, mean gain, and sum of squares about it."""
    people, votes = n.shape[1], n.sum(axis=1)
    noise = square.sum(axis=1) / np.maximum(votes - people, 1)
    overall = (n * mean).sum(axis=1) / votes
    between = (n * (mean - overall[:, None]) ** 2).sum(axis=1) - (people - 1) * noise
    true = np.maximum(between / (votes - (n**2).sum(axis=1) / votes), 0.0)[:, None]
    spread = true + noise[:, None] / n
    trusted = np.divide(true, spread, out=np.zeros_like(spread), where=spread > 0)
    # Without any noise between or within people the weights are equal, not 0 / 0.
    weight = np.divide(1.0, spread, out=np.ones_like(spread), where=spread > 0)
    centre = ((weight * mean).sum(axis=1) / weight.sum(axis=1))[:, None]
    moved = centre + np.sqrt(trusted) * (mean - centre)
    worst = math.ceil(people * WORST_SHARE)
    return np.asarray(np.partition(moved, worst - 1, axis=1)[:, :worst].mean(axis=1))
