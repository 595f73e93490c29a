"""What a process beside an ingest runs: records to rows of the events table, and rows to Parquet.

Records and rows are handed over as Arrow files in a staging folder; the processes see their paths only. File
names are drawn by chance, so a repeated attempt never overwrites what another wrote.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedback import fast_parse
from feedback.sources import Record
from feedback.tables import EVENTS, rows_to_table
from feedback.validation import Limits

RECORDS: pa.Schema = pa.schema([("raw", pa.large_binary()), ("offset", pa.int64())])
"""Records as they are spilled: their bytes, and where in the partition each one starts."""

_FILE = pa.schema([column for column in EVENTS if column.name != "kind"])
# Columns that repeat a few values; a dictionary of the others would only be built and thrown away.
_REPEATING = [
    "agent", "ingest_time", "reason", "schema_version", "session_id", "source", "partition", "user_id",
]  # fmt: skip


def spill_records(records: Sequence[Record], folder: Path) -> str:
    """Writes records beside the others and gives the path that stands for them from here on."""
    raws = pa.array([record.raw for record in records], pa.large_binary())
    offsets = pa.array([record.offset for record in records], pa.int64())
    return write(pa.table([raws, offsets], schema=RECORDS), folder)


def parse(path: str, source: str, partition: str, now: datetime, limits: Limits) -> str:
    """Spilled records to rows in `EVENTS`, one each, in their order; gives the path of these.

    Args:
        path: What `spill_records` gave; the file is kept.
        source: Name of the source.
        partition: Id of the partition.
        now: Ingest time, aware.
        limits: What is too much.
    """
    records = read([path], RECORDS)
    rows = fast_parse.rows(records["raw"].to_pylist(), now=now, limits=limits)
    offsets = records["offset"].to_pylist()
    table = rows_to_table(rows, source=source, partition=partition, offsets=offsets, ingest_time=now)
    return write(table, Path(path).parent)


def write_kinds(paths: Sequence[str], folder: Path, tidy: bool) -> dict[str, str]:
    """Rows in `EVENTS` as Parquet, a file for each kind that is there.

    Args:
        paths: Arrow files.
        folder: Where the Parquet files go.
        tidy: Whether to remove the Arrow files.

    Returns:
        The path of the file of each kind.
    """
    table = read(paths, EVENTS)
    files: dict[str, str] = {}
    for kind in sorted(pc.unique(table["kind"]).to_pylist()):
        path = folder / f"{uuid.uuid4().hex}.parquet"
        write_parquet(table.filter(pc.equal(table["kind"], kind)).drop_columns(["kind"]), path)
        files[kind] = str(path)
    if tidy:
        remove(paths)
    return files


def write_parquet(table: pa.Table, path: Path) -> None:
    """Writes rows of `EVENTS` without `kind` as the events table keeps them."""
    pq.write_table(
        table.cast(_FILE),
        path,
        compression="zstd",
        use_dictionary=_REPEATING,
        write_statistics=["event_id", "event_time", "ingest_time", "offset"],
    )


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


def remove(paths: Iterable[str]) -> None:
    """Removes files that were read for the last time."""
    for path in paths:
        Path(path).unlink(missing_ok=True)
