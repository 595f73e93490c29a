"""How much one person may weigh in what is learned for everybody.

Two caps, the lower of which holds. A person's total weight is at most `times_median` times the median person's, so that
among many people, most of whom said little, nobody is heard a hundred times as loud. And it is at most a share of
everybody's total, so that among few people nobody decides alone; a share below an equal part cannot be kept, so with
few people it is `equal_parts` equal parts: of three people each may carry two thirds, and there is no cap to speak of.

The share is of what is left after capping, found exactly: with weights sorted and the k largest capped at c, c is
s (k c + rest), so c = s rest / (1 - s k) (water-filling, as in Boyd and Vandenberghe 2004, Convex Optimization, 5.5.3).

Rows of nobody in particular may be one person's or a thousand's. Each counts as its own person's, lest a product
without ids learned nothing, but beside enough people who can be told apart all together never weigh more than
`anonymous_share` of everything: otherwise leaving out the id would be the way around the cap. The first people who log
in must not undo what a product learns without ids either, so the limit comes into force as the cap does. With A the
weight of such rows, P that of U people (as many equal ones as they are worth, Kish 1965) and a the share,

    A' = (1 - f) A + f min(A, P a / (1 - a))        f = min(1, U max_share / equal_parts)

where f is 1 from the number of people on for whom `max_share` is the cap, with the default settings forty. Each of them
moves A' by a fortieth of the way at most; with fewer, whoever leaves out the id is less held in check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models.sample_size import effective_size
from reward_models.scorer import RewardModelError


class Config(BaseModel):
    """Settings of the cap on one person's influence."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_share: float = Field(default=0.05, gt=0, le=1)
    """Most of the total weight that one person may carry."""
    equal_parts: float = Field(default=2.0, gt=1)
    """With few people a person may carry so many times an equal part, where that is more than `max_share`."""
    times_median: float = Field(default=10.0, ge=1)
    """Most that a person may weigh, in weights of the median person."""
    free: float = Field(default=20.0, ge=0)
    """Total weight that `times_median` never goes below: where most people vote once, ten votes are no danger."""
    anonymous_share: float = Field(default=0.5, gt=0, lt=1)
    """Most of the total weight that rows without a person carry together, beside many people; see the module's text."""


@dataclass(frozen=True)
class Report:
    """What the cap did."""

    people: int
    """Who can be told apart and weigh something."""
    capped: tuple[str, ...]
    """Ids of people who were capped, sorted."""
    cap: float | None
    """Most that a person weighs; None where nobody was capped."""
    before: float
    """Total weight before."""
    after: float
    """Total weight after."""
    largest_share: float
    """Of the heaviest person in the weight of all people afterwards; 0 without people."""
    effective_people: float
    """Kish's effective sample size, (sum w)^2 / sum w^2 over people's total weights w afterwards."""
    anonymous: float
    """Weight of rows without a person afterwards."""


@dataclass(frozen=True)
class Capped:
    """Weights (N,) with nobody above the cap, and what it did."""

    weights: np.ndarray
    report: Report


def capped(user_ids: Sequence[str | None], weights: np.ndarray, config: Config | None = None) -> Capped:
    """Weights under which no person carries more than the cap; a person's rows keep their proportions.

    Args:
        user_ids: of N rows, None where nobody is known.
        weights: (N,) non-negative.
        config: settings.

    Raises:
        RewardModelError: weights are not finite, negative, or not as many as rows.
    """
    config = config or Config()
    weights = np.asarray(weights, dtype=np.float64)
    _check(user_ids, weights)
    known = np.array([name is not None for name in user_ids], dtype=bool)
    names, code = np.unique(
        np.array([name for name in user_ids if name is not None], dtype=object).astype(str),
        return_inverse=True,
    )
    total = np.bincount(code, weights[known], minlength=len(names))
    cap = _cap(total[total > 0], config)
    factor = np.ones(len(total))
    factor[total > cap] = cap / total[total > cap]
    after = weights.copy()
    after[known] *= factor[code]
    people = total * factor
    _limit_anonymous(after, known, people, config)
    over = np.flatnonzero(factor < 1)
    report = Report(
        people=int((total > 0).sum()),
        capped=tuple(str(names[i]) for i in over),
        cap=float(cap) if len(over) else None,
        before=float(weights.sum()),
        after=float(after.sum()),
        largest_share=float(people.max() / people.sum()) if people.sum() > 0 else 0.0,
        effective_people=effective_size(people),
        anonymous=float(after[~known].sum()),
    )
    return Capped(after, report)


def _cap(totals: np.ndarray, config: Config) -> float:
    """Most that a person may weigh, given everybody's total weight (U,), all positive."""
    if not len(totals):
        return np.inf
    by_median = max(config.times_median * float(np.median(totals)), config.free)
    share = max(config.max_share, config.equal_parts / len(totals))
    return min(by_median, _cap_of_share(np.minimum(totals, by_median), share))


def _cap_of_share(totals: np.ndarray, share: float) -> float:
    """The largest c with c <= share * sum(min(totals, c)) for whoever is at c; infinite where nobody is above it."""
    falling = np.sort(totals)[::-1]
    rest = falling[::-1].cumsum()[::-1]  # rest[k]: of everybody but the k largest
    for k, largest in enumerate(falling):
        if share * k >= 1:
            break
        cap = share * rest[k] / (1 - share * k)
        if largest <= cap * (1 + 1e-12):
            return float(cap) if k else np.inf
    return np.inf


def _limit_anonymous(weights: np.ndarray, known: np.ndarray, people: np.ndarray, config: Config) -> None:
    """Scales the rows of nobody in particular, in place, beside people of these total weights (U,)."""
    anonymous = float(weights[~known].sum())
    allowed = float(people.sum()) * config.anonymous_share / (1 - config.anonymous_share)
    if anonymous > allowed:
        force = min(1.0, effective_size(people) * config.max_share / config.equal_parts)
        weights[~known] *= 1 - force + force * allowed / anonymous


def _check(user_ids: Sequence[str | None], weights: np.ndarray) -> None:
    if weights.shape != (len(user_ids),):
        raise RewardModelError(
            "Weights and rows differ in number.",
            got=weights.shape,
            allowed=f"({len(user_ids)},)",
            next_step="pass one weight for each row",
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise RewardModelError(
            "A weight is no finite number from 0 up.",
            got=float(weights[~(np.isfinite(weights) & (weights >= 0))][0]),
            allowed=">= 0",
            next_step="look at the column `weight` of the preference rows",
        )
