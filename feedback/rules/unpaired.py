"""Unpaired rows: one reply that one person liked or disliked, for methods that need no pair.

Thumbs, accept and reject: what people say on purpose. Thumbs of people without an id are taken together. Silence
makes no row.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group
from feedback.rules import Proposal, Skip, labelled

KINDS = frozenset({"thumb", "accept", "reject"})

_VERDICT = {"accept": 1, "reject": -1}


class Config(BaseModel):
    """How much each kind says."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    thumb: float = Field(default=1.0, ge=0)
    """Weight of a thumb; 0 makes no rows from them."""
    accept: float = Field(default=0.8, ge=0)
    """Weight of accepting a suggestion."""
    reject: float = Field(default=0.8, ge=0)
    """Weight of rejecting a suggestion."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """One labelled row per reply, person and kind."""
    for kind, weight in config:
        if signals := group.of_kind(kind):
            said = [(signal, signal.value if kind == "thumb" else _VERDICT[kind]) for signal in signals]
            yield from labelled(said, group, weight)
