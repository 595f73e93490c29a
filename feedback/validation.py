"""Bytes to event, or to the reason why not. Refusal is a value: nothing here raises, whatever the bytes.

>>> parse(b'{"type": "feedback"', now=now, limits=Limits())
Rejected(reason='not_json', detail='EOF while parsing an object at line 1 column 19', ...)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feedback.events import ADAPTER, MAX_ID_CHARS, Event, event_id

REASONS: Final[Mapping[str, str]] = {
    "too_large": "more bytes than the limit",
    "wrong_encoding": "not UTF-8",
    "nul_byte": "a NUL byte or character",
    "not_json": "not one JSON value",
    "not_an_object": "JSON, but not an object",
    "unknown_type": "`type` is neither `interaction` nor `feedback`",
    "unknown_version": "a `schema_version` this code does not know",
    "unknown_kind": "a `kind` of feedback this code does not know",
    "unknown_field": "a field the format does not have; free fields belong in `metadata`",
    "missing_id": "an id that is required is absent",
    "bad_id": "an id that is empty, too long or has control characters",
    "missing_field": "a required field is absent",
    "wrong_type": "a field of the wrong JSON type",
    "bad_time": "not a time with a time zone in RFC 3339",
    "future_time": "an event time further in the future than clocks are wrong",
    "not_finite": "NaN or an infinity",
    "bad_value": "a value outside what is allowed",
}
"""Every reason that `parse` gives, with its meaning."""

_IDS = {"interaction_id", "feedback_id", "session_id", "user_id", "parent_id", "agent", "retracts"}
_BOM = b"\xef\xbb\xbf"
_MAX_DETAIL_CHARS = 500


class Limits(BaseModel):
    """What is too much for one event."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_event_bytes: int = Field(default=1_000_000, gt=0)
    """Largest event, in bytes of JSON."""
    max_future_s: float = Field(default=86_400, ge=0)
    """How far ahead of the clock an event time may be, in seconds; a day covers a wrong time zone."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Bytes that are no event, and why.

    Attributes:
        reason: A key of `REASONS`, or `expectation:<name>` from later checks on whole batches.
        detail: What exactly, for a person; may quote the input, so it is data.
        raw: The bytes as they came, so that they can be replayed.
        event_id: The id, when one could be read.
    """

    reason: str
    detail: str
    raw: bytes
    event_id: str | None = None


def parse(raw: bytes, *, now: datetime, limits: Limits) -> Event | Rejected:
    """Reads one event from its wire JSON; never raises for any bytes.

    Args:
        raw: One JSON object in UTF-8; a leading byte order mark is ignored.
        now: The clock, aware; decides what is in the future.
        limits: What is too much.
    """
    if len(raw) > limits.max_event_bytes:
        return Rejected("too_large", f"{len(raw)} bytes, limit {limits.max_event_bytes}", raw)
    try:
        event = ADAPTER.validate_json(raw.removeprefix(_BOM), strict=True)
    except ValidationError as error:
        return _refuse(raw, error)
    if event.event_time - now > timedelta(seconds=limits.max_future_s):
        detail = f"event_time {event.event_time.isoformat()} is after {now.isoformat()}"
        return Rejected("future_time", detail, raw, event_id(event))
    return event


def _refuse(raw: bytes, error: ValidationError) -> Rejected:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        return Rejected("wrong_encoding", f"byte {problem.start} is not UTF-8", raw)
    if b"\0" in raw:
        return Rejected("nul_byte", f"NUL at byte {raw.index(0)}", raw)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] in ("model_type", "model_attributes_type", "dict_type") and not first["loc"]:
        return Rejected("not_an_object", "the JSON value is not an object", raw)
    reason = _reason(first["type"], first["loc"])
    # The location starts with the event's type, which the reader knows.
    place = ".".join(str(part) for part in first["loc"][1:])
    detail = f"{place}: {first['msg']}" if place else first["msg"]
    return Rejected(reason, detail[:_MAX_DETAIL_CHARS], raw, _id_in(raw))


def _reason(kind: str, place: tuple[int | str, ...]) -> str:
    """Maps pydantic's error type and place to one of `REASONS`."""
    field = place[-1] if place else None
    top = len(place) == 2
    if kind in REASONS:
        return kind
    if kind == "json_invalid":
        return "not_json"
    if kind.startswith("union_tag"):
        return "unknown_type"
    if kind == "missing":
        return "missing_id" if top and field in ("interaction_id", "feedback_id") else "missing_field"
    if kind == "extra_forbidden":
        return "unknown_field"
    if kind == "finite_number":
        return "not_finite"
    if top and field == "kind" and kind == "literal_error":
        return "unknown_kind"
    if top and field == "schema_version":
        return "unknown_version"
    if kind.startswith(("datetime", "timezone", "date_")):
        return "wrong_type" if kind == "datetime_type" else "bad_time"
    if kind.endswith("_type"):
        return "wrong_type"
    return "bad_id" if top and field in _IDS else "bad_value"


def _id_in(raw: bytes) -> str | None:
    """The id in bytes that are refused, when there is a usable one."""
    try:
        value: Any = orjson.loads(raw.removeprefix(_BOM))
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    found = value.get("feedback_id" if value.get("type") == "feedback" else "interaction_id")
    if isinstance(found, str) and 0 < len(found) <= MAX_ID_CHARS and found.isprintable():
        return found
    return None
