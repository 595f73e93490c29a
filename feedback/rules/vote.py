"""A vote: the winner is better than each other reply, a ranking orders them all, a tie says neither is.

k replies make up to k(k-1)/2 pairs, which are not independent, so each counts 1/(k-1): a ranking of k replies
then weighs as much as k/2 votes on two. Its margin is the distance in ranks over k-1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group
from feedback.rules import Proposal, Skip, better

KINDS = frozenset({"vote"})


class Config(BaseModel):
    """How votes count."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    weight: float = Field(default=1.0, gt=0)
    """Weight of a vote on two replies."""
    ties: bool = True
    """Make rows of margin 0 from ties, for scorers that learn from them."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """Pairs from votes and rankings."""
    for signal in group.of_kind("vote"):
        replies = [group.replies[reply_id] for reply_id in signal.targets]
        steps = len(replies) - 1
        weight = config.weight / steps
        if "ranking" in signal.value:
            for (i, above), (j, below) in combinations(enumerate(replies), 2):
                yield better(above, below, margin=(j - i) / steps, weight=weight, signals=[signal])
        elif signal.value["winner"] is not None:
            winner = group.replies[signal.value["winner"]]
            for other in replies:
                if other is not winner:
                    yield better(winner, other, margin=1.0, weight=weight, signals=[signal])
        elif config.ties:
            for one, other in combinations(replies, 2):
                yield better(one, other, margin=0.0, weight=weight, signals=[signal])
        else:
            yield Skip(signal, "tie")
