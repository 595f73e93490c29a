"""What preference a signal implies: one rule per module, found by its name.

A rule is a module (or `module:object` of your own) with

    Config                   pydantic, frozen
    KINDS                    the kinds of feedback it reads
    propose(group, config)   -> Iterator[Proposal | Skip]

It looks at one group and nothing else. Split, consent and identical texts are not its business: they are
settled afterwards, for all rules alike.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pydantic import BaseModel

from feedback.errors import PalateError
from feedback.groups import Group, Reply, Signal


class RuleError(PalateError, ValueError):
    """A rule that does not exist or options it does not have."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A preference that a rule reads from some signals.

    Attributes:
        preferred: The reply whose prompt, agent and propensity the row takes.
        chosen: Preferred text; the only text when `rejected` is None.
        rejected: The other text, None for an unpaired row.
        label: Whether an unpaired text was liked.
        margin: How much better, in [0, 1]; 0 is a tie.
        weight: How much the row counts.
        signals: The signals it rests on, at least one.
        replies: The replies it rests on.
    """

    preferred: Reply
    chosen: str
    rejected: str | None
    label: bool | None
    margin: float
    weight: float
    signals: tuple[Signal, ...]
    replies: tuple[Reply, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """A signal from which a rule reads nothing, and why."""

    signal: Signal
    reason: str


class Rule(Protocol):
    """What a rule module offers."""

    Config: type[BaseModel]
    KINDS: frozenset[str]

    def propose(self, group: Group, config: Any) -> Iterator[Proposal | Skip]:
        """The preferences that this rule reads from the group."""
        ...


@functools.cache
def names() -> list[str]:
    """The rules that come with palate."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Rule:
    """The rule of that name, or `module:object`.

    Raises:
        RuleError: There is no such rule; the message lists those there are.
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            return cast(Rule, getattr(importlib.import_module(module), attribute))
        except (ImportError, AttributeError, ValueError) as error:
            raise RuleError("the rule could not be imported", got=f"{name!r} ({error})") from error
    if name not in names():
        raise RuleError("there is no such rule", got=repr(name), allowed=", ".join(names()))
    return cast(Rule, importlib.import_module(f"{__name__}.{name}"))


def better(
    winner: Reply, loser: Reply, *, margin: float, weight: float, signals: Sequence[Signal]
) -> Proposal:
    """The proposal that one reply is better than another; with margin 0, that neither is."""
    if margin == 0 and loser.text < winner.text:
        winner, loser = loser, winner  # a tie has no better one, so the order is the texts'
    return Proposal(
        preferred=winner,
        chosen=winner.text,
        rejected=loser.text,
        label=None,
        margin=margin,
        weight=weight,
        signals=tuple(signals),
        replies=(winner, loser),
    )


def labelled(said: Iterable[tuple[Signal, int]], group: Group, weight: float) -> Iterator[Proposal | Skip]:
    """One unpaired row for each reply, person and kind of signal.

    The label is the sign of the sum of what was said, the weight is shared by how clear the sum is; signals of
    people without an id are taken together.

    Args:
        said: signals, each with +1 (liked) or -1.
        group: that they are of.
        weight: of a row on which all agree.
    """
    heard: dict[tuple[str, str | None, str], list[tuple[Signal, int]]] = defaultdict(list)
    for signal, value in said:
        heard[signal.reply_id, signal.user, signal.kind].append((signal, value))
    for (reply_id, _, _), each in heard.items():
        total = sum(value for _, value in each)
        signals = tuple(signal for signal, _ in each)
        share = weight * abs(total) / len(each)
        if share == 0:
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
            weight=share,
            signals=signals,
            replies=(reply,),
        )


def matched(winners: Sequence[Reply], losers: Sequence[Reply], cap: int) -> list[tuple[Reply, Reply]]:
    """Every winner with every loser, but no more than `cap` partners for a member of the larger side.

    Keeps a prompt that thousands were asked from making millions of pairs. Both sides are ordered by digest,
    so the choice depends on nothing but the replies.
    """
    first = sorted(winners, key=lambda reply: reply.digest)
    second = sorted(losers, key=lambda reply: reply.digest)
    flip = len(first) < len(second)
    many, few = (second, first) if flip else (first, second)
    pairs = [(one, few[(i + j) % len(few)]) for i, one in enumerate(many) for j in range(min(cap, len(few)))]
    return [(b, a) for a, b in pairs] if flip else pairs
