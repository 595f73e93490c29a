"""Synthetic events for the benchmarks of the streams: seeded, about 1.2 KB each, with the faults of real streams.

Of all events 35 % are feedback (thumbs and copies), the others interactions, two to a prompt. Of the
interactions 1 % are bad: cut-off JSON, a missing completion, or a propensity above 1. Of all lines 1 % are exact
copies of an earlier one, and 1 % of the feedback is about an interaction that never arrives. Feedback may come
before its interaction.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
FEEDBACK_SHARE = 0.35
BAD_SHARE = 0.01
COPY_SHARE = 0.01
ORPHAN_SHARE = 0.01
_SENTENCE = (
    "the model answers a question about data and people ask it to write code review text explain ideas list "
    "steps compare two plans fix errors find sources keep short use plain words"
)
_WORDS = _SENTENCE.split(" ")
_FOREIGN = [*_WORDS, "naïve", "café", "résumé", "数据", "ответ"]


def _text(draw: random.Random, chars: int) -> str:
    words = draw.choices(_WORDS if draw.random() < 0.5 else _FOREIGN, k=chars // 5)
    return " ".join(words)


def _time(draw: random.Random) -> str:
    moment = START + timedelta(seconds=draw.randrange(50 * 86_400), milliseconds=draw.randrange(1000))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _interaction(draw: random.Random, number: int) -> dict[str, Any]:
    prompt = random.Random(number // 2)  # two replies to each prompt
    return {
        "type": "interaction",
        "interaction_id": f"i-{number:09d}",
        "session_id": f"s-{number // 2:09d}",
        "user_id": f"u-{number // 2 % 50_000:06d}",
        "event_time": _time(draw),
        "agent": draw.choice(["assistant", "researcher", "coder"]),
        "model": {"name": "assistant-7b", "version": "3"},
        "prompt": [
            {"role": "system", "content": _text(prompt, 200)},
            {"role": "user", "content": f"{number // 2}: {_text(prompt, 350)}"},
        ],
        "completion": {"role": "assistant", "content": _text(draw, 520)},
        "sampling": {"temperature": 1, "top_p": 0.95, "seed": draw.randrange(2**31)},
        "logprob": -draw.random() * 300,
        "tokens": draw.randrange(20, 400),
        "propensity": round(draw.uniform(0.05, 1), 3),
        "latency_ms": round(draw.uniform(50, 4000), 1),
        "uses": ["train", "evaluate"],
        "metadata": {"page": draw.choice(["chat", "docs"]), "turn": draw.randrange(9), "beta": None},
    }


def _feedback(draw: random.Random, number: int, interactions: int) -> dict[str, Any]:
    """`interactions` is how many of them there will be at the least."""
    about = draw.randrange(interactions)
    if draw.random() < ORPHAN_SHARE:
        about += 10 * interactions + 10
    event: dict[str, Any] = {
        "type": "feedback",
        "feedback_id": f"f-{number:09d}",
        "interaction_id": f"i-{about:09d}",
        "user_id": f"u-{about // 2 % 50_000:06d}",
        "event_time": _time(draw),
        "metadata": {"page": draw.choice(["chat", "docs"]), "client": "web/3.1"},
    }
    if draw.random() < 0.8:
        return event | {"kind": "thumb", "value": draw.choice([1, -1])}
    return event | {"kind": "copy", "value": None}


def _broken(draw: random.Random, event: dict[str, Any]) -> bytes:
    """An interaction with one of three faults."""
    fault = draw.randrange(3)
    if fault == 0:
        return orjson.dumps(event)[: draw.randrange(40, 900)].decode(errors="ignore").encode()
    if fault == 1:
        return orjson.dumps({name: value for name, value in event.items() if name != "completion"})
    return orjson.dumps(event | {"propensity": 1.5})


def _lines(draw: random.Random, count: int) -> Iterator[bytes]:
    interactions, fewest = 0, max(2, int(count * (1 - FEEDBACK_SHARE) * 0.95))
    recent: list[bytes] = []
    for number in range(count):
        if recent and draw.random() < COPY_SHARE:
            yield draw.choice(recent)
            continue
        if draw.random() < FEEDBACK_SHARE:
            line = orjson.dumps(_feedback(draw, number, fewest))
        else:
            event = _interaction(draw, interactions)
            interactions += 1
            line = _broken(draw, event) if draw.random() < BAD_SHARE else orjson.dumps(event)
        if len(recent) == 1000:
            recent[number % 1000] = line
        else:
            recent.append(line)
        yield line


def write_events(path: Path, count: int, seed: int = 0) -> int:
    """Writes `count` lines; gives the number of bytes."""
    with path.open("wb", buffering=1 << 20) as stream:
        return sum(stream.write(line + b"\n") for line in _lines(random.Random(seed), count))
