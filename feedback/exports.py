"""Files that other tools export: JSON lines, one JSON document, or one array of them, read piece by piece.

A source that reads such files says only how one document becomes events. Documents are numbered by the events
that come of them, so offsets are record indexes; a file is known by its content and name, so an unchanged file
is read once and a grown one is read again, its events bearing the ids they had before.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from feedback.documents import UNREADABLE, Document, documents, opened_file
from feedback.sources import Partition, Record, SourceError, require

MAX_DOCUMENT_BYTES = 64 * 2**20
"""Largest single document that is read: one trace, one task, one line."""
UNDATED = "2020-01-01T00:00:00+00:00"
"""Event time where an export has none. Fixed, so that reading it again gives the same events."""
_FAULTS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""What conversion raises on data of another shape than it expects."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A part of the input that is no event, and why."""

    reason: str


Item = dict[str, Any] | Drop | bytes
"""What a part of a document becomes: an event, a counted drop, or bytes handed on for validation to refuse."""
Convert = Callable[[Any], Iterable[Item]]


def partitions(name: str, path: Path, convert: Convert) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    found = []
    for file in files(path):
        dropped: Counter[str] = Counter()
        count = sum(1 for _ in _records(file, convert, dropped))
        found.append(
            Partition(f"{name}:{_digest(file)[:16]}:{file.name}", file, count, dropped=dict(dropped))
        )
    return found


def read(partition: Partition, lo: int, hi: int, convert: Convert) -> Iterator[Record]:
    """Records `lo` to `hi`, by index; the file is converted from its start each time."""
    records = _records(partition.path, convert, Counter())
    for index, raw in enumerate(islice(records, max(lo, 0), max(hi, lo, 0)), start=lo):
        yield Record(index, index + 1, raw)


def files(path: Path) -> list[Path]:
    """The files to read at `path`.

    Raises:
        SourceError: Nothing is there to read.
    """
    require(path, what="file or directory to read")
    if path.is_file():
        return [path]
    found = sorted(f for f in path.glob("*.json*") if f.is_file() and f.suffix in (".json", ".jsonl"))
    if not found:
        raise SourceError(
            "there is no *.json or *.jsonl file here", got=str(path), next_step="check the path"
        )
    return found


def _digest(file: Path) -> str:
    with opened_file(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _records(file: Path, convert: Convert, dropped: Counter[str]) -> Iterator[bytes]:
    for document in documents(file, MAX_DOCUMENT_BYTES):
        lost: Counter[str] = Counter()
        try:
            made = _converted(document, convert, lost)
        except _FAULTS:
            yield document.raw  # not of this format: validation says so and keeps the bytes
            continue
        dropped.update(lost)
        yield from made


def _converted(document: Document, convert: Convert, lost: Counter[str]) -> list[bytes]:
    if document.value is UNREADABLE:
        return [document.raw]
    made = []
    for item in convert(document.value):
        if isinstance(item, Drop):
            lost[item.reason] += 1
        elif isinstance(item, bytes):
            made.append(item)
        else:
            made.append(as_json(item))
    return made


def as_json(value: Any) -> bytes:
    """JSON of any value that was read from JSON, whatever numbers and halves of surrogate pairs it holds."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?|[\[\]{}]', re.DOTALL)


@functools.lru_cache(maxsize=2)
def shape(head: bytes) -> frozenset[str]:
    """Keys of the first object in `head`, which may be cut anywhere: `a`, and `a.b` of objects in it.

    >>> sorted(shape(b'[{"info": {"trace_id": "tr-1", "tags": {"x"'))
    ['info', 'info.tags', 'info.trace_id']
    """
    found: set[str] = set()
    stack: list[str] = []  # keys of the objects that are open; "" for an array or the first object
    key, started = "", False
    for token in _TOKEN.finditer(head):
        mark = token.group(0)
        if mark in (b"{", b"["):
            if not started and mark == b"[":
                continue
            stack.append((key if mark == b"{" else "[") if started else "")
            started, key = True, ""
        elif mark in (b"}", b"]"):
            if stack:
                stack.pop()
            if started and not stack:
                break
        elif token.group(2) and started:
            key = token.group(1).decode("utf-8", "replace")
            if len(stack) == 1:
                found.add(key)
            elif len(stack) == 2 and stack[1] not in ("", "["):
                found.add(f"{stack[1]}.{key}")
    return frozenset(found)


def time_of(value: Any) -> str | None:
    """A time as exports write them, with the UTC that many leave out; None for nothing."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise TypeError("a time is not text")
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value  # validation says what is wrong with it
    return value if time.tzinfo else time.replace(tzinfo=UTC).isoformat()


def time_of_nanoseconds(value: Any) -> str | None:
    """A time from nanoseconds since 1970, a number or the digits of one; None for nothing or 0."""
    if value is None or value == "" or int(value) == 0:
        return None
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(value) // 1000)).isoformat()


def content_id(prefix: str, *parts: Any) -> str:
    """An id that is the content: the same for the same parts wherever they are met."""
    return f"{prefix}-{hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]}"


_EDITED_S = 60.0


def revised(
    feedback_id: str, created: Any, updated: Any, within_s: float = _EDITED_S
) -> tuple[str, str | None]:
    """Id and time of a signal that tools let people change afterwards.

    A change more than a minute (`within_s`) after creation is a signal of its own, newer than the first, so that
    the newest wins; below that it is how the tool stores things.
    """
    first, last = time_of(created), time_of(updated)
    if first is None or last is None:
        return feedback_id, last or first
    try:
        later = (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    except (ValueError, TypeError):
        return feedback_id, first
    return (f"{feedback_id}@{last}", last) if later > within_s else (feedback_id, first)


def without_none(**fields: Any) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
