"""Chat messages without personal data: content, names, reasoning, and whatever text stands in tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedback.hygiene.pii import PiiConfig, scrub


class Cleaner:
    """Replaces personal data, each text once: every turn of a conversation repeats the ones before."""

    def __init__(self, pii: PiiConfig) -> None:
        self.pii = pii
        self._known: dict[str, tuple[str, list[str]]] = {}

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        """Messages without personal data, and which kinds of it were replaced."""
        found: list[str] = []
        text = self.texts(found)
        return [
            {key: value if key == "role" else _walked(value, text) for key, value in message.items()}
            for message in messages
        ], found

    def texts(self, found: list[str] | None = None) -> Callable[[str], str]:
        """A function that cleans one text and notes in `found` what it replaced."""

        def clean(text: str) -> str:
            if text not in self._known:
                cleaned, kinds = scrub(text, self.pii)
                self._known[text] = cleaned, list(kinds.elements())
            cleaned, replaced = self._known[text]
            if found is not None:
                found.extend(replaced)
            return cleaned

        return clean


def _walked(value: Any, text: Callable[[str], str]) -> Any:
    """The value with every text in it changed, but for ids, by which calls and results find each other."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [_walked(item, text) for item in value]
    if isinstance(value, dict):
        return {key: item if key == "id" else _walked(item, text) for key, item in value.items()}
    return value
