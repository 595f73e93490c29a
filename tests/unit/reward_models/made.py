"""Preference rows with a known taste, for tests that fit something to them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from feedback.tables import PREFERENCES

WORDS = [
    "harbour", "gulls", "bread", "nets", "sugar", "milk", "apples", "golden", "weather", "wind",
    "bridges", "rust", "paint", "bolts", "sunlight", "water", "leaves", "clocks", "hour", "winter",
    "road", "valley", "villages", "numbers", "months", "message", "fence", "bicycle", "rivers",
    "markets", "schools",
]  # fmt: skip


def row(number: int, **changes: Any) -> dict[str, Any]:
    """One PREFERENCES row; `changes` replace fields."""
    made = {
        "preference_id": hashlib.sha256(str(number).encode()).hexdigest(),
        "prompt": [{"role": "user", "content": f"What about the {WORDS[number % len(WORDS)]}?"}],
        "prompt_key": f"prompt-{number}",
        "chosen": "Yes.",
        "rejected": "No, that will not work here.",
        "label": None,
        "margin": 1.0,
        "weight": 1.0,
        "propensity": None,
        "user_id": f"user-{number % 7}",
        "agent": "assistant",
        "rule": "vote",
        "evidence": [f"event-{number}"],
        "event_time": datetime(2026, 1, 1, tzinfo=UTC),
        "split": "train",
        "schema_version": 1,
    }
    return {**made, **changes}


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows as a PREFERENCES table."""
    return pa.Table.from_pylist(list(rows), schema=PREFERENCES)


def text(words: int, dice: random.Random) -> str:
    """An invented reply of so many words."""
    return " ".join(dice.choices(WORDS, k=words)).capitalize() + "."


def shorter_wins(count: int, *, first: int = 0, seed: int = 0, shuffled: bool = False) -> pa.Table:
    """Pairs whose shorter reply won, or, `shuffled`, whose winner was drawn by a coin."""
    dice = random.Random(seed)
    rows = []
    for number in range(first, first + count):
        pair = [text(dice.randint(2, 5), dice), text(dice.randint(9, 14), dice)]
        if shuffled and dice.random() < 0.5:
            pair.reverse()
        rows.append(row(number, chosen=pair[0], rejected=pair[1]))
    return table(rows)
