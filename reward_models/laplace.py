"""Posteriors of many people at once, each given all their votes: mode and curvature (Laplace's approximation).

The posterior of effects theta of one person, given votes whose (d, t) are offset + A theta (`reward_models.taste`), is

    log p(theta) = sum_v w_v log P(outcome_v | d_v, t_v) - (theta - m)' C^-1 (theta - m) / 2 + const

which is strictly concave, so damped Newton steps find its one mode from anywhere. People with as many votes each are
worked on together, as stacks of matrices: no step is made person by person.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Rows: log-weight of win, tie, loss per unit of (d, t).
LOGITS = np.array([[0.5, 0.0], [0.0, 1.0], [-0.5, 0.0]])
TOGETHER = 8192
"""So many votes are worked on at once: what they need stays in the processor's cache."""
_STEPS, _HALVINGS = 30, 20


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
        Means (U, K) and covariances (U, K, K); without votes those of the prior.
    """
    counts = np.diff(np.append(first, len(outcome)))
    precision = np.linalg.inv(covariance + 1e-10 * np.eye(len(covariance)))
    on_d, on_t = _used(designs[:, 0]), _used(designs[:, 1])
    found = means.copy()
    spreads = np.tile(covariance, (len(means), 1, 1))
    for people in _alike(counts):
        rows = first[people][:, None] + np.arange(counts[people[0]])
        votes = _Votes(
            designs[rows, 0, on_d], designs[rows, 1, on_t], on_d, on_t,
            outcome[rows][..., None], weight[rows], offset[rows],
        )  # fmt: skip
        begin = (means if start is None else start)[people]
        found[people], spreads[people] = _newton(means[people], precision, votes, begin)
    return found, spreads


def _used(design: np.ndarray) -> slice:
    """From the first effect to the last that changes a predictor (N, K) at all."""
    used = np.flatnonzero(design.any(axis=0))
    return slice(used[0], used[-1] + 1) if len(used) else slice(0, 0)


def _alike(counts: np.ndarray) -> Iterator[np.ndarray]:
    """People (P,) with as many votes each, some at a time; those without votes are left out."""
    order = np.argsort(counts, kind="stable")
    sizes, begins = np.unique(counts[order], return_index=True)
    for size, people in zip(sizes.tolist(), np.split(order, begins[1:]), strict=False):
        most = max(1, TOGETHER // max(size, 1))
        yield from (people[i : i + most] for i in range(0, len(people) if size else 0, most))


@dataclass(frozen=True)
class _Votes:
    """V votes of each of P people."""

    d: np.ndarray
    """(P, V, D) reward difference per unit of the effects `on_d`."""
    t: np.ndarray
    """(P, V, T) log-weight of a tie per unit of the effects `on_t`."""
    on_d: slice
    on_t: slice
    outcome: np.ndarray
    """(P, V, 1)"""
    weight: np.ndarray
    """(P, V)"""
    offset: np.ndarray
    """(P, V, 2)"""

    def likelihood(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(P, V, 3) probabilities and (P,) log-likelihoods of effects (P, K)."""
        half = (self.offset[..., 0] + (self.d @ theta[:, self.on_d, None])[..., 0]) / 2
        logits = np.empty((*half.shape, 3))
        logits[..., 0], logits[..., 2] = half, -half
        logits[..., 1] = self.offset[..., 1] + (self.t @ theta[:, self.on_t, None])[..., 0]
        logits -= logits.max(axis=2, keepdims=True)
        p = np.exp(logits)
        total = p.sum(axis=2, keepdims=True)
        p /= total
        said = np.take_along_axis(logits, self.outcome, axis=2) - np.log(total)
        return p, (self.weight * said[..., 0]).sum(axis=1)

    def derivatives(self, p: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients (P, K) of the log-likelihood, and its negative Hessians (P, K, K) with the prior's precision."""
        win, tie, loss = (self.weight * p[..., k] for k in range(3))
        said = self.weight[..., None] * LOGITS[self.outcome[..., 0]]
        slope = np.zeros((len(p), len(precision)))
        slope[:, self.on_d] += ((said[..., 0] - (win - loss) / 2)[:, None] @ self.d)[:, 0]
        slope[:, self.on_t] += ((said[..., 1] - tie)[:, None] @ self.t)[:, 0]
        # Variances and covariance of a vote's derivatives (1/2, 0, -1/2 on d; 0, 1, 0 on t), without differences of
        # nearly equal numbers.
        either = tie * p[..., 0] + tie * p[..., 2]
        of_d, across = win * p[..., 2] + either / 4, -(tie * p[..., 0] - tie * p[..., 2]) / 2
        curvature = np.tile(precision, (len(p), 1, 1))
        for i in range(0, p.shape[1], TOGETHER):
            some = slice(i, i + TOGETHER)
            d, t = self.d[:, some], self.t[:, some]
            turned = d.transpose(0, 2, 1)
            curvature[:, self.on_d, self.on_d] += turned @ (of_d[:, some, None] * d)
            mixed = turned @ (across[:, some, None] * t)
            curvature[:, self.on_d, self.on_t] += mixed
            curvature[:, self.on_t, self.on_d] += mixed.transpose(0, 2, 1)
            curvature[:, self.on_t, self.on_t] += t.transpose(0, 2, 1) @ (either[:, some, None] * t)
        return slope, curvature


def _newton(
    means: np.ndarray, precision: np.ndarray, votes: _Votes, theta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Modes (P, K) and inverse curvatures (P, K, K) of P posteriors by damped Newton steps from theta (P, K)."""

    def at(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(P, V, 3) probabilities and (P,) log posteriors."""
        p, fits = votes.likelihood(theta)
        away = theta - means
        return p, fits - ((away @ precision) * away).sum(axis=1) / 2

    p, best = at(theta)
    for _ in range(_STEPS):
        slope, curvature = votes.derivatives(p, precision)
        step = np.linalg.solve(curvature, (slope - (theta - means) @ precision)[:, :, None])[:, :, 0]
        length = np.ones((len(theta), 1))
        for _ in range(_HALVINGS):
            p, reached = at(theta + length * step)
            worse = reached < best - 1e-9
            if not worse.any():
                break
            length[worse] /= 2
        theta, best = theta + length * step, reached
        if np.abs(step).max(initial=0.0) < 1e-8:
            break
    return theta, np.linalg.inv(votes.derivatives(p, precision)[1])
