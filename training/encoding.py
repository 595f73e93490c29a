"""From chats to token ids, as the model served them, each chat once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from training.rendering import NotRendered, Rendered, RenderSettings, attempt, counted
from training.sequences import Tokens
from training.settings import UpdateSettings


class Encoder:
    """Encodes prompts and replies with a base model's tokenizer, and remembers what it encoded."""

    def __init__(self, base: Path, settings: UpdateSettings) -> None:
        """With the tokenizer in `base`."""
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        self.settings = RenderSettings(
            max_tokens=settings.max_tokens, overlong=settings.overlong, reasoning=settings.reasoning
        )
        self._seen: dict[tuple[bytes, bytes], Rendered | NotRendered] = {}

    def encode(self, prompt: Sequence[Mapping[str, Any]], reply: Mapping[str, Any] | str) -> Tokens | None:
        """The chat as tokens, the completion being what follows the rendered prompt; None where it cannot be used."""
        return _tokens(self._outcome(list(prompt), reply, {}))

    def served(self, row: Mapping[str, Any]) -> Tokens | None:
        """A row of SERVED as tokens: as logged where they were, else rendered."""
        logged = {
            "tools": orjson.loads(row["tools"]) if row.get("tools") else None,
            "logged_prompt_ids": row.get("prompt_ids"),
            "logged_completion_ids": row.get("completion_ids"),
        }
        given = {name: value for name, value in logged.items() if value is not None}
        return _tokens(self._outcome(orjson.loads(row["prompt"]), orjson.loads(row["completion"]), given))

    def known(self, prompt: Sequence[Mapping[str, Any]], reply: Mapping[str, Any] | str) -> Tokens:
        """Like `encode`, of a chat that is known to fit."""
        found = self.encode(prompt, reply)
        assert found is not None
        return found

    @property
    def metrics(self) -> dict[str, float]:
        """What became of all chats so far: rendered, cut, left out, differing from what was served."""
        return counted(self._seen.values()).metrics()

    def _outcome(self, prompt: Any, reply: Any, given: dict[str, Any]) -> Rendered | NotRendered:
        key = (orjson.dumps(prompt), orjson.dumps([reply, given]))
        if key not in self._seen:
            self._seen[key] = attempt(self.tokenizer, prompt, reply, settings=self.settings, **given)
        return self._seen[key]


def _tokens(outcome: Rendered | NotRendered) -> Tokens | None:
    if isinstance(outcome, NotRendered):
        return None
    mask = tuple(bool(m) for m in outcome.completion_mask)
    if not any(mask):
        return None
    return Tokens(tuple(outcome.prompt_ids), tuple(outcome.completion_ids), None if all(mask) else mask)
