"""Everything said about one prompt, with what was taken back or said again settled.

A group holds the replies to one `prompt_key` and the signals about them. Which signals count is decided here,
once, for all rules: a retracted signal does not, and of contradictory signals by one person the newest does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from feedback.events import compared


@dataclass(frozen=True, slots=True)
class Reply:
    """One interaction, as far as preferences need it.

    Attributes:
        context: The exact prompt in canonical bytes; only replies to the same context are compared.
        text: Content of the completion.
    """

    id: str
    digest: str
    context: bytes
    text: str
    time: datetime
    user: str | None
    session: str | None
    agent: str
    uses: frozenset[str]
    propensity: float | None

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The prompt's messages, role and content."""
        return [{"role": m["role"], "content": m["content"]} for m in orjson.loads(self.context)]

    @property
    def asker(self) -> tuple[str, str] | None:
        """Who asked, known by user or else by session."""
        if self.user is not None:
            return ("user", self.user)
        return ("session", self.session) if self.session is not None else None


@dataclass(frozen=True, slots=True)
class Signal:
    """One feedback."""

    id: str
    digest: str
    kind: str
    value: Any
    reply_id: str
    user: str | None
    actor: str
    time: datetime
    retracts: str | None

    @property
    def targets(self) -> tuple[str, ...]:
        """The replies it is about, `reply_id` or all that a vote compares."""
        return tuple(compared(self.value)) if self.kind == "vote" else (self.reply_id,)


@dataclass(slots=True)
class Group:
    """The replies to one prompt key and the signals that count, both in a fixed order.

    Attributes:
        settled: Signals that do not count, with the reason.
        superseded: By the id of a signal that counts, the older ones that it replaces.
    """

    prompt_key: str
    replies: dict[str, Reply]
    signals: list[Signal]
    settled: dict[str, str] = field(default_factory=dict)
    superseded: dict[str, list[str]] = field(default_factory=dict)

    def of_kind(self, *kinds: str) -> list[Signal]:
        """The signals of these kinds that count."""
        return [signal for signal in self.signals if signal.kind in kinds]


def reply_of(body: Mapping[str, Any], digest: str, time: datetime) -> Reply:
    """A reply from the canonical body of an interaction."""
    return Reply(
        id=body["interaction_id"],
        digest=digest,
        context=orjson.dumps(body["prompt"], option=orjson.OPT_SORT_KEYS),
        text=body["completion"]["content"],
        time=time,
        user=body.get("user_id"),
        session=body.get("session_id"),
        agent=body["agent"],
        uses=frozenset(body["uses"]),
        propensity=body.get("propensity"),
    )


def signal_of(body: Mapping[str, Any], digest: str, time: datetime) -> Signal:
    """A signal from the canonical body of a feedback that names an interaction."""
    return Signal(
        id=body["feedback_id"],
        digest=digest,
        kind=body["kind"],
        value=body.get("value"),
        reply_id=body["interaction_id"],
        user=body.get("user_id"),
        actor=body["actor"],
        time=time,
        retracts=body.get("retracts"),
    )


def settle(
    prompt_key: str, replies: Iterable[Reply], signals: Iterable[Signal], actors: frozenset[str]
) -> Group:
    """Decides which signals of one prompt count.

    Args:
        prompt_key: The group's key.
        replies: Its replies, each id once.
        signals: Its signals, each id once, all their targets among the replies or not.
        actors: Whose signals count.
    """
    known = {reply.id: reply for reply in sorted(replies, key=lambda reply: (reply.time, reply.digest))}
    live = {signal.id: signal for signal in sorted(signals, key=lambda signal: (signal.time, signal.digest))}
    settled = _retractions(live)
    for signal in live.values():
        if signal.id not in settled and (reason := _unusable(signal, known, actors)):
            settled[signal.id] = reason
    newest: dict[tuple[Any, ...], Signal] = {}
    superseded: dict[str, list[str]] = {}
    for signal in live.values():  # oldest first
        key = _says(signal)
        if key is None or signal.id in settled:
            continue
        if key in newest:
            older = newest[key].id
            settled[older] = "superseded"
            superseded[signal.id] = [*superseded.pop(older, ()), older]
        newest[key] = signal
    return Group(prompt_key, known, [s for s in live.values() if s.id not in settled], settled, superseded)


def _unusable(signal: Signal, replies: Mapping[str, Reply], actors: frozenset[str]) -> str | None:
    if signal.actor not in actors:
        return "actor_excluded"
    if any(target not in replies for target in signal.targets):
        return "orphan"
    if len({replies[target].context for target in signal.targets}) > 1:
        return "prompt_mismatch"
    return None


def _says(signal: Signal) -> tuple[Any, ...] | None:
    """What a later signal by the same person replaces; None for what can be said again."""
    if signal.user is None or signal.kind not in _REPLACEABLE:
        return None
    return (signal.user, signal.actor, _REPLACEABLE[signal.kind], frozenset(signal.targets))


_REPLACEABLE = {
    "thumb": "thumb", "rating": "rating", "vote": "vote", "edit": "edit", "accept": "verdict",
    "reject": "verdict", "copy": "copy", "share": "share",
}  # fmt: skip
"""Kinds of which only the newest counts; accept and reject contradict each other."""


def _retractions(signals: Mapping[str, Signal]) -> dict[str, str]:
    """Signals that take back or are taken back.

    Signals that retract each other form trees below the first signal. From the leaves up: a retraction that
    is not itself taken back takes its target back. Event times play no part, because clocks are wrong.
    """
    if all(signal.retracts is None for signal in signals.values()):
        return {}
    reasons: dict[str, str] = {}
    below: dict[str, list[Signal]] = {}
    for signal in signals.values():
        if signal.retracts is None:
            continue
        target = signals.get(signal.retracts)
        if target is None:
            reasons[signal.id] = "retracts_unknown"
        elif target.user != signal.user or signal.reply_id not in target.targets:
            reasons[signal.id] = "retraction_by_another"
        else:
            below.setdefault(target.id, []).append(signal)
    # A retraction that retracts nothing valid still is no opinion; what retracts it is settled like it.
    roots = [s for s in signals.values() if s.retracts is None or s.id in reasons]
    order: list[Signal] = []
    seen = {root.id for root in roots}
    while roots:
        signal = roots.pop()
        order.append(signal)
        for child in below.get(signal.id, ()):
            seen.add(child.id)
            roots.append(child)
    taken_back: set[str] = set()
    for signal in reversed(order):  # children stand after their parents, so leaves come first
        if any(child.id not in taken_back for child in below.get(signal.id, ())):
            taken_back.add(signal.id)
            reasons.setdefault(signal.id, "retracted")
        elif signal.retracts is not None:
            reasons.setdefault(signal.id, "retraction")
    for signal in signals.values():
        if signal.id not in seen:
            reasons[signal.id] = "retraction_cycle"
    return reasons
