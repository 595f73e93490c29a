"""How far what is personal is trusted: as far as it predicts people who were not fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reward_models.low_rank import LowRank, LowRankConfig, Votes, fit
from reward_models.taste import Belief
from reward_models.ties import outcome_loss


def choose_trust(
    votes: Votes, known: np.ndarray, config: LowRankConfig, trusts: Sequence[float], seed: int
) -> float:
    """The factor on what is personal that predicts people who were not fitted best, before and after some votes.

    Half of the people are fitted and the other half predicted, both ways. The shared taste alone wins ties.

    Args:
        votes, known, config: as of `fit`.
        trusts: those tried.
        seed: of the division.
    """
    half = np.random.default_rng(seed).permutation(len(known)) % 2
    trusts = [0.0, *(trust for trust in trusts if trust > 0)]  # of equal losses the first is taken: no trust
    losses = np.zeros(len(trusts))
    for side in (0, 1):
        inside = (votes.user < 0) | (half[votes.user] == side)
        fitted = fit(votes.take(np.flatnonzero(inside)), known, config)
        outside = votes.take(np.flatnonzero(~inside))
        losses += [forward_loss(replace(fitted, trust=trust), outside, known) for trust in trusts]
    return trusts[int(np.argmin(losses))]


def forward_loss(taste: LowRank, votes: Votes, known: np.ndarray) -> float:
    """Sum over people of the weighted mean log-loss of their votes, each predicted from those before it.

    A person's votes are predicted in blocks that double: one, two, four, …. Before a block everybody in it has been
    heard as often as everybody else, so all their beliefs are found together.

    Args:
        taste: what is shared.
        votes: of people who were not fitted, each one's in the order of their coming.
        known: of everybody, by code.
    """
    order, people, first = votes.grouped()
    votes = votes.take(order)
    person = np.repeat(np.arange(len(people)), np.diff(np.append(first, len(order))))
    share = votes.weight / np.bincount(person, votes.weight, minlength=len(people))[person]
    if taste.trust == 0:
        p = taste.predict(votes, None)
    else:
        p = _forward(taste, votes, person, np.arange(len(order)) - first[person], known[people])
    return float((share * outcome_loss(p, votes.outcome)).sum())


def _forward(
    taste: LowRank, votes: Votes, person: np.ndarray, place: np.ndarray, known: np.ndarray
) -> np.ndarray:
    """(N, 3) probabilities of votes, each from those before its block.

    Args:
        taste: what is shared.
        votes: each person's together.
        person: (N,) who made each, from 0.
        place: (N,) of each among its person's.
        known: (U, G) of those people.
    """
    p = np.empty((len(place), 3))
    counts, heard = np.bincount(person), 0
    while len(block := np.flatnonzero((heard <= place) & (place <= 2 * heard))):
        some = np.flatnonzero(counts > heard)
        before = np.flatnonzero((place < heard) & (counts[person] > heard))
        means, covariances = taste.learn_all(votes.take(before), heard * np.arange(len(some)), known[some])
        of = np.searchsorted(some, person[block])
        p[block] = taste.predict(votes.take(block), Belief(means[of], covariances[of]))
        heard = 2 * heard + 1
    return p
