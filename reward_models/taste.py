"""What is believed of one person's taste, as a Gaussian, and how one vote changes it.

A vote between two replies is Davidson's model of `reward_models.ties` with two linear predictors, the reward
difference d and the log-weight of a tie t, both linear in effects that are believed Gaussian:

    h = (d, t) = mu + A theta,   theta ~ N(m, C)        A (2, K)

One vote moves the two numbers h only, so its posterior is found in two dimensions whatever K is: the mode of
log P(outcome | h) - (h - mu_h)' S^-1 (h - mu_h) / 2 with S = A C A' is Newton's in a strictly concave function, and

    m' = m + C A' S^-1 (h* - mu_h)
    C' = C - C A' (S^-1 - S^-1 (S^-1 + W)^-1 S^-1) A C          W = -d2 log P / dh2 at h*

which is a Laplace approximation with the conditional expectation of theta given h, exact for Gaussians.
Derived here; the same step is assumed density filtering (Opper 1998, A Bayesian approach to on-line learning) and,
for rankings, Weng and Lin 2011 (JMLR 12).

Several independent beliefs (shared taste, a person, a reply, a prompt) may make one vote: S is then the sum over
them, each is changed by its own rows of the same formulas, and correlations between them are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reward_models.laplace import LOGITS, TOGETHER, posteriors
from reward_models.ties import WIN

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_GRID = np.stack([np.repeat(_NODES, len(_NODES)), np.tile(_NODES, len(_NODES))])
_GRID_WEIGHTS = np.outer(_WEIGHTS, _WEIGHTS).ravel()
_STEPS = 30


@dataclass(frozen=True)
class Belief:
    """Gaussian belief about K effects."""

    mean: np.ndarray
    """(K,)"""
    covariance: np.ndarray
    """(K, K)"""

    @classmethod
    def independent(cls, std: Sequence[float] | np.ndarray, mean: np.ndarray | None = None) -> Belief:
        """Independent effects with these standard deviations (K,) around `mean` (0)."""
        std = np.asarray(std, dtype=np.float64)
        return cls(np.zeros(len(std)) if mean is None else np.asarray(mean, float), np.diag(std**2))


def expected_probabilities(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """P(win, tie, loss) with the uncertainty of the predictors integrated out (7 x 7 Gauss-Hermite nodes).

    Args:
        mean: (N, 2) means of d and t.
        spread: (N, 2, 2) their covariance.

    Returns:
        (N, 3)
    """
    starts = range(0, max(len(mean), 1), TOGETHER)
    parts = [_on_grid(mean[i : i + TOGETHER], spread[i : i + TOGETHER]) @ _GRID_WEIGHTS for i in starts]
    return np.concatenate(parts)


def expected_entropy(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(N,) mean entropy of the outcome in nats, were (d, t) known; arguments as of `expected_probabilities`."""
    p = _on_grid(mean, spread)
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1) @ _GRID_WEIGHTS)


def curvature(h: np.ndarray) -> np.ndarray:
    """(2, 2) Fisher information of one vote about (d, t)."""
    dd, dt, tt = _derivatives(float(h[0]), float(h[1]), WIN, 1.0)[1]
    return np.array([[dd, dt], [dt, tt]])


def _on_grid(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(N, 3, nodes) probabilities at the grid's nodes."""
    a = np.sqrt(np.maximum(spread[:, 0, 0], 0))
    b = np.divide(spread[:, 1, 0], a, out=np.zeros_like(a), where=a > 1e-9)
    c = np.sqrt(np.maximum(spread[:, 1, 1] - b**2, 0))
    d = mean[:, :1] + a[:, None] * _GRID[0]
    t = mean[:, 1:] + b[:, None] * _GRID[0] + c[:, None] * _GRID[1]
    logits = np.stack([d / 2, t, -d / 2], axis=1)
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def predictors(
    beliefs: Sequence[Belief], designs: Sequence[np.ndarray], offset: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (2,) and covariance (2, 2) of (d, t) for one vote, of independent beliefs and their designs (2, K)."""
    mean = np.zeros(2) if offset is None else np.array(offset, dtype=np.float64)
    spread = np.zeros((2, 2))
    for belief, design in zip(beliefs, designs, strict=True):
        mean += design @ belief.mean
        spread += design @ belief.covariance @ design.T
    return mean, spread


def predictors_of(belief: Belief, designs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means (N, 2) and covariances (N, 2, 2) of (d, t) for N votes with designs (N, 2, K).

    Args:
        belief: about all of them; or one for each, stacked: mean (N, K), covariance (N, K, K).
        designs: of the votes.
    """
    mean = (designs @ belief.mean[..., None])[..., 0]
    if belief.covariance.ndim == 2:  # one product of matrices, not N small ones
        turned = (designs.reshape(-1, designs.shape[2]) @ belief.covariance).reshape(designs.shape)
    else:
        turned = designs @ belief.covariance
    return mean, turned @ designs.transpose(0, 2, 1)


def updated(
    beliefs: Sequence[Belief],
    designs: Sequence[np.ndarray],
    outcome: int,
    *,
    weight: float = 1.0,
    offset: np.ndarray | None = None,
) -> list[Belief]:
    """The beliefs after one vote.

    Args:
        beliefs: independent ones that all took part in the vote.
        designs: (2, K) of each: reward difference and tie log-weight per unit of each effect.
        outcome: ties.WIN, TIE or LOSS of the first reply.
        weight: how much the vote counts; 0 changes nothing.
        offset: (2,) what is known of (d, t) beside the beliefs.
    """
    if weight <= 0:
        return list(beliefs)
    mean, spread = predictors(beliefs, designs, offset)
    precision = np.linalg.inv(spread + 1e-12 * np.eye(2))
    h, curvature = _mode(mean, precision, outcome, weight)
    shift = precision @ (h - mean)
    shrink = precision - precision @ np.linalg.inv(precision + curvature) @ precision
    after = []
    for belief, design in zip(beliefs, designs, strict=True):
        gain = belief.covariance @ design.T
        after.append(Belief(belief.mean + gain @ shift, belief.covariance - gain @ shrink @ gain.T))
    return after


def _mode(
    mean: np.ndarray, precision: np.ndarray, outcome: int, weight: float
) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mode (2,) of (d, t) and the likelihood's curvature (2, 2) there, by damped Newton steps.

    In plain numbers: of two unknowns these are ten times as fast as arrays.
    """
    (d, t), ((a, b), (_, c)) = mean.tolist(), precision.tolist()
    centre_d, centre_t = d, t

    def value(d: float, t: float) -> float:
        x, y = d - centre_d, t - centre_t
        likelihood = math.log(max(_shares(d, t)[outcome], 1e-300))
        return weight * likelihood - (a * x * x + 2 * b * x * y + c * y * y) / 2

    best = value(d, t)
    for _ in range(_STEPS):
        (of_d, of_t), (dd, dt, tt) = _derivatives(d, t, outcome, weight)
        of_d -= a * (d - centre_d) + b * (t - centre_t)
        of_t -= b * (d - centre_d) + c * (t - centre_t)
        dd, dt, tt = dd + a, dt + b, tt + c
        determinant = dd * tt - dt * dt
        step_d, step_t = (tt * of_d - dt * of_t) / determinant, (dd * of_t - dt * of_d) / determinant
        length = 1.0
        while (reached := value(d + length * step_d, t + length * step_t)) < best - 1e-12 and length > 1e-6:
            length /= 2
        d, t, best = d + length * step_d, t + length * step_t, reached
        if max(abs(step_d), abs(step_t)) < 1e-10:
            break
    dd, dt, tt = _derivatives(d, t, outcome, weight)[1]
    return np.array([d, t]), np.array([[dd, dt], [dt, tt]])


def _shares(d: float, t: float) -> tuple[float, float, float]:
    """P(win, tie, loss)."""
    top = max(abs(d) / 2, t)
    win, tie, loss = math.exp(d / 2 - top), math.exp(t - top), math.exp(-d / 2 - top)
    total = win + tie + loss
    return win / total, tie / total, loss / total


def _derivatives(
    d: float, t: float, outcome: int, weight: float
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """Gradient of weight * log P(outcome | d, t), and its negative Hessian: of d twice, d and t, t twice."""
    win, tie, loss = _shares(d, t)
    lean, said = (win - loss) / 2, LOGITS[outcome].tolist()
    either = tie * (win + loss)
    slope = weight * (said[0] - lean), weight * (said[1] - tie)
    return slope, (weight * (win * loss + either / 4), -weight * lean * tie, weight * either)


def posterior(
    prior: Belief,
    designs: np.ndarray,
    outcome: np.ndarray,
    weight: np.ndarray,
    offset: np.ndarray,
    start: np.ndarray | None = None,
) -> Belief:
    """The belief after N votes at once: mode and curvature of the joint posterior. See `laplace.posteriors`."""
    means, covariances = posteriors(
        prior.mean[None], prior.covariance, designs, outcome, weight, offset, np.zeros(1, int),
        start=None if start is None else start[None],
    )  # fmt: skip
    return Belief(means[0], covariances[0])
