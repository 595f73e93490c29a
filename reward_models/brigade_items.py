"""People in groups that say the same about the same items, far more often than how contested those are explains."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reward_models.brigade_directions import beta_binomial_tail
from reward_models.brigade_votes import FIRST, SECOND, TIE, Config, Votes

if TYPE_CHECKING:
    from scipy import sparse

_EDGES = (0.05, 0.01, 0.001)
"""Agreement of two people is an edge at these probabilities; a group must be too dense for one of them."""


def by_items(votes: Votes, cohorts: Sequence[np.ndarray], config: Config) -> dict[str, str]:
    """People in groups that say the same about the same items, each with the reason."""
    u, v, same, common, chance = _pairs(votes, config)
    if not len(u):
        return {}
    p = np.where(same >= config.min_agreement * common, _pair_tails(same, common, chance, config), 1.0)
    people = np.unique(np.concatenate([u, v]))
    families = [people, *(np.intersect1d(cohort, people) for cohort in cohorts)]
    allowed = config.false_alarms / (len(families) * len(_EDGES))
    best, flagged = np.full(len(votes.names), np.inf), {}
    for family in families:
        inside = np.isin(u, family) & np.isin(v, family)
        for edge_p in _EDGES:
            edge = inside & (p <= edge_p)
            smallest = _smallest(len(family), edge_p, allowed, config)
            for group in dense_groups(u[edge], v[edge], config, smallest):
                chosen = np.isin(u, group) & np.isin(v, group)
                chance_of_it = group_chance(len(family), len(group), int((edge & chosen).sum()), edge_p)
                if chance_of_it > allowed:
                    continue
                for person in group[chance_of_it < best[group]].tolist():
                    best[person] = chance_of_it
                    own = chosen & ((u == person) | (v == person))
                    flagged[votes.names[person]] = (
                        f"same vote on {int(same[own].sum())} of {int(common[own].sum())} items in common with "
                        f"{len(group) - 1} others, {float((chance * common)[own].sum()):.0f} expected "
                        f"(p = {chance_of_it:.0e})"
                    )
    return flagged


def group_chance(people: int, members: int, edges: int, edge_p: float) -> float:
    """Bound on P(some `members` of `people` have `edges` edges among them), were edges independent; at most 1.

    The expected number of such sets, as for cliques of random graphs (Bollobás and Erdős 1976, Math. Proc. Cambridge
    Phil. Soc. 80): C(people, members) C(pairs, edges) edge_p^edges, with pairs = members (members - 1) / 2.
    """
    pairs = members * (members - 1) / 2
    log = _log_choose(people, members) + _log_choose(pairs, edges) + edges * np.log(edge_p)
    return float(np.exp(min(0.0, log)))


def _log_choose(n: float, k: float) -> float:
    from scipy.special import gammaln

    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def _pairs(votes: Votes, config: Config) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of people with enough items in common: both codes, items agreed on, in common, expected share."""
    from scipy import sparse

    n_items, u = int(votes.item.max(initial=-1)) + 1, len(votes.names)
    shape = (n_items, 3)
    said = np.zeros(shape)
    np.add.at(said, (votes.item, votes.outcome), 1)
    voters = said.sum(axis=1)
    pairs = voters * (voters - 1)
    alike = (said * (said - 1)).sum(axis=1)
    usable = (voters >= 2) & (voters <= config.most_voters)
    usual = alike[usable].sum() / max(1.0, pairs[usable].sum())
    # An item's own agreement, pulled to the usual one by as many pairs as five people make.
    expected = (alike + 20 * usual) / (pairs + 20)
    often = np.bincount(votes.user, minlength=u) >= config.min_votes
    rows = usable[votes.item] & often[votes.user]

    def matrix(chosen: np.ndarray, values: np.ndarray) -> sparse.csr_array:
        where = rows & chosen
        return sparse.csr_array(
            (values[votes.item[where]], (votes.user[where], votes.item[where])), (u, n_items)
        )

    every, ones = np.ones(len(votes.user), bool), np.ones(n_items)
    seen = matrix(every, ones)
    common = sparse.triu(seen @ seen.T, k=1).tocoo()
    enough = common.data >= config.min_votes
    a, b, shared = common.row[enough], common.col[enough], common.data[enough]
    same = sum(_at(m @ m.T, a, b) for m in (matrix(votes.outcome == o, ones) for o in (TIE, FIRST, SECOND)))
    chance = _at(matrix(every, expected) @ seen.T, a, b) / np.maximum(shared, 1)
    return a, b, np.asarray(same), shared, chance


def _at(matrix: sparse.csr_array, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not len(a):  # SciPy cannot take nothing out of an empty matrix
        return np.zeros(0)
    return np.asarray(matrix.tocsr()[a, b]).ravel().astype(float)


def _pair_tails(same: np.ndarray, common: np.ndarray, chance: np.ndarray, config: Config) -> np.ndarray:
    """(P,) P(a pair agrees as often), with the spread between pairs estimated from all of them by moments."""
    chance = np.clip(chance, 0.02, 0.98)
    square = (same - common * chance) ** 2 / (common * chance * (1 - chance))
    spread = float(np.clip((square - 1).sum() / (common - 1).sum(), config.min_spread, 0.95))
    return beta_binomial_tail(same, common, chance, np.full(len(same), spread))


def _smallest(people: int, edge_p: float, allowed: float, config: Config) -> int:
    """The least size at which a group with all its edges is too unlikely to be chance."""
    sizes = range(config.min_group, people + 1)
    unlikely = (m for m in sizes if group_chance(people, m, m * (m - 1) // 2, edge_p) <= allowed)
    return next(unlikely, people + 1)


def dense_groups(
    u: np.ndarray, v: np.ndarray, config: Config, smallest: int | None = None
) -> list[np.ndarray]:
    """Sets of people with edges to nearly all others of their set, of at least `smallest`, else `min_group`.

    Whoever has the fewest edges is left out until everybody left has edges to `density` of the others (Charikar
    2000); the rest is searched again, so that a bridge between two groups joins nobody.
    """
    near: dict[int, set[int]] = {}
    for a, b in zip(u.tolist(), v.tolist(), strict=True):
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    size = smallest or config.min_group
    groups, left = [], set(near)
    while len(left) >= size:
        inside = set(left)
        degree = {a: len(near[a] & inside) for a in inside}
        weakest = [(count, a) for a, count in degree.items()]
        heapq.heapify(weakest)
        while len(inside) >= size:
            count, a = weakest[0]
            if a not in inside or count != degree[a]:  # out by now, or fewer edges since
                heapq.heappop(weakest)
                continue
            if count >= config.density * (len(inside) - 1):
                break
            inside.remove(a)
            for other in near[a] & inside:
                degree[other] -= 1
                heapq.heappush(weakest, (degree[other], other))
        if len(inside) < size:
            break
        groups.append(np.array(sorted(inside)))
        left -= inside
    return groups
