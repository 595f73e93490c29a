"""One line of wire JSON from a product's values: ids and times filled in, gross mistakes found.

These checks are the cheap ones, for mistakes in the product's code: wrong types, an unknown kind, a prompt without
messages. Everything else is validated where events are read, and refused there as a dead letter with its reason.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from feedback.errors import PalateError

MAX_EVENT_BYTES = 1_000_000
"""As the default of `[ingest.limits] max_event_bytes`: what is larger would be a dead letter."""
KINDS = frozenset(
    ("thumb", "rating", "vote", "edit", "retry", "copy", "accept", "reject", "share", "next_message", "comment",
     "outcome")
)  # fmt: skip
_WITHOUT_VALUE = frozenset(("retry", "copy", "accept", "reject", "share"))
_TEXTS = frozenset(("edit", "next_message", "comment"))
_ACTORS = frozenset(("user", "rater", "judge", "code"))
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_SERIALIZE_NUMPY

Message = Mapping[str, Any]


class EventError(PalateError, ValueError):
    """A value that no event can have. Only a strict client raises it."""


def new_id() -> str:
    """A random id."""
    return uuid.uuid4().hex


def interaction_line(
    interaction_id: str, prompt: str | Sequence[Message], completion: str | Message, fields: dict[str, Any]
) -> bytes:
    """One interaction.

    Args:
        interaction_id: its id.
        prompt: messages as rendered, or the text of one user message.
        completion: the reply's message, or its text.
        fields: the other fields of the format; absent where None.

    Raises:
        EventError: a value of the wrong type or size.
    """
    messages: Sequence[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    reply: Message = (
        {"role": "assistant", "content": completion} if isinstance(completion, str) else completion
    )
    if not isinstance(messages, Sequence) or not messages:
        raise _wrong("prompt", prompt, "a text, or a list of messages that is not empty")
    for message in (*messages, reply):
        if (
            not isinstance(message, Mapping)
            or not isinstance(message.get("content"), str)
            or "role" not in message
        ):
            raise _wrong("message", message, '{"role": "user", "content": "…"}')
    if messages[-1]["role"] == "assistant" or reply["role"] != "assistant":
        raise _wrong("roles", [m["role"] for m in (*messages, reply)], "…, user (or tool), assistant")
    if isinstance(fields.get("model"), str):
        fields["model"] = {"name": fields["model"]}
    event = {
        "type": "interaction",
        "interaction_id": interaction_id,
        "prompt": messages,
        "completion": reply,
    }
    return _line(event, fields, ("interaction_id", "session_id", "user_id", "parent_id", "agent", "arm"))


def feedback_line(feedback_id: str, kind: str, value: Any, fields: dict[str, Any]) -> bytes:
    """One feedback.

    Args:
        feedback_id: its id.
        kind: its kind; what `value` holds depends on it. A text stands for `{"text": …}` where the kind has one.
        fields: the other fields of the format; absent where None.

    Raises:
        EventError: a value of the wrong type or size.
    """
    if kind not in KINDS:
        raise _wrong("kind", kind, ", ".join(sorted(KINDS)))
    if kind == "thumb":
        if isinstance(value, bool):
            value = 1 if value else -1
        if value not in (1, -1) or not isinstance(value, int):
            raise _wrong("value of a thumb", value, "1 or -1")
    elif kind in _TEXTS:
        value = {"text": value} if isinstance(value, str) else value
        if not isinstance(value, Mapping) or not isinstance(value.get("text"), str):
            raise _wrong(f"value of {kind!r}", value, "a text")
    elif kind in _WITHOUT_VALUE:
        if value is not None:
            raise _wrong(f"value of {kind!r}", value, "none")
    elif not isinstance(value, Mapping):
        raise _wrong(f"value of {kind!r}", value, "an object, see docs/events.md")
    if fields.get("interaction_id") is None and fields.get("session_id") is None:
        raise _wrong("target", None, "an interaction_id or a session_id")
    if fields.get("actor") is not None and fields["actor"] not in _ACTORS:
        raise _wrong("actor", fields["actor"], ", ".join(sorted(_ACTORS)))
    event = {"type": "feedback", "feedback_id": feedback_id, "kind": kind, "value": value}
    return _line(event, fields, ("feedback_id", "interaction_id", "session_id", "user_id", "retracts"))


def _line(event: dict[str, Any], fields: dict[str, Any], ids: tuple[str, ...]) -> bytes:
    for name, given in fields.items():
        if given is not None:
            event[name] = given
    for name in ids:
        given = event.get(name)
        if given is not None and not (isinstance(given, str) and 0 < len(given) <= 256):
            raise _wrong(name, given, "a text of 1 to 256 characters")
    event["event_time"] = _time(event.get("event_time"))
    try:
        line = orjson.dumps(event, option=_OPTIONS)
    except (
        TypeError
    ) as problem:  # orjson's errors are of this sort: not JSON, a lone surrogate, a huge number
        raise _wrong("event", problem, "values that JSON has") from problem
    if len(line) > MAX_EVENT_BYTES:
        raise _wrong("event", f"{len(line)} bytes", f"at most {MAX_EVENT_BYTES} bytes")
    return line


def _time(given: Any) -> Any:
    if given is None:
        return datetime.now(UTC)
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise _wrong("event_time", given, "a time with a time zone")
        return given.astimezone(UTC)
    if isinstance(given, str):
        return given
    raise _wrong("event_time", given, "a datetime with a time zone, or RFC 3339 text")


def _wrong(what: str, got: object, allowed: str) -> EventError:
    return EventError(f"An event cannot have this {what}.", got=repr(got)[:200], allowed=allowed)
