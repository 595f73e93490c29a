"""How likely a reply is to be rated at all, predicted for people whose ratings the model has not seen.

A ridge logistic regression on what is known when the reply is served, beside how often this person rated their other
replies (beta-binomial, shrunk to everybody's).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reward_models.scorer import RewardModelError

_FURTHEST = 5.0  # standard deviations; one strange reply cannot get a propensity of its own
TINY = 1e-6
_FEWEST = 20
"""Agents with fewer replies to learn from are told apart by nothing."""


@dataclass(frozen=True)
class Served:
    """N replies that were served, rated or not.

    Attributes:
        user: (N,) who was served; None entries, or None for all, where that is not known.
        agent: (N,) which agent replied, or None.
        features: (N, F) what is known when the reply is served, e.g. `known_when_served`.
        rated: (N,) bool, whether explicit feedback came.
        position: (N,) place in the session from 0, if known.
        together: (N,) what must not be split between folds, if not the user: e.g. the conversation.
        silent_share: which share of the silent replies is here; all rated ones are.
    """

    user: np.ndarray | None
    agent: np.ndarray | None
    features: np.ndarray
    rated: np.ndarray
    position: np.ndarray | None = None
    together: np.ndarray | None = None
    silent_share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.silent_share <= 1:
            raise RewardModelError("A share is in (0, 1].", got=self.silent_share, allowed="(0, 1]")
        n = len(self.rated)
        if self.rated.dtype != bool:
            raise RewardModelError("Rated or not must be booleans.", got=self.rated.dtype, allowed="bool")
        lists = [
            c for c in (self.rated, self.user, self.agent, self.position, self.together) if c is not None
        ]
        if self.features.ndim != 2 or len(self.features) != n or any(c.shape != (n,) for c in lists):
            shapes = [self.features.shape, *(c.shape for c in lists)]
            raise RewardModelError("What is known must be known of every reply.", got=shapes, allowed=n)
        position = np.zeros(0) if self.position is None else self.position
        if not (np.isfinite(self.features).all() and np.isfinite(position).all()):
            raise RewardModelError(
                "What is known of a reply must be finite numbers.",
                got="NaN or infinity",
                next_step="leave the column out, or say in a column of its own that it is missing",
            )


def codes(names: np.ndarray | None, n: int) -> np.ndarray:
    """(N,) a code for each name; what has none is alone, with a negative one."""
    if names is None:
        return -1 - np.arange(n)
    seen: dict[object, int] = {}
    return np.array(
        [-1 - i if name is None or name != name else seen.setdefault(name, len(seen)) for i, name in enumerate(names)],
        dtype=int,
    )  # fmt: skip


def folds_of(cluster: np.ndarray, folds: int, seed: int) -> tuple[np.ndarray, int]:
    """(N,) fold of each row, and how many clusters there are; a cluster is in one fold."""
    names, code = np.unique(cluster, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(names)) % folds)[code], len(names)


def others_of(user: np.ndarray, rated: np.ndarray) -> np.ndarray:
    """(N, 2) of each row's person: how many other replies they rated, and how many others they had."""
    _, code = np.unique(user, return_inverse=True)
    return np.stack([np.bincount(code, rated)[code] - rated, np.bincount(code)[code] - 1.0], axis=1)


def _own_rate(others: np.ndarray, inside: np.ndarray, rated: np.ndarray) -> np.ndarray:
    """(N,) log-odds of the person's rate over those of everybody's, shrunk as a beta-binomial says.

    The prior's mean is the share of the rated in the training rows; its strength is the most likely one there.

    Args:
        others: (N, 2) see `_others`.
        inside: (N,) bool, the training rows.
        rated: (N,) bool
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import betaln, logit

    mean = float(np.clip(rated[inside].mean(), TINY, 1 - TINY))
    # A person of n rows is met n times, so each counts 1 / n: the likelihood is one of people.
    of_people = np.stack([others[inside, 0] + rated[inside], others[inside, 1] + 1])
    (hits, rows), met = np.unique(of_people, axis=1, return_counts=True)

    def surprise(log_strength: float) -> float:
        a, b = np.exp(log_strength) * mean, np.exp(log_strength) * (1 - mean)
        return -float((met / rows * (betaln(hits + a, rows - hits + b) - betaln(a, b))).sum())

    strength = float(np.exp(minimize_scalar(surprise, bounds=(-3.0, 9.0), method="bounded").x))
    rate = (others[:, 0] + strength * mean) / (others[:, 1] + strength)
    return np.asarray(logit(np.clip(rate, TINY, 1 - TINY)) - logit(mean))


def design_of(served: Served, others: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """(N, P) columns of the model, standardised by the training rows; agents as they are, so the ridge shrinks them."""
    columns = [np.asarray(served.features, dtype=np.float64)]
    if served.position is not None:
        columns.append(np.log1p(np.asarray(served.position, dtype=np.float64))[:, None])
    if (others[:, 1] > 0).any():
        columns.append(_own_rate(others, inside, served.rated)[:, None])
    raw = np.concatenate(columns, axis=1)
    spread = raw[inside].std(axis=0)
    x = (raw - raw[inside].mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
    agent = _common(codes(served.agent, len(raw)), inside)
    one_hot = (agent[:, None] == np.arange(max(agent.max() + 1, 0))[None]).astype(np.float64)
    return np.concatenate([np.clip(x, -_FURTHEST, _FURTHEST), one_hot], axis=1)


def _common(agent: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """(N,) codes of agents with enough training rows, from 0; -1 for all others, who may be one for each session."""
    known, code = np.unique(agent, return_inverse=True)
    enough = (np.bincount(code, inside, minlength=len(known)) >= _FEWEST) & (known >= 0)
    renamed = np.where(enough, np.cumsum(enough) - 1, -1)
    return np.asarray(renamed[code])


def predicted(
    design: np.ndarray, rated: np.ndarray, inside: np.ndarray, outside: np.ndarray, ridge: float
) -> np.ndarray:
    """Probability of being rated of the rows outside, from a model of the rows inside."""
    from scipy.special import expit

    theta = logistic(design[inside], rated[inside], ridge)
    return np.clip(expit(theta[0] + design[outside] @ theta[1:]), TINY, 1 - TINY)


def logistic(x: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """(1 + P,) intercept and weights that maximise the log-likelihood less ridge/2 * |weights|^2.

    Args:
        x: (N, P) columns.
        y: (N,) bool.
        ridge: precision of the Gaussian prior on each weight; the intercept has none.
    """
    from scipy.optimize import minimize
    from scipy.special import expit, logit

    a, sign = np.concatenate([np.ones((len(x), 1)), x], axis=1), np.where(y, 1.0, -1.0)
    precision = np.append(0.0, np.full(x.shape[1], ridge))

    def surprise(theta: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (a @ theta)
        value = np.logaddexp(0, -margin).sum() + (precision * theta**2).sum() / 2
        return float(value), -(a.T @ (sign * expit(-margin))) + precision * theta

    start = np.append(logit(np.clip(y.mean(), TINY, 1 - TINY)), np.zeros(x.shape[1]))
    found = minimize(surprise, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "gtol": 1e-6})
    return np.asarray(found.x)


def loss_of(p: np.ndarray, rated: np.ndarray) -> np.ndarray:
    """(N,) negative log-likelihood in nats."""
    return np.asarray(-np.log(np.where(rated, p, 1 - p)))


def mean_by_cluster(values: np.ndarray, cluster: np.ndarray) -> tuple[float, float]:
    """Mean over rows, and its standard error where rows of a cluster resemble each other."""
    names, code = np.unique(cluster, return_inverse=True)
    mean, k = float(values.mean()), len(names)
    sums = np.bincount(code, values - mean)
    return mean, float(np.sqrt((sums**2).sum() * k / (k - 1))) / len(values)
