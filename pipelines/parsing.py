"""What a process beside an ingest runs: a range to rows of the events table, and rows to Parquet.

A range is read where its rows are made, and rows are handed over as Arrow files in a staging folder, so that
neither records nor rows go from process to process. File names are drawn by chance, so a repeated attempt never
overwrites what another wrote.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedback import fast_parse
from feedback.sources import Record
from feedback.tables import EVENTS, rows_to_table
from feedback.validation import Limits

from .events_table import checksum
from .ranges import Range, Sizes
from .sources import load

PIECE_RECORDS = 5_000
PIECE_BYTES = 8 * 2**20
"""What is held in memory at once, beside its rows."""
_PIECES_HELD = 4


@dataclass(frozen=True)
class Parsed:
    """The records that start in `[lo, hi)` of one partition, as rows.

    Attributes:
        more: Whether reading stopped here for this commit, although the range goes on.
        path: Arrow file in `EVENTS`; empty where there are no records (a range of blank lines).
        received: Number of records.
        size: Their bytes.
        last: Offset of the last record, -1 when there is none.
        checksum: `events_table.checksum` of that record.
    """

    lo: int
    hi: int
    more: bool = False
    path: str = ""
    received: int = 0
    size: int = 0
    last: int = -1
    checksum: int = 0


def records(asked: Range) -> Iterator[Record]:
    """The records of a range that are new."""
    source = load(asked.source)
    for record in source.read(asked.partition, asked.lo, asked.hi, source.Config(**asked.source_config)):
        if record.offset != asked.last:
            yield record
        # The end of the file when it was read, and its line has ended since. The record may be there.
        elif checksum(record.raw) != asked.checksum:
            # It was read before it was complete: a record of its own, at a place of its own.
            yield record._replace(offset=asked.lo)


def parse(asked: Range, sizes: Sizes, now: datetime, limits: Limits, staging: Path) -> list[Parsed]:
    """Reads a range, or one commit's worth of it, and makes rows: one for each record, in their order.

    Args:
        asked: What to read.
        sizes: Bounds of a commit.
        now: Ingest time, aware.
        limits: What is too much for one event.
        staging: Where the Arrow files go.

    Returns:
        Pieces that follow each other without a gap from `asked.lo` on.
    """
    done: list[Parsed] = []
    held: list[Record] = []
    lo, size, records_read, bytes_read = asked.lo, 0, 0, 0
    most = min(PIECE_RECORDS, sizes.batch_records)

    def piece(hi: int, more: bool) -> Parsed:
        if not held:
            return Parsed(lo, hi, more)
        rows = fast_parse.rows([record.raw for record in held], now=now, limits=limits)
        table = rows_to_table(
            rows,
            source=asked.source,
            partition=asked.partition.id,
            offsets=[record.offset for record in held],
            ingest_time=now,
        )
        last = held[-1]
        path = write(table, staging)
        return Parsed(lo, hi, more, path, len(held), size, last.offset, checksum(last.raw))

    for record in records(asked):
        held.append(record)
        size += len(record.raw)
        if len(held) < most and size < PIECE_BYTES:
            continue
        records_read, bytes_read = records_read + len(held), bytes_read + size
        more = records_read >= sizes.commit_records or bytes_read >= sizes.commit_bytes
        done.append(piece(record.next_offset, more))
        if more:
            return done
        lo, size = record.next_offset, 0
        held.clear()
    if lo < asked.hi or held:
        done.append(piece(max(asked.hi, held[-1].next_offset) if held else asked.hi, False))
    return done


_FILE = pa.schema([column for column in EVENTS if column.name != "kind"])
# Columns that repeat a few values; a dictionary of the others would only be built and thrown away.
_REPEATING = [
    "agent", "ingest_time", "reason", "schema_version", "session_id", "source", "partition", "user_id",
]  # fmt: skip
_FORMAT: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": _REPEATING,
    "write_statistics": ["event_id", "event_time", "ingest_time", "offset"],
}


def write_kinds(paths: Sequence[str], folder: Path) -> dict[str, str]:
    """Rows in `EVENTS` as Parquet, a file for each kind that is there.

    Args:
        paths: Arrow files.
        folder: Where the Parquet files go.

    Returns:
        The path of the file of each kind.
    """
    files: dict[str, str] = {}
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for lo in range(0, len(paths), _PIECES_HELD):  # so that few rows are held at a time
            table = read(paths[lo : lo + _PIECES_HELD], EVENTS)
            for kind in sorted(pc.unique(table["kind"]).to_pylist()):
                if kind not in writers:
                    files[kind] = str(folder / f"{uuid.uuid4().hex}.parquet")
                    writers[kind] = stack.enter_context(pq.ParquetWriter(files[kind], _FILE, **_FORMAT))
                rows = table.filter(pc.equal(table["kind"], kind)).drop_columns(["kind"])
                writers[kind].write_table(rows.cast(_FILE))
    return files


def write(table: pa.Table, folder: Path) -> str:
    """Writes a table as an Arrow file and gives its path."""
    path = folder / f"{uuid.uuid4().hex}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return str(path)


def read(paths: Iterable[str], schema: pa.Schema) -> pa.Table:
    """Arrow files as one table, mapped and not copied."""
    tables = []
    for path in paths:
        with pa.memory_map(path) as source:
            tables.append(pa.ipc.open_file(source).read_all())
    return pa.concat_tables(tables) if tables else schema.empty_table()
