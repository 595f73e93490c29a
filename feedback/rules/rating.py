"""Ratings of several replies to one prompt by one person: the higher one is better, by enough of the scale.

Each rating is brought to [0, 1] on its own scale; the difference is the margin. k ratings make up to k(k-1)/2
pairs, so each counts 1/(k-1). People without an id are not compared: their scales may differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group, Signal
from feedback.rules import Proposal, Skip, better

KINDS = frozenset({"rating"})


class Config(BaseModel):
    """How ratings count."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    weight: float = Field(default=0.8, gt=0)
    """Weight of two rated replies."""
    min_difference: float = Field(default=0.25, gt=0, le=1)
    """Smallest difference that counts, as a share of the scale: one star of five."""
    max_opponents: int = Field(default=8, gt=0)
    """Most lower-rated replies that one reply is compared with."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """Pairs of higher and lower rated replies."""
    tables: dict[tuple[bytes, str, str], list[Signal]] = defaultdict(list)
    for signal in group.of_kind("rating"):
        if signal.user is None:
            yield Skip(signal, "anonymous")
            continue
        tables[group.replies[signal.reply_id].context, signal.user, signal.actor].append(signal)
    for signals in tables.values():
        yield from _compare(group, signals, config)


def _compare(group: Group, signals: list[Signal], config: Config) -> Iterator[Proposal | Skip]:
    share = {s.id: (s.value["value"] - s.value["lo"]) / (s.value["hi"] - s.value["lo"]) for s in signals}
    rising = sorted(signals, key=lambda signal: (share[signal.id], signal.digest))
    if len(rising) < 2:
        return
    weight = config.weight / min(len(rising) - 1, config.max_opponents)
    used: set[str] = set()
    for high in reversed(rising):
        for low in rising[: config.max_opponents]:
            difference = share[high.id] - share[low.id]
            # A share of a scale is rarely exact in binary: 4 - 3 on [1, 5] must count as a quarter.
            if difference < config.min_difference - 1e-9:
                break
            used |= {high.id, low.id}
            winner, loser = group.replies[high.reply_id], group.replies[low.reply_id]
            yield better(winner, loser, margin=difference, weight=weight, signals=[high, low])
    for signal in signals:
        if signal.id not in used:
            yield Skip(signal, "below_margin")
