"""Small events made for the tests of the pipelines, as any product would write them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

NOW = datetime(2026, 3, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)


def asker(number: int) -> str:
    """Who asked for interaction `number`; one user asks for both replies to a prompt."""
    return f"u{number // 2 % 40}"


def interaction(
    number: int, *, prompt: str | None = None, user: str | None = None, **more: Any
) -> dict[str, Any]:
    """One reply; two replies share a prompt when `prompt` says so."""
    return {
        "type": "interaction",
        "interaction_id": f"i{number}",
        "user_id": user or asker(number),
        "event_time": (START + timedelta(minutes=number)).isoformat(),
        "prompt": [{"role": "user", "content": prompt or f"question {number // 2}"}],
        "completion": {"role": "assistant", "content": f"answer {number}"},
        **more,
    }


def feedback(
    number: int, about: int | str, kind: str = "thumb", value: Any = 1, **more: Any
) -> dict[str, Any]:
    """One signal about an interaction, given by who asked unless `user_id` says otherwise."""
    target = about if isinstance(about, str) else f"i{about}"
    return {
        "type": "feedback",
        "feedback_id": f"f{number}",
        "interaction_id": target,
        "user_id": asker(int(target[1:])) if target[1:].isdigit() else "u0",
        "event_time": (START + timedelta(days=7, minutes=number)).isoformat(),
        "kind": kind,
        "value": value,
        **more,
    }


def history(size: int, seed: int = 0) -> list[dict[str, Any]]:
    """A mixed history of `size` events: two replies a prompt, and several kinds of signals about them."""
    random_ = random.Random(seed)
    events: list[dict[str, Any]] = [interaction(n) for n in range(size // 2)]
    for n in range(size - len(events)):
        about = random_.randrange(size // 2)
        sibling = about ^ 1 if about ^ 1 < size // 2 else about - 2
        kind, value = random_.choice(
            [
                ("thumb", random_.choice([1, -1])),
                ("rating", {"value": float(random_.randint(1, 5)), "lo": 1.0, "hi": 5.0}),
                ("vote", {"among": [f"i{about}", f"i{sibling}"], "winner": f"i{about}"}),
                ("edit", {"text": f"better answer {about}"}),
                ("retry", None),
                ("copy", None),
                ("comment", {"text": "hm"}),
            ]
        )
        events.append(feedback(n, about, kind, value))
    return events


def lines(events: Iterable[dict[str, Any]]) -> bytes:
    """Events as the lines of a file."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def write(path: Path, events: Iterable[dict[str, Any]]) -> Path:
    """Writes events as lines and gives the path back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lines(events))
    return path
