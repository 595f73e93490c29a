"""Rows of SERVED for tests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from feedback.served import SERVED


def served_row(number: int, reply: str, **changes: Any) -> dict[str, Any]:
    """One reply that was served; `changes` replace fields, `prompt` may be a text."""
    made: dict[str, Any] = dict.fromkeys(SERVED.names)
    made |= {
        "interaction_id": f"i-{number}", "user_id": f"user-{number % 5}", "agent": "assistant",
        "event_time": datetime(2026, 1, 1, tzinfo=UTC), "prompt": f"What about number {number}?",
        "completion": json.dumps({"role": "assistant", "content": reply}), "prompt_key": f"prompt-{number}",
        "adapter_digest": "champion", "copied": False, "retried": False,
        "evidence": [], "scrubbed": [], "kept_share": 1.0,
    }  # fmt: skip
    made |= changes
    if not made["prompt"].startswith("["):
        made["prompt"] = json.dumps([{"role": "user", "content": made["prompt"]}])
    return made


def served_rows(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as a SERVED table."""
    return pa.Table.from_pylist(rows, schema=SERVED)
