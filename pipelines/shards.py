"""The work of a large build on one shard: from names of tables in Arrow files to such names.

Functions here are what a Beam stage or a process beside it runs; they know nothing of either. File names are
drawn by chance, so a repeated attempt never overwrites what another wrote.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedback.joining import PROMPT_KEYS, lost_copies, prompt_keys
from feedback.preferences import PreferConfig

from .events_table import EventFile
from .grouping import GROUPED, decide, group_feedback, group_interactions
from .groups_store.segment import STORED

Spilled = list[tuple[int, str]]
"""Number of a shard and name of a part of it."""
_BATCH_ROWS = 65_536
_BATCH_BYTES = 128 * 2**20
"""What of a file of events is held at once; the texts of long conversations are large."""
_BATCHES = "#"
"""Between the path of a file and the numbers of the record batches in it that are meant."""

Bundle = tuple[EventFile, ...]
"""Files of the events table, of one kind, that are worked on at once."""
_BUNDLE_FILES, _BUNDLE_ROWS = 1_000, _BATCH_ROWS // 2


def bundled(files: Iterable[EventFile]) -> list[Bundle]:
    """Small files together: a stream that was followed for a day leaves thousands, and each costs more than its rows.

    A bundle holds about as many rows as are worked on at once, so a large file is one alone.
    """
    bundles: list[Bundle] = []
    by_kind = sorted(files, key=lambda file: file.kind)
    for _, same in groupby(by_kind, key=lambda file: file.kind):
        held: list[EventFile] = []
        rows = 0
        for file in same:
            full = len(held) == _BUNDLE_FILES or rows + file.rows > _BUNDLE_ROWS
            if held and full:
                bundles.append(tuple(held))
                held, rows = [], 0
            held.append(file)
            rows += file.rows
        bundles.append(tuple(held))
    return bundles


def write_arrow(folder: Path, table: pa.Table) -> str:
    """Writes a table beside the others and gives its name, which stands for it from here on."""
    return write_parts(folder, [(0, table)])[0][1]


def write_parts(folder: Path, parts: Iterable[tuple[int, pa.Table]]) -> Spilled:
    """Writes tables of one schema beside the others, all in one file: a thousand files would cost more than their rows.

    Returns:
        The number of each and its name.
    """
    path = folder / f"{uuid.uuid4().hex}.arrow"
    names: Spilled = []
    with ExitStack() as stack:
        writer, written = None, 0
        for number, table in parts:
            if writer is None:
                sink = stack.enter_context(pa.OSFile(str(path), "wb"))
                writer = stack.enter_context(pa.ipc.new_file(sink, table.schema))
            batches = table.to_batches(max_chunksize=_BATCH_ROWS)
            for batch in batches:
                writer.write_batch(batch)
            names.append((number, f"{path}{_BATCHES}{written}-{written + len(batches)}"))
            written += len(batches)
    return names


def read_arrow(names: Iterable[str], schema: pa.Schema) -> pa.Table:
    """The tables of some names as one, in the order of their names and not in the runner's."""
    batches: list[pa.RecordBatch] = []
    for name in sorted(names):
        path, _, numbers = name.rpartition(_BATCHES)
        lo, hi = numbers.split("-")
        with pa.memory_map(path) as source:
            reader = pa.ipc.open_file(source)
            batches += [reader.get_batch(number) for number in range(int(lo), int(hi))]
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def read_bundle(files: Bundle) -> Iterator[pa.Table]:
    """The events of some files in `STORED`, those of small files as one table, in batches that memory holds."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in (table for file in files for table in read_events(file)):
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= _BUNDLE_ROWS or size >= _BATCH_BYTES // 2:
            yield _as_one(held)
            held, rows, size = [], 0, 0
    if held:
        yield _as_one(held)


def _as_one(tables: list[pa.Table]) -> pa.Table:
    """One chunk a column; what comes alone is not copied."""
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]


def read_events(file: EventFile) -> Iterator[pa.Table]:
    """A file of the events table in `STORED`, in batches, so that a large file needs little memory."""
    wanted = [name for name in STORED.names if name != "kind"]
    with pq.ParquetFile(file.path) as parquet:
        about = parquet.metadata
        size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * about.num_rows // max(1, size)))
        for batch in parquet.iter_batches(batch_size=rows, columns=wanted):
            table = pa.Table.from_batches([batch])
            table = table.append_column("kind", pa.repeat(pa.scalar(file.kind), batch.num_rows))
            yield table.select(STORED.names).cast(STORED)


def by_shard(table: pa.Table, shard: np.ndarray) -> Iterator[tuple[int, pa.Table]]:
    """The parts of a table, given the shard of each row."""
    if table.num_rows == 0:
        return
    order = np.argsort(shard, kind="stable")
    table = table.take(pa.array(order))
    numbers, first = np.unique(shard[order], return_index=True)
    for number, lo, hi in zip(numbers, first, [*first[1:], len(order)], strict=True):
        yield int(number), table.slice(lo, hi - lo)


def by_id(table: pa.Table, shards: int) -> Iterator[tuple[int, pa.Table]]:
    """Parts by a hash of the id."""
    if shards == 1:
        return iter([(0, table)] if table.num_rows else [])
    ids = table["event_id"].to_pylist()
    hashes = np.fromiter((zlib.crc32(name.encode()) for name in ids), np.uint32, len(ids))
    return by_shard(table, hashes % shards)


def by_group(table: pa.Table, shards: int) -> Iterator[tuple[int, pa.Table]]:
    """Parts by range of the group's key, which is a SHA-256 and so evenly spread."""
    if shards == 1:
        return iter([(0, table)] if table.num_rows else [])
    digits = table["group"].to_pylist()
    leading = np.fromiter((int(key[:4], 16) for key in digits), np.int64, len(digits))
    return by_shard(table, leading * shards >> 16)


_IDS = pa.schema([STORED.field("event_id"), STORED.field("digest")])


def spill_ids(files: Bundle, staging: Path, shards: int) -> Spilled:
    """Ids and digests of some files of the events table, divided by id."""
    read = (pq.read_table(file.path, columns=_IDS.names, partitioning=None).cast(_IDS) for file in files)
    return write_parts(staging, by_id(pa.concat_tables(read), shards))


def find_conflicts(names: list[str]) -> list[str]:
    """The ids that stand for different events."""
    pairs = read_arrow(names, _IDS).group_by(_IDS.names).aggregate([])
    counts = pc.value_counts(pairs["event_id"].combine_chunks())
    ids: list[str] = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
    return ids


@dataclass(frozen=True)
class Routed:
    """Files of the events table, divided: what goes to its group at once, and what is settled by id first.

    Attributes:
        grouped: Interactions by group.
        keys: Name of their prompt keys.
        feedback: Names of feedback.
        by_id: Events whose ids stand for different events, by id.
    """

    grouped: Spilled
    keys: list[str]
    feedback: list[str]
    by_id: Spilled


def route(files: Bundle, conflicting: list[str], staging: Path, shards: int) -> Routed:
    """Divides some files of the events table.

    All copies of an event are in one group, as its content decides which. Only of different events under one id
    the groups differ: these must meet before it is known where they belong.
    """
    keys: list[str] = []
    apart: list[pa.Table] = []

    def clean() -> Iterator[pa.Table]:
        for table in read_bundle(files):
            if conflicting:
                lost = pc.is_in(table["event_id"], pa.array(conflicting))
                apart.append(table.filter(lost))
                table = table.filter(pc.invert(lost))
            yield table

    def by_prompt() -> Iterator[tuple[int, pa.Table]]:
        for table in clean():
            known = prompt_keys(table)
            keys.append(write_arrow(staging, known))
            nothing = pa.nulls(table.num_rows, pa.string())
            columns = [*table.columns, known["prompt_key"], nothing, nothing]
            yield from by_group(pa.table(columns, names=GROUPED.names).cast(GROUPED), shards)

    if files[0].kind == "feedback":
        feedback = [name for _, name in write_parts(staging, ((0, table) for table in clean()))]
        grouped: Spilled = []
    else:
        feedback, grouped = [], write_parts(staging, by_prompt())
    by_ids = (part for table in apart for part in by_id(table, shards))
    return Routed(grouped, keys, feedback, write_parts(staging, by_ids))


def group_replies(paths: list[str], staging: Path, shards: int) -> tuple[str, Spilled]:
    """All interactions of some ids: the name of their prompt keys, and they themselves divided by group."""
    grouped, keys = group_interactions(read_arrow(paths, STORED))
    return write_arrow(staging, keys), write_parts(staging, by_group(grouped, shards))


def group_signals(paths: list[str], keys: list[str], staging: Path, shards: int) -> Spilled:
    """All feedback of some ids, beside its prompt or where it waits, divided by group."""
    grouped = group_feedback(read_arrow(paths, STORED), read_arrow(keys, PROMPT_KEYS))
    return write_parts(staging, by_group(grouped, shards))


def decide_shard(paths: list[str], config_json: str, staging: Path) -> dict[str, str]:
    """All events of some groups, judged: the names of the tables of a `Part`."""
    part = decide(_settled(read_arrow(paths, GROUPED)), PreferConfig.model_validate_json(config_json))
    tables = {"events": part.events, "rows": part.rows, "prompts": part.prompts}
    return {name: write_arrow(staging, table) for name, table in tables.items()}


def _settled(grouped: pa.Table) -> pa.Table:
    """All events of some groups, with the fates of copies that came in different files."""
    fates, reasons = lost_copies(grouped)
    for name, lost in (("fate", fates), ("reason", reasons)):
        place = grouped.schema.get_field_index(name)
        grouped = grouped.set_column(place, GROUPED.field(name), pc.coalesce(lost, grouped[name]))
    return grouped


def write_joined(paths: list[str], path: Path) -> str:
    """All events of some groups that stand beside a prompt, ordered by it, as a Parquet file."""
    table = _settled(read_arrow(paths, GROUPED))
    keys = ("group", "kind", "event_id")
    small = table.select([*keys, "fate"]).append_column("row", pa.array(np.arange(table.num_rows)))
    small = small.filter(pc.is_null(small["fate"])).sort_by([(key, "ascending") for key in keys])
    joined = table.drop_columns(["fate", "reason"]).take(small["row"]).rename_columns({"group": "prompt_key"})
    # A dictionary of what never repeats would only be built and thrown away.
    repeating = [name for name in joined.column_names if name not in ("body", "event_id", "digest", "offset")]
    pq.write_table(joined, path, compression="zstd", compression_level=1, use_dictionary=repeating)
    return str(path)
