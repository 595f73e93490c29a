"""A retry: the reply the user stayed with is better than the one that was asked for again.

The later reply is the first one, to the same person and the same exact prompt, that was neither asked for
again nor disliked. A person is known by user id, else by session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group, Reply, Signal
from feedback.rules import Proposal, Skip, better

KINDS = frozenset({"retry"})


class Config(BaseModel):
    """How retries count."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    weight: float = Field(default=0.4, gt=0)
    """Weight of a retry; low, because people also retry out of curiosity."""
    margin: float = Field(default=0.5, gt=0, le=1)
    """How much better the later reply is taken to be."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """One pair per retry."""
    retries = group.of_kind("retry")
    if not retries:
        return
    turned_down = {(signal.reply_id, signal.user) for signal in retries}
    turned_down |= {(s.reply_id, s.user) for s in group.of_kind("thumb", "reject") if s.value in (-1, None)}
    series: dict[tuple[object, bytes], list[Reply]] = defaultdict(list)
    for reply in group.replies.values():  # oldest first
        series[reply.asker, reply.context].append(reply)
    for signal in retries:
        reply = group.replies[signal.reply_id]
        if reply.asker is None or signal.user != reply.user:
            yield Skip(signal, "not_the_asker")
            continue
        later = _kept(series[reply.asker, reply.context], reply, signal, turned_down)
        if later is None:
            yield Skip(signal, "no_later_reply")
        else:
            yield better(later, reply, margin=config.margin, weight=config.weight, signals=[signal])


def _kept(
    replies: list[Reply], first: Reply, signal: Signal, turned_down: set[tuple[str, str | None]]
) -> Reply | None:
    for reply in replies[replies.index(first) + 1 :]:
        if (reply.id, signal.user) not in turned_down:
            return reply
    return None
