"""Thumbs on several replies to one prompt: what was liked on balance is better than what was disliked.

Counted per exact prompt and person; people without an id count together as one crowd. The margin is half
the distance of the two mean thumbs, the weight is shared so that P liked and N disliked replies weigh as
min(P, N) pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group, Signal
from feedback.rules import Proposal, Skip, better, matched

KINDS = frozenset({"thumb"})


class Config(BaseModel):
    """How thumbs on one prompt count against each other."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    weight: float = Field(default=0.8, gt=0)
    """Weight of one liked against one disliked reply; below a vote, where both were seen side by side."""
    max_opponents: int = Field(default=8, gt=0)
    """Most replies that one reply is compared with."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """Pairs of liked and disliked replies."""
    tables: dict[tuple[bytes, str | None], dict[str, list[Signal]]] = defaultdict(lambda: defaultdict(list))
    for signal in group.of_kind("thumb"):
        reply = group.replies[signal.reply_id]
        tables[reply.context, signal.user][reply.id].append(signal)
    for thumbs in tables.values():
        yield from _compare(group, thumbs, config)


def _compare(group: Group, thumbs: dict[str, list[Signal]], config: Config) -> Iterator[Proposal | Skip]:
    net = {reply_id: sum(signal.value for signal in signals) for reply_id, signals in thumbs.items()}
    mean = {reply_id: net[reply_id] / len(signals) for reply_id, signals in thumbs.items()}
    liked = [group.replies[reply_id] for reply_id, total in net.items() if total > 0]
    disliked = [group.replies[reply_id] for reply_id, total in net.items() if total < 0]
    for reply_id, signals in thumbs.items():
        if net[reply_id] == 0:
            yield from (Skip(signal, "cancelled_out") for signal in signals)
    if not liked or not disliked:
        return
    pairs = matched(liked, disliked, config.max_opponents)
    weight = config.weight * min(len(liked), len(disliked)) / len(pairs)
    for winner, loser in pairs:
        margin = (mean[winner.id] - mean[loser.id]) / 2
        signals = thumbs[winner.id] + thumbs[loser.id]
        yield better(winner, loser, margin=margin, weight=weight, signals=signals)
