"""Which split a row belongs to: a pure hash of its users and of its prompt, so it never changes.

Every user and every prompt is hashed into train, evaluation or test. A row is made only when its prompt and
all its users fall in the same split; so no prompt and no user of test or evaluation is ever seen in train.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Split = Literal["train", "evaluation", "test"]

_Share = Field(default=0.15, ge=0, lt=1)


class SplitConfig(BaseModel):
    """How much is held out, of users and of prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    seed_text: str = "palate"
    """Names the draw. Another text is another split: what was held out before is then trained on."""
    test_users: float = _Share
    """Share of users in test."""
    test_prompts: float = _Share
    """Share of prompts in test."""
    evaluation_users: float = _Share
    """Share of users in evaluation."""
    evaluation_prompts: float = _Share
    """Share of prompts in evaluation."""

    @model_validator(mode="after")
    def _leave_some_for_training(self) -> Self:
        if self.test_users + self.evaluation_users >= 1 or self.test_prompts + self.evaluation_prompts >= 1:
            raise ValueError("test and evaluation together take everything; leave a share for training")
        return self


@functools.lru_cache(maxsize=65_536)  # the same people and prompts come again and again
def _draw(axis: str, key: str, test: float, evaluation: float, seed_text: str) -> Split:
    text = "\0".join((seed_text, axis, key))
    point = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    if point < test:
        return "test"
    return "evaluation" if point < test + evaluation else "train"


def user_split(user_id: str | None, config: SplitConfig) -> Split | None:
    """The split of a user; None, which imposes nothing, for an unknown user or when no users are held out."""
    if user_id is None or config.test_users + config.evaluation_users == 0:
        return None
    return _draw("user", user_id, config.test_users, config.evaluation_users, config.seed_text)


def prompt_split(prompt_key: str, config: SplitConfig) -> Split | None:
    """The split of a prompt; None, which imposes nothing, when no prompts are held out."""
    if config.test_prompts + config.evaluation_prompts == 0:
        return None
    return _draw("prompt", prompt_key, config.test_prompts, config.evaluation_prompts, config.seed_text)


def row_split(user_ids: Iterable[str | None], prompt_key: str, config: SplitConfig) -> Split | None:
    """The split on which the prompt and all users agree; None when they do not, and the row is not made.

    Args:
        user_ids: Everyone whose words or judgement is in the row; None is an unknown user.
        prompt_key: From `events.prompt_key`.
        config: How much is held out.
    """
    drawn = {user_split(user, config) for user in user_ids} | {prompt_split(prompt_key, config)}
    drawn.discard(None)
    if not drawn:
        return "train"
    return drawn.pop() if len(drawn) == 1 else None
