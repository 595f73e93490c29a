"""Rules and guards that ship with palate: what a reply's own text shows, without a model.

Every rule takes B replies and gives (B,) numbers. A guard gives 0 where all is well and up to 1 where it is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from reward_models.features import WORD
from training.errors import TrainingError

if TYPE_CHECKING:
    from training.reward_sources import Replies

SENTENCE_ENDS = tuple(".!?…。！？؟।\"'”’»)]`")
_QUESTION = re.compile("[?？؟]+")
_N = 3
"""Words of a phrase whose recurrence counts as repetition."""


class RuleSettings(BaseModel):
    """Settings of the shipped rules and guards."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    target_words: int = Field(default=60, ge=1)
    """`length`: how many words a reply should have."""
    pattern: str | None = None
    """`format`: a regular expression that the whole reply must match."""
    max_repetition: float = Field(default=0.2, ge=0, lt=1)
    """`repetition`: share of three-word phrases that may be repeats of earlier ones."""
    max_questions: int = Field(default=1, ge=0)
    """`questions`: how many a reply may ask; each further one costs, until three too many cost all."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    def check(self, name: str) -> None:
        """Raise where a rule lacks its setting.

        Raises:
            TrainingError: `format` without a pattern.
        """
        if name == "format" and self.pattern is None:
            raise TrainingError(
                "The reward `format` has no pattern to check.",
                allowed="a regular expression",
                next_step="set [train.grpo.rewards.rules] pattern",
            )


Rule = Callable[["Replies", RuleSettings], np.ndarray]


def words(text: str) -> list[str]:
    """Lower-case words."""
    return [w.lower() for w in WORD.findall(text)]


def repeated_share(text: str) -> float:
    """Share of a text's three-word phrases that were there before; 0 in a text of fewer words."""
    said = words(text)
    phrases = list(zip(*(said[k:] for k in range(_N)), strict=False))
    return 1 - len(set(phrases)) / len(phrases) if phrases else 0.0


def length(replies: Replies, settings: RuleSettings) -> np.ndarray:
    """-|log((words + 1) / (target + 1))|: 0 at the target, alike for twice and half of it."""
    counts = np.array([len(words(t)) for t in replies.texts], dtype=np.float64)
    return -np.abs(np.log((counts + 1) / (settings.target_words + 1)))


def finished(replies: Replies, settings: RuleSettings) -> np.ndarray:  # noqa: ARG001
    """1 where the policy ended its turn and the text ends as a sentence does, else 0."""
    closed = [t.rstrip()[-1:] in SENTENCE_ENDS and bool(t.strip()) for t in replies.texts]
    return np.array(closed, dtype=np.float64) * np.asarray(replies.finished, dtype=np.float64)


def form(replies: Replies, settings: RuleSettings) -> np.ndarray:
    """1 where the whole reply matches the pattern, else 0."""
    pattern = re.compile(settings.pattern or "", re.DOTALL)
    return _each(replies.texts, lambda text: float(pattern.fullmatch(text) is not None))


def repetition(replies: Replies, settings: RuleSettings) -> np.ndarray:
    """How far the repeated share is beyond what is allowed, 1 where everything is repeated."""
    allowed = settings.max_repetition
    return _each(replies.texts, lambda text: max(0.0, repeated_share(text) - allowed) / (1 - allowed))


def empty(replies: Replies, settings: RuleSettings) -> np.ndarray:  # noqa: ARG001
    """1 where a reply has no word."""
    return _each(replies.texts, lambda text: float(not words(text)))


def questions(replies: Replies, settings: RuleSettings) -> np.ndarray:
    """A third for each question beyond what is allowed, at most 1."""
    return _each(
        replies.texts,
        lambda text: min(1.0, max(0, len(_QUESTION.findall(text)) - settings.max_questions) / 3),
    )


def _each(texts: Sequence[str], rule: Callable[[str], float]) -> np.ndarray:
    return np.array([rule(text) for text in texts], dtype=np.float64)


RULES: dict[str, Rule] = {"length": length, "finished": finished, "format": form}
GUARDS: dict[str, Rule] = {"repetition": repetition, "empty": empty, "questions": questions}
