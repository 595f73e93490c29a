"""What a named score says: a thumb, a rating, an outcome, or words.

Tools let anybody score anything under any name, so a number alone says little: `toxicity = 1` is no praise, and
0.7 may be high or low. So a score is a thumb only under a name that is known to be a verdict on the reply, a
rating only where its scale is known, and otherwise an outcome, which keeps name and number and claims nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

_UNMISTAKABLE = ("thumb", "thumbs", "thumbs_up", "thumb_up", "thumbs_up_down", "like", "liked", "upvote")
_VERDICTS = (
    *_UNMISTAKABLE, "feedback", "user_feedback", "user_score", "helpful", "is_helpful", "correct", "is_correct",
    "good", "is_good",
)  # fmt: skip
_WORDS = {
    "yes": True, "true": True, "up": True, "thumbs_up": True, "like": True, "good": True, "positive": True,
    "correct": True, "helpful": True, "pass": True, "no": False, "false": False, "down": False,
    "thumbs_down": False, "dislike": False, "bad": False, "negative": False, "incorrect": False,
    "unhelpful": False, "not_helpful": False, "fail": False,
}  # fmt: skip
_MAX = sys.float_info.max


class Scores(BaseModel):
    """How named scores are read. Case, and `-`, `_` or a blank between words, make no difference in names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    thumbs: tuple[str, ...] = _VERDICTS
    """Names under which `true` or `yes` means a good reply and `false` or `no` a bad one."""
    numeric_thumbs: tuple[str, ...] = _UNMISTAKABLE
    """Names under which 1 means a good reply and 0 or -1 a bad one. Fewer: 1 could be one star of five."""
    scales: dict[str, tuple[float, float]] = Field(default_factory=dict)
    """Lowest and highest value of numeric scores, by name; those become ratings."""


def signal_of(
    name: str, value: Any, scores: Scores, scale: tuple[float, float] | None = None
) -> tuple[str, Any]:
    """Kind and value of the feedback that a score is.

    Args:
        name: What was scored.
        value: Boolean, number or text.
        scores: How scores are read.
        scale: The scale, where the export itself names it.

    Raises:
        ValueError: The value is none of these.
    """
    if isinstance(value, bool):
        if _among(name, scores.thumbs):
            return "thumb", 1 if value else -1
        return "outcome", {"metric": name, "value": float(value)}
    if isinstance(value, int | float):
        if not -_MAX <= value <= _MAX:
            raise ValueError("a score is no finite number")
        scale = scores.scales.get(name, scale)
        if scale is not None and scale[0] <= value <= scale[1] and scale[0] < scale[1]:
            return "rating", {"value": float(value), "lo": float(scale[0]), "hi": float(scale[1])}
        if value in (0, 1, -1) and _among(name, scores.numeric_thumbs):
            return "thumb", 1 if value == 1 else -1
        return "outcome", {"metric": name, "value": float(value)}
    if isinstance(value, str):
        verdict = _WORDS.get(_folded(value.strip())) if _among(name, scores.thumbs) else None
        return ("comment", {"text": value}) if verdict is None else ("thumb", 1 if verdict else -1)
    raise ValueError("a score is neither boolean, number nor text")


def _among(name: str, known: tuple[str, ...]) -> bool:
    return _folded(name) in {_folded(one) for one in known}


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")
