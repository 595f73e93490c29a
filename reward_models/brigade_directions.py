"""People in groups whose votes point one way, such as to longer replies, far beyond what honest people's do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reward_models.brigade_votes import TIE, Config, Votes
from reward_models.drift import benjamini_hochberg

_EXTREME = 0.05
"""Only so improbable people are counted together: many who are all near the usual are no group."""
_SAME = 1e-9
"""Vectors closer than this along a column do not differ in it."""


def by_direction(
    votes: Votes, cohorts: Sequence[np.ndarray], config: Config, names: Sequence[str]
) -> dict[str, str]:
    """People in groups that vote one way along a column, each with the reason.

    The most unusual group is taken out first and what honest people do is estimated again without it, so that it does
    not hide a second one, and columns that go with its own do not draw others in.
    """
    if votes.toward is None:
        return {}
    agree, differ, total = _counts(votes)
    left = total >= config.min_votes
    eager = (agree >= config.min_votes) & (agree >= config.min_agreement * differ)
    found: dict[str, str] = {}
    while left.sum() >= config.min_people:
        p = np.where(eager, _one_sided(agree, total, left, eager, config), 1.0)
        column, group = _most_extreme_group(p, left, cohorts, config)
        if not len(group):
            break
        # Whoever else is as extreme in the same column belongs to it, in whatever window they voted.
        everybody = np.flatnonzero(left)
        group = np.union1d(group, everybody[benjamini_hochberg(p[everybody, column], config.false_alarms)])
        left[group] = False
        axis, sign = column % votes.toward.shape[1], "more" if column < votes.toward.shape[1] else "less"
        called = names[axis] if axis < len(names) else f"column {axis}"
        for person in group.tolist():
            found[votes.names[person]] = (
                f"{agree[person, column]} of {differ[person, column]} votes for {sign} of {called}, "
                f"as {len(group) - 1} others (p = {p[person, column]:.0e})"
            )
    return found


def _counts(votes: Votes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(U, 2 D) votes toward each column's plus, then minus; (U, 2 D) where the column differs at all; (U,) all."""
    assert votes.toward is not None
    from scipy import sparse

    u, n = len(votes.names), len(votes.user)
    people = sparse.csr_array((np.ones(n), (votes.user, np.arange(n))), (u, n))
    decided = (votes.outcome != TIE)[:, None]
    differ = people @ (np.abs(votes.toward) > _SAME).astype(float)
    plus = people @ (decided & (votes.toward > _SAME)).astype(float)
    minus = people @ (decided & (votes.toward < -_SAME)).astype(float)
    agree, both = np.hstack([plus, minus]).astype(int), np.hstack([differ, differ]).astype(int)
    return agree, both, np.bincount(votes.user, minlength=u)


def _one_sided(
    agree: np.ndarray, total: np.ndarray, honest: np.ndarray, wanted: np.ndarray, config: Config
) -> np.ndarray:
    """(U, C) P(as many or more of a person's votes are toward a column), were they like the others; 1 if not wanted.

    Votes in which the column does not differ count as not toward it: voting only where one's cause is at stake is
    part of what a brigade does.
    """
    mean, spread = habits(agree[honest], total[honest], config.trimmed, config.min_spread)
    p = np.ones(agree.shape)
    who, column = np.nonzero(wanted)
    p[who, column] = beta_binomial_tail(agree[who, column], total[who], mean[column], spread[column])
    return p


def habits(
    agree: np.ndarray, total: np.ndarray, trimmed: float, min_spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and intraclass correlation (C,) of a beta-binomial for each column, without those most toward it.

    A brigade must not widen what counts as usual, so the most extreme people are left out, and what that takes from
    mean and variance of a normal variable is put back (the consistency factor of trimmed estimates; Croux and
    Haesbroeck 1999, J. Multivariate Analysis 71).

    Args:
        agree: (U, C) of each person's votes.
        total: (U,) all of them, at least one.
        trimmed: share of people left out.
        min_spread: below which the correlation is not believed.
    """
    from scipy.stats import norm

    n, share = total[:, None], agree / total[:, None]
    left_out = int(np.ceil(trimmed * len(total)))
    height = norm.pdf(norm.isf(trimmed)) / (1 - trimmed)
    kept_variance = 1 - height * norm.isf(trimmed) - height**2
    mean, spread = share.mean(axis=0), np.full(agree.shape[1], 0.1)
    for _ in range(8):
        z = (share - mean) / np.sqrt((1 + (n - 1) * spread) / n)
        kept = np.argsort(np.argsort(z, axis=0, kind="stable"), axis=0) < len(total) - left_out
        w = kept * n / (1 + (n - 1) * spread)
        w = w / w.sum(axis=0)
        middle = (w * share).sum(axis=0)
        seen = (w * (share - middle) ** 2).sum(axis=0) / kept_variance
        mean = middle + height * np.sqrt(seen)
        pq = np.maximum(mean * (1 - mean), 1e-12)
        within = (w * (1 - w) / n).sum(axis=0)
        room = (w * (1 - w)).sum(axis=0) - within
        spread = np.clip((seen / pq - within) / np.maximum(room, 1e-12), min_spread, 0.95)
    # Half a vote for and against of one more person, lest a mean of 0 be certain.
    return np.clip((mean * len(total) + 0.5) / (len(total) + 1), 1e-6, 1 - 1e-6), spread


def beta_binomial_tail(k: np.ndarray, n: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """P(K >= k) for K of n with beta-distributed probability of this mean and intraclass correlation; all (M,)."""
    from scipy.special import betaln, gammaln

    a, b = mean * (1 - spread) / spread, (1 - mean) * (1 - spread) / spread
    terms = (n - k + 1).astype(int)
    cell = np.repeat(np.arange(len(k)), terms)
    j = k[cell] + np.arange(len(cell)) - np.repeat(np.cumsum(terms) - terms, terms)
    m = n[cell]
    log = gammaln(m + 1) - gammaln(j + 1) - gammaln(m - j + 1)
    log += betaln(j + a[cell], m - j + b[cell]) - betaln(a[cell], b[cell])
    return np.minimum(np.bincount(cell, np.exp(log), minlength=len(k)), 1.0)


def _most_extreme_group(
    p: np.ndarray, left: np.ndarray, cohorts: Sequence[np.ndarray], config: Config
) -> tuple[int, np.ndarray]:
    """The column and the people that chance explains least, nobody where it explains all (Bonferroni)."""
    from scipy.stats import binom

    best, found = config.false_alarms / (p.shape[1] * (1 + len(cohorts))), (0, np.zeros(0, int))
    for cohort in (np.arange(len(p)), *cohorts):
        own = cohort[left[cohort]]
        extreme = (p[own] <= _EXTREME).sum(axis=0)
        if extreme.max(initial=0) < config.min_group:
            continue
        order = np.argsort(p[own], axis=0, kind="stable")[: extreme.max()]
        rising = np.take_along_axis(p[own], order, axis=0)
        m = np.arange(1, len(order) + 1)[:, None]
        usable = (m >= config.min_group) & (rising <= _EXTREME)
        tails = np.where(usable, binom.sf(m - 1, len(own), rising) * usable.sum(axis=0), 1.0)
        size, column = np.unravel_index(np.argmin(tails), tails.shape)
        if tails[size, column] <= best:
            best = float(tails[size, column])
            found = (int(column), own[order[: size + 1, column]])
    return found
