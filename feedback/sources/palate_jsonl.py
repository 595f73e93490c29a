"""palate's own events, one JSON object a line; also the segments of the embedded log.

    {"type": "feedback", "feedback_id": "f1", "interaction_id": "i1", "kind": "thumb", "value": 1,
     "user_id": "u7", "event_time": "2026-03-01T12:00:00Z"}

Offsets are byte positions. A partition is known by its first line and its name, so a file may grow between
runs and only the new lines are read; two files that start with the same line and have the same name are taken
for the same file. A directory is all its `*.jsonl` files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, Field

from feedback.exports import shape
from feedback.sources import Cut, Partition, Record, require

_BLOCK_BYTES = 1 << 16
_CUT_BYTES = 6 * 2**20


class Config(BaseModel):
    """How to read the lines."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    final: bool = True
    """The file is complete: a last line without line end is read. False for a file that is being written."""
    max_line_bytes: int = Field(default=16_000_000, gt=0)
    """Longer lines are cut to one byte more, to bound memory; validation then refuses them as too large."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file. A directory may still be empty: the product has not written anything yet.

    Raises:
        SourceError: There is no such file or directory.
    """
    require(path, what="file or directory of events")
    if not path.is_dir():
        return [_partition(path, config)]
    return [_partition(file, config) for file in sorted(path.glob("*.jsonl")) if file.is_file()]


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of palate's own events."""
    keys = shape(head)
    return "type" in keys and bool({"interaction_id", "feedback_id"} & keys)


def _partition(path: Path, config: Config) -> Partition:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        end = size if config.final else _line_start(file, size)
        first = _first_line_digest(file)
    return Partition(f"palate_jsonl:{first[:16]}:{path.name}", path, end, pending_bytes=size - end)


def _first_line_digest(file: BinaryIO) -> str:
    """sha256 of the first line that is not blank, without its line end; in bounded memory."""
    file.seek(0)
    hashed = hashlib.sha256()
    started = False
    while block := file.readline(_BLOCK_BYTES):
        started = started or bool(block.strip())
        if not started:
            continue
        hashed.update(block.rstrip(b"\r\n") if block.endswith(b"\n") else block)
        if block.endswith(b"\n"):
            break
    return hashed.hexdigest()


def _line_start(file: BinaryIO, position: int) -> int:
    """The start of the line that the byte at `position` belongs to, or would if the file went on."""
    while position > 0:
        begin = max(0, position - _BLOCK_BYTES)
        file.seek(begin)
        found = file.read(position - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """The lines that end in (lo, hi], whole: a line that starts before `lo` is read from its start.

    So ranges may be cut at any byte; and a line that was read while incomplete is read again, whole, when the
    rest of it has been written. Blank lines are no records.
    """
    if lo >= hi:
        return
    limit = config.max_line_bytes + 1
    with partition.path.open("rb") as file:
        start = _line_start(file, lo)
        file.seek(start)
        while start < hi:
            line = file.readline(limit)
            if not line:
                return
            stop = start + len(line)
            while not line.endswith(b"\n") and len(line) == limit and (rest := file.readline(_BLOCK_BYTES)):
                stop += len(rest)
                if rest.endswith(b"\n"):
                    break
            if stop > hi:
                return
            raw = line.rstrip(b"\r\n")
            if stop > lo and raw.strip():
                yield Record(start, stop, raw)
            start = stop


def cuts(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Cut]:  # noqa: ARG001
    """Ends of lines, some megabytes apart."""
    with partition.path.open("rb") as file:
        start, lines = lo, 0
        while True:
            file.seek(start)
            block = file.read(_CUT_BYTES)
            end = block.rfind(b"\n") + 1
            lines += block.count(b"\n")
            # Within a line that is longer than a block the next block is looked at.
            start += end or len(block)
            if not block or start >= hi:
                return
            if end:
                yield Cut(start, lines, end)
                lines = 0
