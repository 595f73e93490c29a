"""The value that each kind of feedback carries, and how free text and free JSON are cleaned.

thumb         1 or -1
rating        {"value": 4, "lo": 1, "hi": 5}
vote          {"among": ["a", "b"], "winner": "a"}    winner null: a tie
              {"ranking": ["a", "c", "b"]}            best first
edit          {"text": "the corrected reply"}
next_message  {"text": "what the user said next"}
comment       {"text": "what the user thinks of it"}
outcome       {"metric": "tests_passed", "value": 1.0}
retry, copy, accept, reject, share   null
"""

from __future__ import annotations

import math
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

Kind = Literal[
    "thumb", "rating", "vote", "edit", "retry", "copy", "accept", "reject", "share", "next_message",
    "comment", "outcome",
]  # fmt: skip

WITHOUT_VALUE = ("retry", "copy", "accept", "reject", "share")

MAX_COMPARED = 64
"""Most replies in one vote: a ranking of k replies makes k(k-1)/2 pairs."""
_MAX_DEPTH = 64
_VALUE = ConfigDict(extra="forbid", allow_inf_nan=False)


def clean_text(text: str) -> str:
    """Text in NFC; refuses NUL, which many stores cannot hold."""
    if "\0" in text:
        raise PydanticCustomError("nul_byte", "text contains a NUL character")
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def clean_json(value: Any, depth: int = 0) -> Any:
    """Free JSON with text in NFC; refuses what canonical JSON cannot hold.

    Raises:
        PydanticCustomError: NUL in text, a number that is not finite or exceeds 64 bits, two keys that are
            the same in NFC, deep nesting, or something that is not JSON.
    """
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise PydanticCustomError("bad_value", "a whole number exceeds 64 bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise PydanticCustomError("not_finite", "a number is not finite")
        return value
    if depth >= _MAX_DEPTH:
        raise PydanticCustomError("bad_value", "JSON is nested more than 64 deep")
    if isinstance(value, list):
        return [clean_json(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return _clean_dict(value, depth)
    raise PydanticCustomError("wrong_type", "a value is not JSON")


def _clean_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    if not all(isinstance(key, str) for key in value):
        raise PydanticCustomError("wrong_type", "a key is not text")
    cleaned = {clean_text(key): clean_json(item, depth + 1) for key, item in value.items()}
    if len(cleaned) != len(value):
        raise PydanticCustomError("bad_value", "two keys are the same in NFC")
    return cleaned


def _member(text: str) -> str:
    text = clean_text(text)
    if not text.strip() or any(unicodedata.category(c) == "Cc" for c in text):
        raise PydanticCustomError("bad_id", "an id is not blank and has no control characters")
    return text


def _distinct(ids: list[str]) -> list[str]:
    if len(set(ids)) != len(ids):
        raise PydanticCustomError("bad_value", "the replies compared are not distinct")
    return ids


_Text = Annotated[str, AfterValidator(clean_text)]
_Member = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_member)]
_Members = Annotated[list[_Member], Field(min_length=2, max_length=MAX_COMPARED), AfterValidator(_distinct)]


def _plus_or_minus_one(value: int) -> int:
    if value not in (1, -1):
        raise PydanticCustomError("bad_value", "a thumb is 1 or -1")
    return value


@with_config(_VALUE)
class RatingValue(TypedDict):
    """A number on a scale."""

    value: float
    lo: float
    hi: float


@with_config(_VALUE)
class VoteValue(TypedDict):
    """The best of several replies; `winner` null is a tie."""

    among: _Members
    winner: _Member | None


@with_config(_VALUE)
class RankingValue(TypedDict):
    """Several replies, best first."""

    ranking: _Members


@with_config(_VALUE)
class TextValue(TypedDict):
    """Something written."""

    text: _Text


@with_config(_VALUE)
class OutcomeValue(TypedDict):
    """A named measurement."""

    metric: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(clean_text)]
    value: float


def _on_scale(rating: RatingValue) -> RatingValue:
    if not rating["lo"] < rating["hi"]:
        raise PydanticCustomError("bad_value", "lo is not below hi")
    if not rating["lo"] <= rating["value"] <= rating["hi"]:
        raise PydanticCustomError("bad_value", "the rating is outside [lo, hi]")
    if not math.isfinite(rating["hi"] - rating["lo"]):
        raise PydanticCustomError("not_finite", "the scale is too wide")
    return rating


def _winner_took_part(vote: VoteValue) -> VoteValue:
    if vote["winner"] is not None and vote["winner"] not in vote["among"]:
        raise PydanticCustomError("bad_value", "the winner is not one of the replies compared")
    return vote


def _vote_form(value: Any) -> str:
    return "ranking" if isinstance(value, dict) and "ranking" in value else "vote"


_Vote = Annotated[
    Annotated[VoteValue, AfterValidator(_winner_took_part), Tag("vote")]
    | Annotated[RankingValue, Tag("ranking")],
    Discriminator(_vote_form),
]
_NOTHING: TypeAdapter[Any] = TypeAdapter(None)
_TEXT: TypeAdapter[Any] = TypeAdapter(TextValue)

VALUES: dict[str, TypeAdapter[Any]] = {
    "thumb": TypeAdapter(
        Annotated[int, AfterValidator(_plus_or_minus_one), Field(json_schema_extra={"enum": [1, -1]})]
    ),
    "rating": TypeAdapter(Annotated[RatingValue, AfterValidator(_on_scale)]),
    "vote": TypeAdapter(_Vote),
    "edit": _TEXT,
    "next_message": _TEXT,
    "comment": _TEXT,
    "outcome": TypeAdapter(OutcomeValue),
    **dict.fromkeys(WITHOUT_VALUE, _NOTHING),
}
