"""A share: an implicit sign that a reply was worth showing, as one unpaired row per reply and person.

Reward models do not take the weight as it stands: they learn what a share means here from the replies that also got
an explicit verdict (`[reward.labels.implicit]`).
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group
from feedback.rules import Proposal, Skip, labelled

KINDS = frozenset({"share"})


class Config(BaseModel):
    """How shares count."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    weight: float = Field(default=0.5, ge=0)
    """Weight of sharing a reply."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """One liked row per reply and person."""
    yield from labelled([(signal, 1) for signal in group.of_kind("share")], group, config.weight)
