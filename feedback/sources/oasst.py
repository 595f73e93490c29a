"""OpenAssistant message trees: replies ranked by people, with thumbs on them.

One line is one tree; a message has `replies`, ranked siblings have `rank` (0 is best):

    {"message_tree_id": "44f6…", "prompt": {"message_id": "44f6…", "text": "What differences …",
     "role": "prompter", "synthetic": false, "replies": [{"message_id": "d0b8…", "role": "assistant",
     "text": "Both …", "rank": 0, "emojis": {"+1": 3, "-1": 1}, "synthetic": false, "replies": []}]}}

Each assistant message becomes an interaction, each set of ranked siblings a vote, each thumb emoji a thumb.
Messages that are synthetic or deleted are dropped with everything below them, and counted. The export has no
users; times are the messages' `created_date`, or a fixed day plus the place in the tree, so that reading a
file twice gives the same events.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from feedback.exports import shape
from feedback.sources import Partition, Record, SourceError, require

_EPOCH = datetime(2023, 2, 1, tzinfo=UTC)
_ROLES = {"prompter": "user", "assistant": "assistant"}
_MAX_EMOJIS = 10_000
"""More thumbs on one message than this is not a count but a fault."""


class Config(BaseModel):
    """Nothing to set."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def partitions(path: Path, config: Config) -> list[Partition]:  # noqa: ARG001
    """One partition per file; a directory is all its `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read.
    """
    require(path, what="file or directory of OpenAssistant trees")
    files = sorted(f for f in path.glob("*.jsonl") if f.is_file()) if path.is_dir() else [path]
    if not files:
        raise SourceError("the directory has no *.jsonl file", got=str(path), next_step="check the path")
    found = []
    for file in files:
        dropped: Counter[str] = Counter()
        count = sum(1 for _ in _convert(file, dropped))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        found.append(Partition(f"oasst:{digest[:16]}:{file.name}", file, count, dropped=dict(dropped)))
    return found


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:  # noqa: ARG001
    """Records `lo` to `hi`, by index; the file is converted from its start each time."""
    for index, raw in enumerate(islice(_convert(partition.path, Counter()), lo, hi), start=lo):
        yield Record(index, index + 1, raw)


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such trees."""
    return {"message_tree_id", "prompt"} <= shape(head)


def _convert(path: Path, dropped: Counter[str]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            raw = line.rstrip(b"\r\n")
            if not raw.strip():
                continue
            lost: Counter[str] = Counter()
            try:
                events = [orjson.dumps(event) for event in _tree(orjson.loads(raw), lost)]
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                yield raw  # not such a tree: validation says so and keeps the bytes
                continue
            dropped.update(lost)
            yield from events


def _tree(tree: dict[str, Any], dropped: Counter[str]) -> Iterator[dict[str, Any]]:
    session = str(tree["message_tree_id"])
    # Depth first, replies in file order; the place in this walk is the fallback clock.
    stack: list[tuple[dict[str, Any], list[dict[str, str]]]] = [(tree["prompt"], [])]
    place = 0
    while stack:
        message, before = stack.pop()
        place += 1
        if message.get("synthetic") or message.get("deleted"):
            dropped["synthetic" if message.get("synthetic") else "deleted"] += 1
            dropped["below_dropped"] += _size(message) - 1
            continue
        time = _time(message, place)
        role = _ROLES[message["role"]]
        if role == "assistant":
            yield _interaction(message, before, session, time)
            yield from _thumbs(message, time)
        replies = message["replies"]
        yield from _ranking(message, replies, time, dropped)
        here = [*before, {"role": role, "content": message["text"]}]
        stack += [(reply, here) for reply in reversed(replies)]


def _size(message: dict[str, Any]) -> int:
    total, stack = 0, [message]
    while stack:
        total += 1
        stack += stack.pop()["replies"]
    return total


def _time(message: dict[str, Any], place: int) -> str:
    created = message.get("created_date")
    return str(created) if created else (_EPOCH + timedelta(seconds=place)).isoformat()


def _interaction(
    message: dict[str, Any], prompt: list[dict[str, str]], session: str, time: str
) -> dict[str, Any]:
    return {
        "type": "interaction",
        "interaction_id": _reply_id(message),
        "session_id": session,
        "event_time": time,
        "prompt": prompt,
        "completion": {"role": "assistant", "content": message["text"]},
        "metadata": {"source": "oasst", "lang": message.get("lang")},
    }


def _reply_id(message: dict[str, Any]) -> str:
    return "oasst-" + str(message["message_id"])


def _thumbs(message: dict[str, Any], time: str) -> Iterator[dict[str, Any]]:
    emojis = message.get("emojis") or {}
    for emoji, name, value in (("+1", "up", 1), ("-1", "down", -1)):
        count = int(emojis.get(emoji, 0))
        if not 0 <= count <= _MAX_EMOJIS:
            raise ValueError(f"{count} emojis on one message")
        for n in range(count):
            yield {
                "type": "feedback",
                "feedback_id": f"oasst-{message['message_id']}-{name}-{n}",
                "interaction_id": _reply_id(message),
                "event_time": time,
                "kind": "thumb",
                "value": value,
                "actor": "rater",
            }


def _ranking(
    parent: dict[str, Any], replies: list[dict[str, Any]], time: str, dropped: Counter[str]
) -> Iterator[dict[str, Any]]:
    ranked = [
        (reply["rank"], _reply_id(reply))
        for reply in replies
        if reply["role"] == "assistant"
        and reply.get("rank") is not None
        and not (reply.get("synthetic") or reply.get("deleted"))
    ]
    if len(ranked) < 2:
        return
    if len({rank for rank, _ in ranked}) < len(ranked):
        dropped["tied_ranking"] += 1  # an order with ties has no form on the wire
        return
    best_first = [reply_id for _, reply_id in sorted(ranked)]
    yield {
        "type": "feedback",
        "feedback_id": f"oasst-{parent['message_id']}-ranking",
        "interaction_id": best_first[0],
        "event_time": time,
        "kind": "vote",
        "value": {"ranking": best_first},
        "actor": "rater",
    }
