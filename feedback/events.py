"""What an event is: one reply of a model in its context (Interaction) and one signal about it (Feedback).

The models here are the wire format. All text is NFC, all times are UTC, ids are short printable strings; an
event that cannot be brought into that shape is refused, never repaired silently. `canonical` gives the one
byte string of an event, whatever the order of keys or the spelling of the time zone it came with.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from feedback.values import VALUES, WITHOUT_VALUE, Kind, clean_json, clean_text

SCHEMA_VERSION = 1
MAX_ID_CHARS = 256
_INT64 = 2**63 - 1


def _identifier(text: str) -> str:
    text = clean_text(text)
    if text.isascii() and text.isprintable() and not text.isspace():
        return text
    if not text.strip() or any(unicodedata.category(c) == "Cc" for c in text):
        raise PydanticCustomError("bad_id", "an id is not blank and has no control characters")
    if len(text) > MAX_ID_CHARS:  # NFC can lengthen a few scripts
        raise PydanticCustomError("bad_id", "an id has at most 256 characters")
    return text


def _utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("bad_value", "the time is outside the years 1 to 9999 in UTC") from None


def _sorted_unique(uses: list[str]) -> list[str]:
    return sorted(set(uses))


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(_identifier)]
Text = Annotated[str, AfterValidator(clean_text)]
Time = Annotated[AwareDatetime, AfterValidator(_utc)]
Json = Annotated[dict[str, Any], AfterValidator(clean_json)]
Use = Literal["train", "evaluate"]

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Message(BaseModel):
    """One chat message."""

    model_config = _FROZEN

    role: Literal["system", "user", "assistant", "tool"]
    """Who speaks."""
    content: Text
    """What is said; may be empty, as when a reply is only a tool call."""
    name: Text | None = None
    """Name of the speaker or the tool."""
    reasoning: Text | None = None
    """Reasoning that was not shown as part of the reply."""
    tool_calls: list[Json] | None = None
    """Tool calls as the model made them."""


class ModelRef(BaseModel):
    """Which model replied."""

    model_config = _FROZEN

    name: Text
    """Name or registry id."""
    version: Text | None = None
    """Version or revision."""
    adapter_digest: Text | None = None
    """sha256 of the adapter's files."""


class Sampling(BaseModel):
    """How the reply was sampled."""

    model_config = _FROZEN

    temperature: float | None = Field(default=None, ge=0)
    """0 is greedy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus mass."""
    seed: int | None = Field(default=None, ge=-_INT64, le=_INT64)
    """Seed of the sampler."""


class Interaction(BaseModel):
    """One model reply in its context."""

    model_config = _FROZEN

    type: Literal["interaction"] = "interaction"
    """Always `interaction`."""
    schema_version: Literal[1] = 1
    """Version of this format."""
    interaction_id: Id
    """Unique among interactions."""
    session_id: Id | None = None
    """Conversation or task it belongs to."""
    user_id: Id | None = None
    """Pseudonym of who asked."""
    event_time: Time
    """When the reply was given, RFC 3339 with a time zone."""
    agent: Id = "assistant"
    """Role or sub-agent that replied."""
    parent_id: Id | None = None
    """Interaction that caused this one."""
    model: ModelRef | None = None
    """Which model replied."""
    prompt: list[Message] = Field(min_length=1)
    """Messages exactly as rendered; the last one is not the assistant's."""
    completion: Message
    """The reply, role `assistant`."""
    sampling: Sampling | None = None
    """How the reply was sampled."""
    logprob: float | None = None
    """Sum of the log-probabilities of the reply's tokens, in nats."""
    tokens: int | None = Field(default=None, ge=0, le=_INT64)
    """Number of tokens in the reply."""
    propensity: float | None = Field(default=None, gt=0, le=1)
    """Probability with which this reply was served."""
    arm: Text | None = None
    """Arm of the experiment it was served from."""
    latency_ms: float | None = Field(default=None, ge=0)
    """Time to the complete reply, in milliseconds."""
    uses: Annotated[list[Use], AfterValidator(_sorted_unique)] = ["evaluate", "train"]
    """What the user allows: `train`, `evaluate`, both or neither."""
    metadata: Json = {}
    """Anything else, kept as it is."""

    @model_validator(mode="after")
    def _roles(self) -> Self:
        if self.prompt[-1].role == "assistant":
            raise PydanticCustomError("bad_value", "the last message of the prompt is the assistant's")
        if self.completion.role != "assistant":
            raise PydanticCustomError("bad_value", "the role of the completion is not 'assistant'")
        return self


class Feedback(BaseModel):
    """One signal about an interaction, or about a whole session."""

    model_config = _FROZEN

    type: Literal["feedback"] = "feedback"
    """Always `feedback`."""
    schema_version: Literal[1] = 1
    """Version of this format."""
    feedback_id: Id
    """Unique among feedback."""
    interaction_id: Id | None = None
    """The reply it is about; for a vote, one of the replies compared."""
    session_id: Id | None = None
    """The session it is about, when it is about no single reply."""
    user_id: Id | None = None
    """Pseudonym of who gave it."""
    event_time: Time
    """When it was given, RFC 3339 with a time zone."""
    kind: Kind
    """What sort of signal it is; decides the shape of `value`."""
    value: Any = Field(default=None, validate_default=True)
    """The signal itself, by kind."""
    actor: Literal["user", "rater", "judge", "code"] = "user"
    """Who or what gave it: the user, a paid rater, a model, a program."""
    retracts: Id | None = None
    """`feedback_id` of an earlier signal that this one takes back."""
    metadata: Json = {}
    """Anything else, kept as it is."""

    @field_validator("value", mode="plain")
    @classmethod
    def _value_by_kind(cls, value: Any, info: ValidationInfo) -> Any:
        kind = info.data.get("kind")
        if kind is None:  # the kind itself was refused and is reported
            return None
        try:
            return VALUES[kind].validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            message = f"value of {kind!r}{' at ' + place if place else ''}: {first['msg']}"
            # Braces would be read as placeholders of the error's template, so the text goes in as a value.
            raise PydanticCustomError(first["type"], "{message}", {"message": message}) from None

    @model_validator(mode="after")
    def _target(self) -> Self:
        if self.kind == "vote":
            among = compared(self.value)
            if self.interaction_id not in among:
                raise PydanticCustomError("bad_value", "interaction_id is not one of the replies compared")
        elif self.interaction_id is None and self.session_id is None:
            raise PydanticCustomError("missing_id", "one of interaction_id and session_id is required")
        return self


Event = Interaction | Feedback
ADAPTER: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])


def compared(vote: Mapping[str, Any]) -> list[str]:
    """The interaction ids that a vote's value compares."""
    ids: list[str] = vote["ranking"] if "ranking" in vote else vote["among"]
    return ids


def event_id(event: Event) -> str:
    """`interaction_id` of an interaction, `feedback_id` of feedback."""
    return event.interaction_id if isinstance(event, Interaction) else event.feedback_id


def wire_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one event on the wire."""
    schema = ADAPTER.json_schema()
    definitions = schema["$defs"]
    rules = []
    for kind, adapter in VALUES.items():
        value = adapter.json_schema()
        definitions.update(value.pop("$defs", {}))
        then = {"properties": {"value": value}, "required": [] if kind in WITHOUT_VALUE else ["value"]}
        rules.append({"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": then})
    definitions["Feedback"]["allOf"] = rules
    definitions["Feedback"]["anyOf"] = [
        {"properties": {name: {"type": "string"}}, "required": [name]}
        for name in ("interaction_id", "session_id")
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "palate event",
        "description": "One line of JSON: an interaction or a feedback.",
        **schema,
    }


def canonical(event: Event) -> bytes:
    """The one byte string of an event: sorted keys, UTC times ending in Z, NFC text, absent fields left out.

    Two events are the same exactly when their canonical bytes are; a field added to the format later, and not
    used by an event, does not change the bytes of that event.
    """
    options = orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z
    return orjson.dumps(event.model_dump(exclude_none=True), option=options)


def digest(event: Event) -> str:
    """sha256 of `canonical(event)`, in hex."""
    return hashlib.sha256(canonical(event)).hexdigest()


def prompt_text(messages: Iterable[Message | Mapping[str, Any]]) -> str:
    """The text that stands for a prompt: its first user message, folded.

    Case, white space and compatibility forms are folded away, and only the first user message counts, so that
    every turn of one conversation and trivial rewrites are one. Without a user message the first message
    counts.
    """
    pairs = [(m.role, m.content) if isinstance(m, Message) else (m["role"], m["content"]) for m in messages]
    return folded(next((content for role, content in pairs if role == "user"), pairs[0][1] if pairs else ""))


def folded(text: str) -> str:
    """Text without case, compatibility forms, and white space other than single blanks between words."""
    if text.isascii():
        text = text.lower()
    else:
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    # Most text needs no more: the only white space that is printable is the blank.
    if text.isprintable() and "  " not in text and text[:1] != " " and text[-1:] != " ":
        return text
    return " ".join(text.split())


def prompt_key(messages: Iterable[Message | Mapping[str, Any]]) -> str:
    """The key that decides a prompt's split: sha256 of its `prompt_text`."""
    return key_of_text(prompt_text(messages))


def key_of_text(text: str) -> str:
    """The prompt key of a prompt's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def render(messages: Iterable[Message | Mapping[str, Any]]) -> str:
    """Messages as plain text for people to read; not a chat template, never given to a model."""
    blocks = []
    for m in messages:
        role, content = (m.role, m.content) if isinstance(m, Message) else (m["role"], m["content"])
        blocks.append(role + ": " + content)
    return "\n\n".join(blocks)
