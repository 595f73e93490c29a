"""The quick way from bytes to rows of the events table, for events that are plainly fine.

`validation.parse` defines what an event is. Most events are well formed and written plainly, and for them
the same row comes out of a few steps in C: decode into typed structs, look at what types cannot say, encode
with sorted keys, hash. Whatever is not plainly fine (refused here, an unusual time, text that is not NFC,
a number that two encoders write differently) is handed to `parse`, so this module may be strict but never
lenient: for every byte string both ways give the same row.
"""

from __future__ import annotations

import gc
import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from feedback.events import MAX_ID_CHARS
from feedback.tables import Row, row
from feedback.validation import Limits, parse
from feedback.values import MAX_COMPARED, WITHOUT_VALUE, Kind

_INT64 = 2**63 - 1
_ALL_USES: Final[list[Literal["train", "evaluate"]]] = ["evaluate", "train"]
_MAX_DEPTH = 64
_SAME_NOTATION = 1e16
"""Below this magnitude both encoders write a float the same way; from here on one writes `1e16`, the other
`1e+16`."""

_Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]
_Json = dict[str, Any]
_Number = Annotated[float, Meta(gt=-_SAME_NOTATION, lt=_SAME_NOTATION)]
_NotNegative = Annotated[float, Meta(ge=0, lt=_SAME_NOTATION)]
_Share = Annotated[float, Meta(gt=0, le=1)]

# Optional fields are left out when null, as in the canonical form. Fields with a default that is written out
# have a factory instead, which `omit_defaults` does not look at. Nothing here can form a cycle, so the
# garbage collector need not know of it.


class _Message(Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Json] | None = None


class _Reply(_Message, gc=False):
    role: Literal["assistant"]


class _Model(Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    name: str
    version: str | None = None
    adapter_digest: str | None = None


class _Sampling(Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    temperature: _NotNegative | None = None
    top_p: _Share | None = None
    seed: Annotated[int, Meta(ge=-_INT64, le=_INT64)] | None = None


class _Interaction(
    Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag_field="type", tag="interaction",
    kw_only=True,
):  # fmt: skip
    schema_version: Literal[1] = msgspec.field(default_factory=lambda: 1)
    interaction_id: _Id
    session_id: _Id | None = None
    user_id: _Id | None = None
    event_time: str
    agent: _Id = msgspec.field(default_factory=lambda: "assistant")
    parent_id: _Id | None = None
    model: _Model | None = None
    prompt: Annotated[list[_Message], Meta(min_length=1)]
    completion: _Reply
    sampling: _Sampling | None = None
    logprob: _Number | None = None
    tokens: Annotated[int, Meta(ge=0, le=_INT64)] | None = None
    propensity: _Share | None = None
    arm: str | None = None
    latency_ms: _NotNegative | None = None
    uses: list[Literal["train", "evaluate"]] = msgspec.field(default_factory=lambda: _ALL_USES)
    metadata: _Json = msgspec.field(default_factory=lambda: {})


class _Feedback(
    Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag_field="type", tag="feedback",
    kw_only=True,
):  # fmt: skip
    schema_version: Literal[1] = msgspec.field(default_factory=lambda: 1)
    feedback_id: _Id
    interaction_id: _Id | None = None
    session_id: _Id | None = None
    user_id: _Id | None = None
    event_time: str
    kind: Kind
    value: Any = None
    actor: Literal["user", "rater", "judge", "code"] = msgspec.field(default_factory=lambda: "user")
    retracts: _Id | None = None
    metadata: _Json = msgspec.field(default_factory=lambda: {})


class _Rating(Struct, forbid_unknown_fields=True, gc=False):
    value: _Number
    lo: _Number
    hi: _Number


class _Vote(Struct, forbid_unknown_fields=True, gc=False):
    among: Annotated[list[_Id], Meta(min_length=2, max_length=MAX_COMPARED)]
    winner: _Id | None


class _Ranking(Struct, forbid_unknown_fields=True, gc=False):
    ranking: Annotated[list[_Id], Meta(min_length=2, max_length=MAX_COMPARED)]


class _Text(Struct, forbid_unknown_fields=True, gc=False):
    text: str


class _Outcome(Struct, forbid_unknown_fields=True, gc=False):
    metric: _Id
    value: _Number


_VALUES: Final[dict[str, Any]] = {
    "rating": _Rating,
    "edit": _Text,
    "next_message": _Text,
    "comment": _Text,
    "outcome": _Outcome,
}
_decode = msgspec.json.Decoder(_Interaction | _Feedback).decode
_encode = msgspec.json.Encoder(order="sorted").encode
_sha256 = hashlib.sha256
_is_normalized = unicodedata.is_normalized
_NOT_PLAIN = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


def rows(raws: Iterable[bytes], *, now: datetime, limits: Limits) -> list[Row]:
    """One row per byte string, in their order: what `tables.row(validation.parse(raw))` gives, but quickly.

    Args:
        raws: Wire JSON of one event each, or anything else.
        now: The clock, aware; decides what is in the future.
        limits: What is too much.
    """
    quick = reader(now=now, limits=limits)
    with _collector_paused():
        return [quick(raw) or row(parse(raw, now=now, limits=limits)) for raw in raws]


def reader(*, now: datetime, limits: Limits) -> Callable[[bytes], Row | None]:
    """A function from bytes to the row of an event that is plainly fine, or None: ask `validation.parse`."""
    latest, max_bytes = now.astimezone(UTC) + timedelta(seconds=limits.max_future_s), limits.max_event_bytes

    def quick(raw: bytes) -> Row | None:
        if len(raw) > max_bytes:
            return None
        try:
            event: Any = _decode(raw)
            said = event.__class__ is _Interaction
            if _moment(event) > latest or not (_plain_interaction if said else _plain_feedback)(event):
                return None
            body = _encode(event)
            if not (body.isascii() or (said and _composed(event)) or _is_normalized("NFC", body.decode())):
                return None
        except _NOT_PLAIN:
            return None
        if b"\\" in body and b"\\u0000" in body:
            return None
        digest = _sha256(body).hexdigest()
        if said:
            own = event.interaction_id
            return (
                "interaction", own, digest, own, event.session_id, event.user_id, event.agent,
                event.event_time, body, None, None, None,
            )  # fmt: skip
        return (
            "feedback", event.feedback_id, digest, event.interaction_id, event.session_id, event.user_id,
            None, event.event_time, body, None, None, None,
        )  # fmt: skip

    return quick


def _moment(event: Any) -> datetime:
    """The event's time; writes it into the event in its canonical form.

    Raises:
        ValueError: The time is not written as RFC 3339 in its most usual form.
    """
    text = event.event_time
    # Positions first: `fromisoformat` also takes week dates, times without colons and a point without digits.
    if len(text) < 20 or not (text[4] == text[7] == "-" and text[10] == "T" and text[13] == text[16] == ":"):
        raise ValueError
    moment = datetime.fromisoformat(text)
    if text[-1] == "Z":
        if len(text) == 20:
            return moment
        if len(text) == 24 and text[19] == "." and moment.microsecond:
            event.event_time = text[:23] + "000Z"
            return moment
    if not (text[20:21].isdigit() and (text[-1] == "Z" or (text[-6] in "+-" and text[-3] == ":"))):
        raise ValueError
    if text[-1] != "Z" and text[-2] > "5":  # `fromisoformat` takes +14:60, and it is no time zone
        raise ValueError
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    event.event_time = moment.isoformat()[:-6] + "Z"
    return moment


# What follows looks at what types cannot say and the finished JSON does not show.


def _plain_interaction(event: Any) -> bool:
    if event.uses != _ALL_USES:
        event.uses = sorted(set(event.uses))
    return (
        event.prompt[-1].role != "assistant"
        and _plain_ids(
            f"{event.interaction_id}{event.session_id}{event.user_id}{event.agent}{event.parent_id}"
        )
        and _plain_json(event.metadata)
        and _plain_calls(event.completion)
        and all(message.tool_calls is None or _plain_calls(message) for message in event.prompt)
    )


def _composed(event: Any) -> bool:
    """Whether the texts of an interaction are seen to be in NFC without decoding its JSON, which takes longest.

    False says nothing: the JSON is looked at then. Quotes stand around every text there, and compose with
    nothing, so all texts are in NFC when the JSON is; texts joined by quotes, likewise.
    """
    for message in event.prompt:
        content = message.content
        if not (content.isascii() or _is_normalized("NFC", content)) or message.tool_calls is not None:
            return False
        if message.name is not None or message.reasoning is not None:
            return False
    message = event.completion
    content = message.content
    if not (content.isascii() or _is_normalized("NFC", content)) or message.tool_calls is not None:
        return False
    model = event.model
    rest = f'{event.arm}"{message.name}"{message.reasoning}"{event.metadata}'
    if model is not None:
        rest = f'{rest}"{model.name}"{model.version}"{model.adapter_digest}'
    # What `repr` escapes is left for the JSON to show.
    return rest.isascii() and "\\" not in rest


def _plain_calls(message: _Message) -> bool:
    return message.tool_calls is None or all(_plain_json(call) for call in message.tool_calls)


def _plain_feedback(event: Any) -> bool:
    ids = f"{event.feedback_id}{event.interaction_id}{event.session_id}{event.user_id}{event.retracts}"
    if not (_plain_ids(ids) and _plain_json(event.metadata)):
        return False
    kind, value = event.kind, event.value
    if kind == "vote":
        return _plain_vote(event)
    if event.interaction_id is None and event.session_id is None:
        return False
    if kind in WITHOUT_VALUE:
        return value is None
    if kind == "thumb":
        return value.__class__ is int and (value == 1 or value == -1)
    event.value = value = msgspec.convert(value, _VALUES[kind])
    return value.__class__ is not _Rating or (value.lo < value.hi and value.lo <= value.value <= value.hi)


def _plain_vote(event: _Feedback) -> bool:
    ranked = event.value.__class__ is dict and "ranking" in event.value
    vote: Any = msgspec.convert(event.value, _Ranking if ranked else _Vote)
    ids = vote.ranking if ranked else vote.among
    event.value = vote
    return (
        event.interaction_id in ids
        and len(set(ids)) == len(ids)
        and (ranked or vote.winner is None or vote.winner in ids)
        and _plain_ids("".join(ids))
    )


def _plain_ids(ids: str) -> bool:
    """Whether ids, put together, hold only printable ASCII without blanks; others are for `parse` to judge."""
    return ids.isascii() and ids.isprintable() and " " not in ids


def _plain_json(value: Any, depth: int = 0) -> bool:
    """Whether free JSON is within 64 bits and 64 levels, and its floats are written alike by all."""
    if depth >= _MAX_DEPTH:
        return False
    for item in value.values() if value.__class__ is dict else value:
        kind = item.__class__
        if kind is str or item is None or kind is bool:
            continue
        if kind is int:
            plain = -(2**63) <= item < 2**64
        elif kind is float:
            plain = -_SAME_NOTATION < item < _SAME_NOTATION
        else:
            plain = _plain_json(item, depth + 1)
        if not plain:
            return False
    return True


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection for as long as a batch takes: it makes many objects and no cycles."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
