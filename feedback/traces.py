"""A trace of an application: which of its spans are replies, and which one is the answer the user saw.

A span in which a model was called is a reply; tools, retrievers, chains and other steps are not, and are
dropped with their kind as reason. The answer of a trace bears the trace's id, because people judge traces; every
other reply bears the trace's id and its span's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from feedback.chat import Message, asked_of, prompt_of, reply_of
from feedback.exports import UNDATED, Drop, Item, as_json, without_none

MODEL = "model"
"""Kind of a span in which a model was called; any other kind is the reason for which the span is dropped."""


@dataclass(frozen=True, slots=True)
class Span:
    """One step of a trace.

    Attributes:
        kind: `MODEL`, or why the step is no reply, as in `tool_span`.
        asked: Its input, in any form that `prompt_of` reads.
        answered: Its output, in any form that `reply_of` reads.
        start: RFC 3339, if known.
        end: RFC 3339, if known.
        source: The span as it came, for those that cannot be converted.
        fields: More fields of the interaction, such as its model.
    """

    id: str
    parent: str | None
    kind: str
    name: str
    asked: Any
    answered: Any
    start: str | None
    end: str | None
    source: Any
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that happened for one request.

    Attributes:
        source: Name of the format, prefix of all ids.
        asked: Its input as a whole.
        answered: Its output as a whole.
        time: RFC 3339, for spans without a time.
    """

    source: str
    id: str
    spans: list[Span]
    asked: Any = None
    answered: Any = None
    time: str | None = None
    session: str | None = None
    user: str | None = None

    @property
    def answer_id(self) -> str:
        """Id of the reply that the trace as a whole is judged by."""
        return f"{self.source}-{self.id}"


@dataclass
class Replies:
    """What came of the spans: one item for each, and the interaction that a judgement of a span is about."""

    items: list[Item] = field(default_factory=list)
    of_span: dict[str, str] = field(default_factory=dict)


def replies_of(trace: Trace) -> Replies:
    """The interactions of a trace, and a drop for every span that is none."""
    made = Replies()
    by_id = {span.id: span for span in trace.spans}
    wrappers = {above.id for span in trace.spans if span.kind == MODEL for above in _above(span, by_id)}
    found: dict[str, tuple[Span, Message]] = {}
    for span in trace.spans:
        if span.kind == MODEL and span.id not in wrappers and (reply := reply_of(span.answered)) is not None:
            found[span.id] = (span, reply)
    answer = _answer(trace, list(found.values()))
    if answer is None and (whole := _whole(trace)) is not None:
        answer, found[whole[0].id] = whole[0].id, whole
    for span in trace.spans:
        if span.id in found:
            reply_id = trace.answer_id if span.id == answer else f"{trace.answer_id}-{span.id}"
            made.of_span[span.id] = reply_id
            made.items.append(_interaction(trace, *found[span.id], reply_id, by_id))
        elif span.kind == MODEL:
            made.items.append(Drop("wrapper_span" if span.id in wrappers else "no_reply"))
        else:
            made.items.append(Drop(span.kind))
    for span in trace.spans:  # a judgement of a step without reply is about the reply above it, or the answer
        if span.id not in made.of_span:
            above = (made.of_span[up.id] for up in _above(span, by_id) if up.id in found)
            made.of_span[span.id] = next(above, trace.answer_id)
    return made


def _above(span: Span, by_id: dict[str, Span]) -> Iterator[Span]:
    """The spans around this one, nearest first; traces may be incomplete and even circular."""
    seen = {span.id}
    while span.parent is not None and span.parent in by_id and span.parent not in seen:
        seen.add(span.parent)
        span = by_id[span.parent]
        yield span


def _answer(trace: Trace, found: list[tuple[Span, Message]]) -> str | None:
    """The span whose reply the user saw: the last whose text is the trace's output, else the last with text."""
    if not found:
        return None
    in_time = sorted(found, key=lambda one: (_instant(one[0].end or one[0].start), one[0].id))
    whole = reply_of(trace.answered)
    if whole is not None and whole["content"].strip():
        same = [span for span, reply in in_time if reply["content"].strip() == whole["content"].strip()]
        if same:
            return same[-1].id
    with_text = [span for span, reply in in_time if reply["content"].strip()]
    return (with_text or [span for span, _ in in_time])[-1].id


def _instant(time: str | None) -> float:
    try:
        return datetime.fromisoformat(time).timestamp() if time else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _whole(trace: Trace) -> tuple[Span, Message] | None:
    """A trace without any model's reply, read as one reply: its outermost span."""
    root = next((span for span in trace.spans if span.parent is None), None)
    if root is None:
        return None
    asked = asked_of(root.asked if trace.asked is None else trace.asked)
    reply = reply_of(root.answered if trace.answered is None else trace.answered)
    return (replace(root, asked=asked), reply) if reply is not None and asked else None


def _interaction(
    trace: Trace, span: Span, reply: Message, reply_id: str, by_id: dict[str, Span]
) -> dict[str, Any] | bytes:
    prompt = prompt_of(span.asked)
    completed = not any(message["role"] == "user" for message in prompt)
    if completed:
        # Some frameworks log what is new since the last call only: the trace's own input comes before it.
        prompt = prompt_of(trace.asked) + prompt
    if not prompt:
        return as_json(span.source)
    agents = (
        above.name for above in _above(span, by_id) if above.kind == "agent_span" and above.name.strip()
    )
    return {
        "type": "interaction",
        "interaction_id": reply_id,
        "event_time": span.end or span.start or trace.time or UNDATED,
        "agent": next(agents, "assistant")[:256],
        "prompt": prompt,
        "completion": reply,
        "metadata": without_none(
            source=trace.source, span=span.id, name=span.name, prompt_from_trace=completed or None
        ),
        **without_none(session_id=trace.session, user_id=trace.user, latency_ms=_elapsed_ms(span)),
        **span.fields,
    }


def _elapsed_ms(span: Span) -> float | None:
    if not span.start or not span.end:
        return None
    elapsed = _instant(span.end) - _instant(span.start)
    return round(elapsed * 1000, 3) if elapsed >= 0 else None


def name_or_none(value: Any) -> str | None:
    """A name or id as tools store it; None where it is missing or empty."""
    return value if isinstance(value, str) and value.strip() else None
