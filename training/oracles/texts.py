"""Eight rows of quite different lengths, in the forms that trainers take."""

from __future__ import annotations

from typing import Any

_WORDS = [
    "the", "lamp", "was", "late", "and", "every", "child", "at", "the", "lake", "counted", "seven",
    "yellow", "birds", "before", "it", "rained",
]  # fmt: skip
_PROMPTS = (3, 9, 5, 2, 12, 4, 7, 6)
"""Words of each prompt; then of each row's two replies."""
_LONGER = (14, 7, 9, 20, 12, 11, 8, 16)
_SHORTER = (4, 5, 2, 6, 10, 3, 7, 1)


def _text(words: int, start: int) -> str:
    return " ".join(_WORDS[(start + k) % len(_WORDS)] for k in range(words))


def pairs() -> list[dict[str, str]]:
    """Prompt, chosen and rejected reply."""
    return [
        {
            "prompt": _text(_PROMPTS[k], k) + "?",
            "chosen": " " + _text(_LONGER[k], 3 * k),
            "rejected": " " + _text(_SHORTER[k], 5 * k + 1),
        }
        for k in range(8)
    ]


def singles() -> list[dict[str, Any]]:
    """Prompt, reply, and whether it was liked."""
    return [
        {"prompt": row["prompt"], "completion": row["chosen"], "label": k % 3 != 0}
        for k, row in enumerate(pairs())
    ]


def plain() -> list[dict[str, str]]:
    """Prompt and reply, for supervised training."""
    return [{"prompt": row["prompt"], "completion": row["chosen"]} for row in pairs()]
