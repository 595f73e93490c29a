"""Bradley-Terry with ties (Davidson), penalised: likelihood, fit, posterior width.

Model, for reward difference d of the first reply over the second and tie parameter nu > 0:

    P(win)  = e^{d/2}  / Z,   P(tie) = nu / Z,   P(loss) = e^{-d/2} / Z,   Z = e^{d/2} + e^{-d/2} + nu

Source: Davidson 1970, On extending the Bradley-Terry model to accommodate ties in paired comparison
experiments, eq. 3, with strengths e^{reward}. Without ties (nu = 0) it is Bradley and Terry 1952.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WIN, TIE, LOSS = 0, 1, 2
NO_TIES = -12.0  # log nu so small that ties have no probability worth the name
TIE_RIDGE = 0.01  # precision of the prior on log nu: keeps it finite where everything is a tie
_NEWTON_STEPS = 100


@dataclass(frozen=True)
class Fit:
    """A fitted linear tie model."""

    weights: np.ndarray
    """(D,) reward per unit of each column."""
    log_nu: float
    """Log of Davidson's tie parameter."""
    covariance: np.ndarray
    """(D, D) posterior covariance of the weights (Laplace approximation)."""


def probabilities(difference: np.ndarray, log_nu: float) -> np.ndarray:
    """(N, 3) probabilities of win, tie, loss for (N,) reward differences."""
    half = np.asarray(difference, dtype=np.float64) / 2
    logits = np.stack([half, np.full_like(half, log_nu), -half], axis=1)
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def fit(
    x: np.ndarray, outcome: np.ndarray, weight: np.ndarray, ridge: float, start: Fit | None = None
) -> Fit:
    """Maximise the weighted log-likelihood less ridge/2 * |w|^2 by Newton's method.

    The function is strictly concave, so the result does not depend on where the search begins: an old fit of some of
    the rows is a good place, and leads to what fitting all rows anew gives.

    Args:
        x: (N, D) difference of the two replies' vectors.
        outcome: (N,) WIN, TIE or LOSS of the first reply.
        weight: (N,) non-negative row weights.
        ridge: precision of the Gaussian prior on each weight.
        start: where to begin; at zero by default.
    """
    n_columns = x.shape[1]
    has_ties = bool((outcome == TIE).any())
    theta = np.zeros(n_columns + 1)
    if start is not None:
        theta[:n_columns], theta[-1] = start.weights, start.log_nu if start.log_nu > NO_TIES else 0.0
    if not has_ties:
        theta[-1] = NO_TIES
    precision = np.append(np.full(n_columns, ridge), TIE_RIDGE)
    won, tied = (outcome == WIN).astype(float) - (outcome == LOSS), (outcome == TIE).astype(float)
    rows = np.arange(len(x))

    def value(at: np.ndarray, p: np.ndarray) -> float:
        prior = precision if has_ties else precision[:-1]
        return float(
            weight @ np.log(np.maximum(p[rows, outcome], 1e-300)) - (prior * at[: len(prior)] ** 2).sum() / 2
        )

    p = probabilities(x @ theta[:-1], theta[-1])
    best = value(theta, p)
    for _ in range(_NEWTON_STEPS):
        # d log P / d difference = (1[win] - 1[loss]) / 2 - (P(win) - P(loss)) / 2, and likewise for log nu.
        lean = p[:, WIN] - p[:, LOSS]
        slope = np.append(x.T @ (weight * (won - lean) / 2), weight @ (tied - p[:, TIE])) - precision * theta
        step = np.zeros_like(theta)
        curvature = _curvature(x, weight, p, precision)
        if has_ties:
            step = np.linalg.solve(curvature, slope)
        else:
            step[:-1] = np.linalg.solve(curvature[:-1, :-1], slope[:-1])
        length = 1.0
        while True:
            tried = theta + length * step
            p = probabilities(x @ tried[:-1], tried[-1])
            reached = value(tried, p)
            if reached >= best - 1e-12 * abs(best) or length < 1e-8:
                break
            length /= 2
        theta, best = tried, reached
        if np.abs(step).max() < 1e-10:
            break
    curvature = _curvature(x, weight, p, precision)
    # With ties the weights are as uncertain as they are while log nu is, too.
    covariance = np.linalg.inv(curvature)[:-1, :-1] if has_ties else np.linalg.inv(curvature[:-1, :-1])
    return Fit(theta[:-1], float(theta[-1]), covariance)


def _curvature(x: np.ndarray, weight: np.ndarray, p: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """(D + 1, D + 1) negative Hessian of the penalised log-likelihood in the weights and log nu."""
    lean, tie = p[:, WIN] - p[:, LOSS], p[:, TIE]
    # Variances and covariance of (1[win] - 1[loss]) / 2 and 1[tie] under the model.
    by_weights = (x * (weight * ((p[:, WIN] + p[:, LOSS]) - lean**2) / 4)[:, None]).T @ x
    across = x.T @ (weight * -lean * tie / 2)
    curvature = np.zeros((len(precision), len(precision)))
    curvature[:-1, :-1] = by_weights
    curvature[:-1, -1] = curvature[-1, :-1] = across
    curvature[-1, -1] = weight @ (tie * (1 - tie))
    return curvature + np.diag(precision)


def outcome_loss(p: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """(N,) negative log-likelihood in nats of outcomes whose probabilities (N, 3) were told."""
    return np.asarray(-np.log(np.maximum(p[np.arange(len(outcome)), outcome], 1e-12)))


def log_loss(x: np.ndarray, outcome: np.ndarray, weight: np.ndarray, fitted: Fit) -> float:
    """Weighted mean negative log-likelihood, in nats."""
    losses = outcome_loss(probabilities(x @ fitted.weights, fitted.log_nu), outcome)
    return float((weight * losses).sum() / max(weight.sum(), 1e-12))
