"""Unpaired rows: one reply that one person liked or disliked, for methods that need no pair.

Thumbs, accept, reject, copy and share; thumbs of people without an id are taken together. A label is the sign
of the sum, its weight the kind's weight times how clear the sum is. Silence makes no row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group, Signal
from feedback.rules import Proposal, Skip

KINDS = frozenset({"thumb", "accept", "reject", "copy", "share"})

_LIKED = {"accept": 1, "reject": -1, "copy": 1, "share": 1}


class Config(BaseModel):
    """How much each kind says."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    thumb: float = Field(default=1.0, ge=0)
    """Weight of a thumb; 0 makes no rows from them."""
    accept: float = Field(default=0.8, ge=0)
    """Weight of accepting a suggestion."""
    reject: float = Field(default=0.8, ge=0)
    """Weight of rejecting a suggestion."""
    copy_: float = Field(default=0.3, ge=0, alias="copy")
    """Weight of copying a reply; low, because people also copy what they mean to repair."""
    share: float = Field(default=0.5, ge=0)
    """Weight of sharing a reply."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """One labelled row per reply, person and kind."""
    weights = config.model_dump(by_alias=True)
    said: dict[tuple[str, str | None, str], list[Signal]] = defaultdict(list)
    for signal in group.of_kind(*KINDS):
        said[signal.reply_id, signal.user, signal.kind].append(signal)
    for (reply_id, _, kind), signals in said.items():
        total = sum(signal.value if kind == "thumb" else _LIKED[kind] for signal in signals)
        weight = weights[kind] * abs(total) / len(signals)
        if weight == 0:
            reason = "weight_zero" if total else "cancelled_out"
            yield from (Skip(signal, reason) for signal in signals)
            continue
        reply = group.replies[reply_id]
        yield Proposal(
            preferred=reply,
            chosen=reply.text,
            rejected=None,
            label=total > 0,
            margin=1.0,
            weight=weight,
            signals=tuple(signals),
            replies=(reply,),
        )
