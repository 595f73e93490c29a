"""Likelihood of held-out votes under a temperature, and what is fitted by it; `temperature` has the formulas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reward_models import ties


@dataclass(frozen=True)
class Votes:
    """N held-out votes of P people, and what was predicted of them.

    Attributes:
        difference: (N,) reward of the first reply less the second's.
        log_nu: (N,) log of the tie parameter.
        outcome: (N,) ties.WIN, TIE or LOSS.
        weight: (N,) 1 on average.
        person: (N,) who voted, 0 to P - 1.
    """

    difference: np.ndarray
    log_nu: np.ndarray
    outcome: np.ndarray
    weight: np.ndarray
    person: np.ndarray

    def take(self, rows: np.ndarray) -> Votes:
        """Some of them."""
        return Votes(
            self.difference[rows], self.log_nu[rows], self.outcome[rows], self.weight[rows], self.person[rows]
        )

    def scaled(self, slope: float, shift: float) -> np.ndarray:
        """(N, 3) probabilities with differences times `slope`."""
        return scaled(self.difference, self.log_nu, slope, shift)


def scaled(difference: np.ndarray, log_nu: np.ndarray, slope: float, shift: float) -> np.ndarray:
    """(N, 3) probabilities of win, tie, loss with differences (N,) times `slope`, log tie parameters (N,) shifted."""
    from scipy.special import softmax

    half = slope * difference / 2
    return np.asarray(softmax(np.stack([half, log_nu + shift, -half], axis=1), axis=1))


def maximise(votes: Votes) -> tuple[float, float]:
    """Slope 1 / tau and shift of greatest likelihood."""
    from scipy.optimize import minimize

    # In units of the typical difference, so that both directions are about as curved.
    n, unit = len(votes.outcome), float(np.sqrt((votes.difference**2).mean())) or 1.0
    v = Votes(votes.difference / unit, votes.log_nu, votes.outcome, votes.weight, votes.person)

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        p = v.scaled(*at)
        prior = np.array([0.0, ties.TIE_RIDGE * at[1]])
        value = v.weight @ ties.outcome_loss(p, v.outcome) + prior[1] * at[1] / 2
        return float(value) / n, (prior - _slopes(v, p).sum(axis=0)) / n

    found = minimize(
        loss,
        np.array([unit, 0.0]),
        jac=True,
        hess=lambda at: _curvature(v, v.scaled(*at)) / n,
        method="trust-exact",
        options={"gtol": 1e-9},
    )
    return float(found.x[0]) / unit, float(found.x[1])


def slope_error(votes: Votes, slope: float, shift: float) -> float:
    """Standard deviation of the slope over people, where the likelihood is greatest."""
    p = votes.scaled(slope, shift)
    bread = np.linalg.pinv(_curvature(votes, p))
    people = int(votes.person.max()) + 1
    scores = np.stack([np.bincount(votes.person, weights=s, minlength=people) for s in _slopes(votes, p).T])
    return float(np.sqrt((bread @ scores @ scores.T @ bread)[0, 0] * people / (people - 1)))


def interval(slope: float, error: float, people: int) -> tuple[float, float]:
    """95 % interval of tau over so many people."""
    from scipy.special import stdtrit

    half = float(stdtrit(people - 1, 0.975)) * error
    low = 1 / (slope + half) if slope + half > 0 else np.inf
    return low, 1 / (slope - half) if slope > half else np.inf


def positive(slope: float, error: float) -> float:
    """Mean of a normal slope that is known to be above 0: the slope itself where that is beyond doubt.

    Where it is not, the most likely slope may be next to nothing, and 1 / slope without bound.
    """
    from scipy.special import log_ndtr

    if error <= 0:
        return slope
    z = slope / error
    return float(slope + error * np.exp(-(z**2) / 2 - np.log(2 * np.pi) / 2 - log_ndtr(z)))


def cross_fitted(votes: Votes, folds: int, seed: int) -> np.ndarray:
    """(N, 3) probabilities of each person's votes under the temperature of the people in other folds."""
    people = int(votes.person.max()) + 1
    fold = (np.random.default_rng(seed).permutation(people) % min(folds, people))[votes.person]
    p = np.empty((len(votes.outcome), 3))
    for k in np.unique(fold):
        own, others = fold == k, fold != k
        p[own] = votes.take(own).scaled(*maximise(votes.take(others)))
    return p


def _slopes(votes: Votes, p: np.ndarray) -> np.ndarray:
    """(N, 2) derivatives of each vote's weighted log-likelihood in slope and shift."""
    won = (votes.outcome == ties.WIN).astype(float) - (votes.outcome == ties.LOSS)
    lean = p[:, ties.WIN] - p[:, ties.LOSS]
    tied = (votes.outcome == ties.TIE) - p[:, ties.TIE]
    return np.stack([votes.difference * (won - lean) / 2, tied], axis=1) * votes.weight[:, None]


def _curvature(votes: Votes, p: np.ndarray) -> np.ndarray:
    """(2, 2) negative Hessian of the log-likelihood, with the prior that keeps the shift finite."""
    lean, tie = p[:, ties.WIN] - p[:, ties.LOSS], p[:, ties.TIE]
    d, w = votes.difference, votes.weight
    across = -(w * d * lean * tie).sum() / 2
    by_slope = (w * d**2 * (p[:, ties.WIN] + p[:, ties.LOSS] - lean**2)).sum() / 4
    return np.array([[by_slope, across], [across, (w * tie * (1 - tie)).sum() + ties.TIE_RIDGE]])
