"""From chats to token ids, as the model served them, each chat once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.sequences import Tokens


class Encoder:
    """Encodes prompts and replies with a base model's tokenizer, and remembers what it encoded."""

    def __init__(self, base: Path, max_tokens: int) -> None:
        """With the tokenizer in `base`; nothing longer than `max_tokens` is encoded."""
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        self.max_tokens = max_tokens
        self._seen: dict[tuple[str, str], Tokens | None] = {}

    def encode(self, prompt: Sequence[dict[str, Any]], reply: str) -> Tokens | None:
        """The chat as tokens, the completion being what follows the rendered prompt; None where it is too long."""
        key = (repr(prompt), reply)
        if key not in self._seen:
            self._seen[key] = self._encode(list(prompt), reply)
        return self._seen[key]

    def known(self, prompt: Sequence[dict[str, Any]], reply: str) -> Tokens:
        """Like `encode`, of a chat that is known to fit."""
        found = self.encode(prompt, reply)
        assert found is not None
        return found

    def _encode(self, prompt: list[dict[str, Any]], reply: str) -> Tokens | None:
        template = self.tokenizer.apply_chat_template
        before = list(template(prompt, tokenize=True, add_generation_prompt=True, return_dict=False))
        chat = [*prompt, {"role": "assistant", "content": reply}]
        whole = list(template(chat, tokenize=True, return_dict=False))
        if len(whole) > self.max_tokens:
            return None
        start = len(before)
        while (
            whole[:start] != before[:start]
        ):  # a template may close the prompt differently when a reply follows
            start -= 1
        return Tokens(tuple(whole[:start]), tuple(whole[start:]))
