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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reward_models.ties import WIN

# Rows: log-weight of win, tie, loss per unit of (d, t).
_LOGITS = np.array([[0.5, 0.0], [0.0, 1.0], [-0.5, 0.0]])
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_GRID = np.stack([np.repeat(_NODES, len(_NODES)), np.tile(_NODES, len(_NODES))])
_GRID_WEIGHTS = np.outer(_WEIGHTS, _WEIGHTS).ravel()
_STEPS, _HALVINGS = 30, 20


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
    return np.asarray(_on_grid(mean, spread) @ _GRID_WEIGHTS)


def expected_entropy(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(N,) mean entropy of the outcome in nats, were (d, t) known; arguments as of `expected_probabilities`."""
    p = _on_grid(mean, spread)
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1) @ _GRID_WEIGHTS)


def curvature(h: np.ndarray) -> np.ndarray:
    """(2, 2) Fisher information of one vote about (d, t)."""
    return _derivatives(h, WIN, 1.0)[1]


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
    return mean, designs @ belief.covariance @ designs.transpose(0, 2, 1)


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
    """Posterior mode (2,) of (d, t) and the likelihood's curvature (2, 2) there, by damped Newton steps."""

    def value(at: np.ndarray) -> float:
        logits = _LOGITS @ at
        top = logits.max()
        return float(
            weight * (logits[outcome] - top - np.log(np.exp(logits - top).sum()))
            - (at - mean) @ precision @ (at - mean) / 2
        )

    h, best = mean.copy(), value(mean)
    for _ in range(_STEPS):
        slope, curvature = _derivatives(h, outcome, weight)
        step = np.linalg.solve(curvature + precision, slope - precision @ (h - mean))
        length = 1.0
        while (reached := value(h + length * step)) < best - 1e-12 and length > 1e-6:
            length /= 2
        h, best = h + length * step, reached
        if np.abs(step).max() < 1e-10:
            break
    return h, _derivatives(h, outcome, weight)[1]


def _derivatives(h: np.ndarray, outcome: int, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Gradient (2,) and negative Hessian (2, 2) of weight * log P(outcome | h)."""
    logits = _LOGITS @ h
    p = np.exp(logits - logits.max())
    p /= p.sum()
    centred = _LOGITS - p @ _LOGITS
    return weight * centred[outcome], weight * (centred * p[:, None]).T @ centred


def posterior(
    prior: Belief,
    designs: np.ndarray,
    outcome: np.ndarray,
    weight: np.ndarray,
    offset: np.ndarray,
    start: np.ndarray | None = None,
) -> Belief:
    """The belief after N votes at once: mode and curvature of the joint posterior (Laplace). See `posteriors`."""
    means, covariances = posteriors(
        prior.mean[None], prior.covariance, designs, outcome, weight, offset, np.zeros(1, int),
        start=None if start is None else start[None],
    )  # fmt: skip
    return Belief(means[0], covariances[0])


def posteriors(
    means: np.ndarray,
    covariance: np.ndarray,
    designs: np.ndarray,
    outcome: np.ndarray,
    weight: np.ndarray,
    offset: np.ndarray,
    first: np.ndarray,
    *,
    start: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Beliefs of U people after all their votes, by Newton steps for everybody at once.

    Args:
        means: (U, K) prior means.
        covariance: (K, K) prior covariance, the same for all.
        designs: (N, 2, K), the votes of each person together.
        outcome: (N,) ties.WIN, TIE or LOSS.
        weight: (N,)
        offset: (N, 2) known part of (d, t).
        first: (U,) row of each person's first vote; N where there is none.
        start: (U, K) where to begin; the prior means by default.

    Returns:
        Means (U, K) and covariances (U, K, K).
    """
    n, people = len(outcome), len(means)
    precision = np.linalg.inv(covariance + 1e-10 * np.eye(len(covariance)))
    counts = np.diff(np.append(first, n))
    person = np.repeat(np.arange(people), counts)
    bounds = np.append(first, n)

    def total(values: np.ndarray) -> np.ndarray:
        """(U, …) sums over each person's rows."""
        out = np.zeros((people, *values.shape[1:]))
        np.add.at(out, person, values)
        return out

    def at(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N, 3) probabilities and (U,) log posterior."""
        h = offset + (designs @ theta[person][:, :, None])[:, :, 0]
        logits = h @ _LOGITS.T
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        p /= p.sum(axis=1, keepdims=True)
        fits = total(weight * np.log(np.maximum(p[np.arange(n), outcome], 1e-300)))
        away = theta - means
        return p, fits - ((away @ precision) * away).sum(axis=1) / 2

    def curved(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(U, K) slopes of the log-likelihood and (U, K, K) precisions of the posterior."""
        centred = _LOGITS[None] - (p @ _LOGITS)[:, None]  # (N, 3, 2)
        slope = total((designs * (weight[:, None] * centred[np.arange(n), outcome])[:, :, None]).sum(axis=1))
        # Rows whose products sum to the curvature: three classes, weighted by the root of their probability.
        rows = (centred * np.sqrt(p * weight[:, None])[:, :, None]) @ designs  # (N, 3, K)
        curvature = np.empty((people, *precision.shape))
        for u in range(people):
            own = rows[bounds[u] : bounds[u + 1]].reshape(-1, len(precision))
            curvature[u] = own.T @ own + precision
        return slope, curvature

    theta = means.copy() if start is None else start.copy()
    p, best = at(theta)
    for _ in range(_STEPS):
        slope, curvature = curved(p)
        step = np.linalg.solve(curvature, (slope - (theta - means) @ precision)[:, :, None])[:, :, 0]
        length = np.ones(people)
        for _ in range(_HALVINGS):
            p, reached = at(theta + length[:, None] * step)
            worse = reached < best - 1e-9
            if not worse.any():
                break
            length[worse] /= 2
        theta, best = theta + length[:, None] * step, reached
        if np.abs(step).max(initial=0.0) < 1e-8:
            break
    return theta, np.linalg.inv(curved(p)[1])
