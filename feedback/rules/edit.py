"""An edit: the corrected text is better than the reply it corrects."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group
from feedback.rules import Proposal, Skip

KINDS = frozenset({"edit"})


class Config(BaseModel):
    """How edits count."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    weight: float = Field(default=1.0, gt=0)
    """Weight of an edit."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """One pair per edit; an edit that leaves nothing says only that the reply was removed."""
    for signal in group.of_kind("edit"):
        reply, text = group.replies[signal.reply_id], signal.value["text"]
        if not text.strip():
            yield Skip(signal, "empty_text")
            continue
        yield Proposal(
            preferred=reply,
            chosen=text,
            rejected=reply.text,
            label=None,
            margin=1.0,
            weight=config.weight,
            signals=(signal,),
            replies=(reply,),
        )
