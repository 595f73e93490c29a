"""The value of a policy that did not serve, from the logs of the one that did.

Of N logged replies: reward r, the probability b > 0 with which the logged policy served it (propensity), the
probability pi with which the target policy would have, w = pi / b. Where an outcome model is given: q, its reward of
the logged reply, and v, its mean reward of the target's replies to the same prompt.

    ips    mean of w r                                  Horvitz and Thompson 1952 (JASA 47)
    snips  sum of w r / sum of w                        Swaminathan and Joachims 2015 (NeurIPS), self-normalised
    dr     mean of v + w (r - q)                        Dudik, Langford and Li 2011 (ICML, arXiv 1103.4601)
    ess    (sum of w)^2 / sum of w^2                    Kish 1965: how many replies the weights leave

`ips` is unbiased and wide; `snips` is narrower, with a bias that vanishes; `dr` is unbiased where either the
propensities or the model are right, and narrower the better the model is. The model must not have seen the row that
it predicts (`crossfitted_means` makes a simple one that has not). A cap on w trades bias for width; how much weight it
took away is told. Below `min_ess` every estimate is refused: an interval from a handful of rows with luck in them
looks as good as any other. What was never logged is in no row, so the effective sample size cannot miss it; but where
propensities are right and every reply of the target could have been logged, w has mean 1. A mean that is another
beyond doubt (99.9 %) is refused, too. Rewards are often rare, so intervals are corrected for skewness (`estimates`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from evaluation.errors import EvaluationError
from evaluation.estimates import Estimate, bootstrap_ratio
from reward_models.sample_size import effective_size


class InsufficientOverlap(EvaluationError):
    """The logged policy hardly ever did what the target policy would do."""

    exit_code = 4


class Config(BaseModel):
    """How values are estimated."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    min_ess: float = Field(default=100.0, ge=1)
    """Below this effective sample size an estimate is refused."""
    mean_weight_tolerance: float = Field(default=0.05, ge=0)
    """An estimate is refused where the 99.9 % interval of the mean weight is further than this from 1."""
    max_weight: float | None = Field(default=None, gt=0)
    """Weights are cut down to this; None leaves them."""
    resamples: int = Field(default=2000, ge=100)
    """Bootstrap samples of each interval."""


@dataclass(frozen=True)
class Logged:
    """N logged replies.

    Attributes:
        reward: (N,) finite.
        propensity: (N,) in (0, 1], of the logged reply under the policy that served it.
        target: (N,) in [0, 1], of the same reply under the target policy.
        clusters: (N,) the user or session of each; None where rows are independent.
        predicted: (N,) an outcome model's reward of the logged reply; None without a model.
        predicted_target: (N,) its mean reward of the target's replies to the same prompt.
    """

    reward: npt.NDArray[np.float64]
    propensity: npt.NDArray[np.float64]
    target: npt.NDArray[np.float64]
    clusters: npt.NDArray[np.generic] | None = None
    predicted: npt.NDArray[np.float64] | None = None
    predicted_target: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        columns = {
            name: value
            for name in ("reward", "propensity", "target", "predicted", "predicted_target")
            if (value := getattr(self, name)) is not None
        }
        shapes = {name: np.shape(value) for name, value in columns.items()}
        if len(set(shapes.values())) != 1 or len(shapes["reward"]) != 1:
            raise EvaluationError("Every logged reply needs each of its numbers.", got=shapes)
        for name, value in columns.items():
            if bad := int((~np.isfinite(value)).sum()):
                raise EvaluationError(
                    f"A logged {name} is missing or not finite.",
                    got=f"{bad} of {len(value)} rows",
                    next_step="log the propensity of every reply, and leave out rows without one by name",
                )
        for name, low in (("propensity", "more than 0"), ("target", "at least 0")):
            value = columns[name]
            wrong = (value > 1) | ((value <= 0) if name == "propensity" else (value < 0))
            if wrong.any():
                raise EvaluationError(
                    f"A {name} is a probability.",
                    got=f"{value[wrong][0]} and {int(wrong.sum())} such rows",
                    allowed=f"{low}, at most 1",
                )
        if (self.predicted is None) != (self.predicted_target is None):
            raise EvaluationError(
                "An outcome model gives both `predicted` and `predicted_target`, or neither."
            )


@dataclass(frozen=True)
class Value:
    """What a policy is worth.

    Attributes:
        ips, snips: mean reward of a reply, with its interval.
        dr: the same with the outcome model; None without one.
        ess: effective sample size.
        rows: logged replies.
        capped: share of the total weight that the cap took away.
    """

    ips: Estimate
    snips: Estimate
    dr: Estimate | None
    ess: float
    rows: int
    capped: float


def effective_sample_size(weights: npt.ArrayLike) -> float:
    """Kish's: (sum of w)^2 / sum of w^2; 0 where all weights are."""
    return effective_size(np.asarray(weights, dtype=np.float64))


def evaluate(logged: Logged, config: Config, *, seed: int) -> Value:
    """Estimates the target policy's value.

    Raises:
        InsufficientOverlap: the effective sample size is below `min_ess`, or the weights show that the target policy
            does what was never logged, or that propensities are wrong.
    """
    full = logged.target / logged.propensity
    w = full if config.max_weight is None else np.minimum(full, config.max_weight)
    ess = effective_sample_size(w)
    if ess < config.min_ess:
        raise InsufficientOverlap(
            "The logged policy did too rarely what the target policy would do; its value is not estimated.",
            got=f"effective sample size {ess:.1f} of {len(w)} logged replies",
            allowed=f"at least {config.min_ess:g} (min_ess)",
            next_step="log more replies, explore more, or compare with a policy nearer to the logged one",
        )
    if np.ptp(logged.reward[w > 0]) == 0:
        raise InsufficientOverlap(
            "All rewards are the same, which tells nothing of how much they vary; no value is estimated.",
            got=f"{float(logged.reward[w > 0][0]):g} for all of {int((w > 0).sum())} replies",
            next_step="log more replies, until both outcomes have happened",
        )
    estimate = partial(
        bootstrap_ratio, clusters=logged.clusters, seed=seed, resamples=config.resamples, skewed=True
    )
    ones = np.ones(len(w))
    _check_support(estimate(full, ones, confidence=0.999), config)
    dr = None
    if logged.predicted is not None and logged.predicted_target is not None:
        dr = estimate(logged.predicted_target + w * (logged.reward - logged.predicted), ones)
    return Value(
        ips=estimate(w * logged.reward, ones),
        snips=estimate(w * logged.reward, w),
        dr=dr,
        ess=ess,
        rows=len(w),
        capped=float(1 - w.sum() / full.sum()) if full.sum() else 0.0,
    )


def _check_support(mean_weight: Estimate, config: Config) -> None:
    """Refuses weights, before any cap, whose mean is provably not 1."""
    tolerance = config.mean_weight_tolerance
    if mean_weight.low > 1 + tolerance or mean_weight.high < 1 - tolerance:
        raise InsufficientOverlap(
            "The weights do not average 1: the target policy does what was never logged, or propensities are wrong.",
            got=f"mean weight {mean_weight.value:.3f} [{mean_weight.low:.3f}, {mean_weight.high:.3f}]",
            allowed=f"an interval within {tolerance:g} of 1 (mean_weight_tolerance)",
            next_step="log propensities as they were when a reply was drawn, and explore what the target would do",
        )


def crossfitted_means(
    cell: npt.NDArray[np.int64],
    reward: npt.NDArray[np.float64],
    cells: int,
    *,
    folds: int = 5,
    pull: float = 20.0,
    seed: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Mean reward of each cell (an action, or an action in a situation), from rows outside the row's own fold.

    Args:
        cell: (N,) codes in [0, cells).
        reward: (N,)
        cells: how many there are.
        folds: rows are divided into so many at random.
        pull: each mean is pulled to the mean of all as by so many rows.
        seed: of the division.

    Returns:
        Means (folds, cells) that the rows of each fold may be predicted with, and the fold of each row (N,).
    """
    fold = np.random.default_rng(seed).permutation(len(cell)) % folds
    means = np.empty((folds, cells))
    for k in range(folds):
        outside = fold != k
        counts = np.bincount(cell[outside], minlength=cells)
        sums = np.bincount(cell[outside], weights=reward[outside], minlength=cells)
        everywhere = reward[outside].mean() if outside.any() else 0.0
        means[k] = (sums + pull * everywhere) / (counts + pull)
    return means, fold
