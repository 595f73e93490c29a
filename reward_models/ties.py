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


def fit(x: np.ndarray, outcome: np.ndarray, weight: np.ndarray, ridge: float) -> Fit:
    """Maximise the weighted log-likelihood less ridge/2 * |w|^2 by Newton-accurate L-BFGS.

    Args:
        x: (N, D) difference of the two replies' vectors.
        outcome: (N,) WIN, TIE or LOSS of the first reply.
        weight: (N,) non-negative row weights.
        ridge: precision of the Gaussian prior on each weight.
    """
    from scipy.optimize import minimize

    n_columns = x.shape[1]
    has_ties = bool((outcome == TIE).any())

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        w, log_nu = theta[:n_columns], float(theta[n_columns]) if has_ties else NO_TIES
        p = probabilities(x @ w, log_nu)
        nll = -(weight * np.log(np.maximum(p[np.arange(len(x)), outcome], 1e-300))).sum() + ridge / 2 * w @ w
        # d log P(outcome) / d difference: (1[win] - 1[loss]) / 2 - (P(win) - P(loss)) / 2
        observed = (outcome == WIN).astype(float) - (outcome == LOSS)
        slope = weight * (observed - (p[:, WIN] - p[:, LOSS])) / 2
        gradient = np.concatenate([-(x.T @ slope) + ridge * w, [0.0]])
        if has_ties:
            gradient[-1] = -(weight * ((outcome == TIE) - p[:, TIE])).sum() + 0.01 * log_nu
            nll += 0.005 * log_nu**2
        return float(nll), gradient

    start = np.zeros(n_columns + 1)
    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-8}
    )
    w, log_nu = found.x[:n_columns], float(found.x[-1]) if has_ties else NO_TIES
    p = probabilities(x @ w, log_nu)
    # Var of (1[win] - 1[loss]) / 2 under the model is the curvature in the difference.
    curvature = weight * ((p[:, WIN] + p[:, LOSS]) - (p[:, WIN] - p[:, LOSS]) ** 2) / 4
    hessian = (x * curvature[:, None]).T @ x + ridge * np.eye(n_columns)
    return Fit(w, log_nu, np.linalg.inv(hessian))


def log_loss(x: np.ndarray, outcome: np.ndarray, weight: np.ndarray, fitted: Fit) -> float:
    """Weighted mean negative log-likelihood, in nats."""
    p = probabilities(x @ fitted.weights, fitted.log_nu)[np.arange(len(x)), outcome]
    return float(-(weight * np.log(np.maximum(p, 1e-12))).sum() / max(weight.sum(), 1e-12))
