"""Who happens to rate: how likely a reply was to be rated at all, and weights that make up for it.

Silence is no label, and those who speak are not everybody: long replies, some agents, some people are rated more
than others. What is liked among the rated is then not what is liked. Each rated reply is weighted by how seldom
its like is rated,

    weight = min(cap, P(rated) / P(rated | what is known when the reply is served)), then scaled to mean 1,

the stabilised inverse weights of Robins, Hernan and Brumback 2000, Marginal structural models and causal inference in
epidemiology; the cap trades bias for variance (Cole and Hernan 2008, Constructing inverse probability weights for
marginal structural models). The propensity of a reply comes from a model that was fitted on other people
(cross-fitting: Chernozhukov et al. 2018, Double/debiased machine learning), and from how often this person rated their
other replies, so a row's own rating has no part in it. Where that model is no better than a constant on people it has
not seen, every weight is 1: noise for nothing is no correction.

What this cannot mend. Who rates because they like, or because they do not, differs in nothing that is known before:
no weight sees it. `sensitivity` says how much could hide there. And nobody can stand for replies that are never rated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models.features import NAMES, text_features
from reward_models.rating_model import (
    TINY,
    Served,
    codes,
    design_of,
    folds_of,
    loss_of,
    mean_by_cluster,
    others_of,
    predicted,
)
from reward_models.sample_size import effective_size
from reward_models.scorer import RewardModelError


class Config(BaseModel):
    """Settings of the correction for who rates."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folds: int = Field(default=5, ge=3)
    """Parts into which people are divided; propensities of one are predicted from the others."""
    ridges: tuple[float, ...] = Field(default=(1.0, 10.0, 100.0, 1000.0), min_length=1)
    """Prior precisions that are tried, on one of the other parts."""
    min_of_each: int = Field(default=20, ge=1)
    """With fewer rated or fewer silent rows nothing is corrected."""
    certainty: float = 1.645
    """Standard errors by which the model must beat the constant, out of sample; 1.645 errs in about 5 %."""
    max_weight: float = Field(default=10.0, ge=1)
    """Largest stabilised weight; higher ones are cut to it."""
    min_effective_share: float = Field(default=0.3, gt=0, le=1)
    """Least share of the rated that may be left as effective sample size; the cap is lowered until it is."""


@dataclass(frozen=True)
class Report:
    """What was done to the ratings, and how far it can be trusted."""

    rows: int
    rated: int
    why_not: str
    """Why nothing was corrected; empty where it was."""
    gain: float
    """Nats per row by which the model beats the constant on people it has not seen; NaN without a model."""
    gain_error: float
    """Its standard error, over people."""
    calibration: tuple[tuple[float, float, int], ...]
    """By tenths of the propensity: mean predicted, share that was rated, rows."""
    cap: float
    """Largest stabilised weight that was let through."""
    cap_lowered: bool
    """Whether the cap had to be lowered for `min_effective_share`."""
    capped: int
    effective_uncapped: float
    """Kish's effective sample size before the cap; that of equal weights is `rated`."""
    effective: float
    """Kish's effective sample size of the weights as they are."""

    @property
    def corrected(self) -> bool:
        """Whether the weights differ from 1."""
        return not self.why_not

    @property
    def sentence(self) -> str:
        """All of it in plain words."""
        if not self.corrected:
            return f"Nothing is corrected, every rating counts the same: {self.why_not}."
        lowered = f", lowered to {self.cap:.2f} lest too few ratings count" if self.cap_lowered else ""
        return (
            f"{self.rated} of {self.rows} replies are rated; weighted by how seldom their like is, they count as "
            f"{self.effective:.0f} ({self.effective_uncapped:.0f} without a cap; {self.capped} cut by it{lowered})."
        )


@dataclass(frozen=True)
class Weights:
    """Result of `weigh`.

    Attributes:
        propensity: (N,) probability of being rated, in (0, 1); the share of the rated where no model was fitted.
        weight: (R,) of the rated rows in their order, mean 1.
        report: what was done.
    """

    propensity: np.ndarray
    weight: np.ndarray
    report: Report


def known_when_served(prompts: list[str], replies: list[str]) -> np.ndarray:
    """(N, F) named features of each reply, then those of its prompt (the last user message)."""
    asked = text_features([""] * len(prompts), prompts)
    return np.concatenate(
        [text_features(prompts, replies), asked[:, : NAMES.index("prompt_overlap")]], axis=1
    )


def weigh(served: Served, config: Config | None = None, seed: int = 0) -> Weights:
    """Propensities of all replies and weights of the rated ones.

    Args:
        served: rated and silent replies; without the silent ones nothing can be known.
        config: settings.
        seed: divides people into folds.
    """
    config = config or Config()
    rated = served.rated
    n, heard = len(rated), int(rated.sum())
    user = codes(served.user, n)
    cluster = user if served.together is None else codes(served.together, n)
    fold, clusters = folds_of(cluster, config.folds, seed)
    share = np.full(n, heard / n if n else np.nan)
    if min(heard, n - heard) < config.min_of_each:
        return _uncorrected(
            share, rated, f"{heard} rated and {n - heard} silent replies are too few to compare"
        )
    if clusters < config.folds:
        return _uncorrected(
            share, rated, f"{clusters} people or conversations are too few to learn from others"
        )

    propensity, constant = np.empty(n), np.empty(n)
    others = others_of(user, rated)
    for k in range(config.folds):
        inside, outside = fold != k, fold == k
        judge = fold == (k + 1) % config.folds
        design = design_of(served, others, inside & ~judge)
        losses = [
            loss_of(predicted(design, rated, inside & ~judge, judge, r), rated[judge]).sum()
            for r in config.ridges
        ]
        ridge = config.ridges[int(np.argmin(losses))]
        propensity[outside] = predicted(design_of(served, others, inside), rated, inside, outside, ridge)
        constant[outside] = np.clip(rated[inside].mean(), TINY, 1 - TINY)
    gain, error = mean_by_cluster(loss_of(constant, rated) - loss_of(propensity, rated), cluster)
    calibration = calibrated(propensity, rated)
    if gain <= max(config.certainty * error, TINY):  # rounding is no gain
        why = f"what is known when a reply is served does not tell who rates (gain {gain:.4f} ± {error:.4f} nats)"
        return _uncorrected(propensity, rated, why, gain, error, calibration)

    # Rated replies are all here and silent ones only in part: that scales the odds and nothing else (King and Zeng
    # 2001, Logistic regression in rare events data, "prior correction").
    odds = propensity / (1 - propensity) * served.silent_share
    propensity = odds / (1 + odds)
    stabilised = heard / (heard + (n - heard) / served.silent_share) / propensity[rated]
    cap = cap_for(stabilised, config.max_weight, config.min_effective_share)
    weight = np.minimum(stabilised, cap)
    report = Report(
        n, heard, "", gain, error, calibration, cap, cap < config.max_weight, int((stabilised > cap).sum()),
        effective_size(stabilised), effective_size(weight),
    )  # fmt: skip
    return Weights(propensity, weight / weight.mean(), report)


def cap_for(weight: np.ndarray, highest: float, least_share: float) -> float:
    """The highest cap, at most `highest`, that leaves this share of the rows as effective sample size.

    Cutting lower makes weights more equal, so the effective size only grows.
    """
    enough = least_share * len(weight)
    if effective_size(np.minimum(weight, highest)) >= enough:
        return highest
    low, high = float(weight.min()), highest  # at the least weight all are equal
    for _ in range(60):
        middle = (low + high) / 2
        if effective_size(np.minimum(weight, middle)) >= enough:
            low = middle
        else:
            high = middle
    return low


def calibrated(propensity: np.ndarray, rated: np.ndarray) -> tuple[tuple[float, float, int], ...]:
    """By tenths of the propensity, from low to high: mean predicted, share rated, rows."""
    parts = np.array_split(np.argsort(propensity, kind="stable"), 10)
    return tuple(
        (float(propensity[part].mean()), float(rated[part].mean()), len(part)) for part in parts if len(part)
    )


def sensitivity(liked: np.ndarray, weight: np.ndarray, gamma: float) -> tuple[float, float]:
    """Bounds on the share that is liked among all, if liking itself changes the odds of rating.

    If, among replies alike in what is known, the odds that one who likes it rates are g times those of one who does
    not, then the odds of liking among the silent are 1/g of those among raters (exponential tilting: Scharfstein,
    Rotnitzky and Robins 1999, Adjusting for nonignorable drop-out using semiparametric nonresponse models). With g
    between 1/gamma and gamma and a weighted share q of liked ratings, the share among all is, however few rate,

        between  q / (q + gamma (1 - q))  and  gamma q / (gamma q + 1 - q).

    Replies may differ in q: both bounds bend outwards (convex and concave in q), so those of the mean hold all the
    more. They are of what can hide, not of chance: take them of the ends of an interval for q.

    Args:
        liked: (R,) bool.
        weight: (R,) of `weigh`.
        gamma: at least 1; at 1 both bounds are the weighted share.

    Returns:
        Lower and upper bound; (0, 1) where nobody rated.

    Raises:
        RewardModelError: gamma below 1.
    """
    if not gamma >= 1:
        raise RewardModelError(
            "Gamma is how many times the odds may differ.", got=gamma, allowed="at least 1"
        )
    total = float(np.sum(weight))
    if not total > 0:
        return 0.0, 1.0
    q = float(np.sum(weight * np.asarray(liked, dtype=np.float64))) / total
    return q / (q + gamma * (1 - q)), gamma * q / (gamma * q + 1 - q)


def verdict(gain: float, low: float, high: float) -> str:
    """Whether a correction helped, as a sentence: only an interval (in points) wholly above zero says so."""
    figures = f"{gain:+.1f} points [{low:+.1f}, {high:+.1f}]"
    if low > 0:
        return f"The correction helps: {figures}."
    why = "it hurts" if high < 0 else "the interval holds zero"
    return f"The correction does not help: {figures}, {why}."


def _uncorrected(
    propensity: np.ndarray,
    rated: np.ndarray,
    why: str,
    gain: float = np.nan,
    error: float = np.nan,
    calibration: tuple[tuple[float, float, int], ...] = (),
) -> Weights:
    r = int(rated.sum())
    report = Report(len(rated), r, why, gain, error, calibration, 1.0, False, 0, float(r), float(r))
    return Weights(propensity, np.ones(r), report)
