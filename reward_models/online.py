"""Votes one after the other, predicted before they are learned: effects of whatever recurs in a stream.

For logs in which the same replies, prompts and people come again (regenerations, arenas, labelling): every recurring
thing has a small Gaussian belief of its own, made the first time it is met, and a vote changes the beliefs that took
part in it and no other (`taste.updated`). Nothing is fitted in advance and memory grows with what is met.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from reward_models.taste import Belief, expected_probabilities, predictors, updated


class Term(NamedTuple):
    """What one thing has to do with one vote."""

    key: Hashable
    """Which thing."""
    std: np.ndarray
    """(K,) standard deviations of its effects before it was met, around zero."""
    design: np.ndarray
    """(2, K) reward difference and tie log-weight per unit of each effect; see `taste`."""


@dataclass
class OnlineVotes:
    """All that is believed. Costs one small update per thing in a vote, whatever was met before."""

    beliefs: dict[Hashable, Belief] = field(default_factory=dict)

    def predict(self, terms: Sequence[Term], *, offset: np.ndarray | None = None) -> np.ndarray:
        """(3,) probabilities of win, tie, loss of the first reply; arguments as of `learn`."""
        beliefs = [self._belief(term) for term in terms]
        mean, spread = predictors(beliefs, [term.design for term in terms], offset)
        return np.asarray(expected_probabilities(mean[None], spread[None])[0])

    def learn(
        self,
        terms: Sequence[Term],
        outcome: int,
        *,
        weight: float = 1.0,
        offset: np.ndarray | None = None,
    ) -> None:
        """Takes in one vote.

        Args:
            terms: different things; one that takes part twice is given once, with the sum of its designs.
            outcome: ties.WIN, TIE or LOSS of the first reply.
            weight: how much the vote counts.
            offset: (2,) known part of (d, t); (0, ties.NO_TIES) where there can be no tie.
        """
        before = [self._belief(term) for term in terms]
        after = updated(before, [term.design for term in terms], outcome, weight=weight, offset=offset)
        self.beliefs.update(zip((term.key for term in terms), after, strict=True))

    def _belief(self, term: Term) -> Belief:
        known = self.beliefs.get(term.key)
        return Belief.independent(term.std) if known is None else known
