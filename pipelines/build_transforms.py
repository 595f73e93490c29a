"""The Beam half of a large build: group and judge over shards, with only file names in the shuffle.

Events are spilled as Arrow files by a hash of their id, so that all copies of one event meet; then by range of
their group's key, so that everything said about one prompt meets and the shards, one after the other, are in
the order of a segment. What is shuffled is `(shard, path)`: five times faster than shuffling rows, and the
runner's memory stays small. The one thing every shard needs to know of all others, the prompt key of each
interaction, is a side input of file names too. File names are drawn by chance, so a repeated attempt never
overwrites what another wrote.

`Join` is the first half alone: every event once, beside its prompt. `JoinAndPrefer` is all of it.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedback.joining import PROMPT_KEYS
from feedback.preferences import PreferConfig
from feedback.tables import PREFERENCES

from .events_table import EventFile
from .grouping import GROUPED, decide, group_feedback, group_interactions
from .groups_store.segment import STORED
from .groups_store.write import DECIDED, PROMPTS, Part

KEYS = "keys"
FEEDBACK = "feedback"

Claim = dict[str, Any]
"""Where a shard's result lies: `shard`, and the paths of the tables of a `Part`."""


def write_arrow(folder: Path, table: pa.Table) -> str:
    """Writes a table beside the others and gives its path, which stands for it from here on."""
    path = folder / f"{uuid.uuid4().hex}.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=65_536)
    return str(path)


def read_arrow(paths: Iterable[str], schema: pa.Schema) -> pa.Table:
    """The tables of some paths as one, in the order of their paths and not in the runner's."""
    tables = []
    for path in sorted(paths):
        with pa.memory_map(path) as source:
            tables.append(pa.ipc.open_file(source).read_all())
    return pa.concat_tables(tables).cast(schema) if tables else schema.empty_table()


def read_events(file: EventFile) -> Iterator[pa.Table]:
    """A file of the events table in `STORED`, in batches, so that a large file needs little memory."""
    wanted = [name for name in STORED.names if name != "kind"]
    with pq.ParquetFile(file.path) as parquet:
        for batch in parquet.iter_batches(batch_size=65_536, columns=wanted):
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
    ids = table["event_id"].to_pylist()
    hashes = np.fromiter((zlib.crc32(name.encode()) for name in ids), np.uint32, len(ids))
    return by_shard(table, hashes % shards)


def by_group(table: pa.Table, shards: int) -> Iterator[tuple[int, pa.Table]]:
    """Parts by range of the group's key, which is a SHA-256 and so evenly spread."""
    digits = table["group"].to_pylist()
    leading = np.fromiter((int(key[:4], 16) for key in digits), np.int64, len(digits))
    return by_shard(table, leading * shards >> 16)


class SpillById(beam.DoFn):
    """File of the events table → `((kind, shard), path)`."""

    def __init__(self, staging: Path, shards: int):
        self.staging, self.shards = staging, shards

    def process(self, element: EventFile) -> Iterator[tuple[tuple[str, int], str]]:
        """Reads in batches."""
        for table in read_events(element):
            for shard, part in by_id(table, self.shards):
                yield (element.kind, shard), write_arrow(self.staging, part)


class GroupReplies(beam.DoFn):
    """All rows of some ids → interactions by group; feedback goes on, it waits for the prompts of all."""

    def __init__(self, staging: Path, shards: int):
        self.staging, self.shards = staging, shards

    def process(self, element: tuple[tuple[str, int], Iterable[str]]) -> Iterator[Any]:
        """Yields `(shard, path)` and, tagged, the paths of prompt keys and of feedback."""
        (kind, _), paths = element
        paths = list(paths)
        if kind == "feedback":
            yield beam.pvalue.TaggedOutput(FEEDBACK, paths)
            return
        grouped, keys = group_interactions(read_arrow(paths, STORED))
        yield beam.pvalue.TaggedOutput(KEYS, write_arrow(self.staging, keys))
        for shard, part in by_group(grouped, self.shards):
            yield shard, write_arrow(self.staging, part)


class GroupFeedback(beam.DoFn):
    """All rows of some feedback ids → feedback by group: beside its prompt, or where it waits."""

    def __init__(self, staging: Path, shards: int):
        self.staging, self.shards = staging, shards

    def process(self, element: list[str], keys: list[str]) -> Iterator[tuple[int, str]]:
        """`keys` are the paths of the prompt keys of all interactions."""
        grouped = group_feedback(read_arrow(element, STORED), read_arrow(keys, PROMPT_KEYS))
        for shard, part in by_group(grouped, self.shards):
            yield shard, write_arrow(self.staging, part)


class Decide(beam.DoFn):
    """All events of some groups → the claim of a part of a segment."""

    def __init__(self, staging: Path, config: PreferConfig):
        # As JSON: a configuration is checked again where it is used, and always pickles.
        self.staging, self.config_json = staging, config.model_dump_json()

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[Claim]:
        """Pure work of `grouping.decide` on one shard."""
        shard, paths = element
        part = decide(read_arrow(paths, GROUPED), PreferConfig.model_validate_json(self.config_json))
        tables = {"events": part.events, "rows": part.rows, "prompts": part.prompts}
        yield {"shard": shard, **{name: write_arrow(self.staging, table) for name, table in tables.items()}}


class WriteJoined(beam.DoFn):
    """All events of some groups → the path of a Parquet file in which they are ordered by prompt."""

    def __init__(self, folder: Path):
        self.folder = folder

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[str]:
        """Only what stands beside a prompt; copies and feedback that waits are left out."""
        table = read_arrow(element[1], GROUPED)
        table = table.filter(pc.is_null(table["fate"]))
        keys = ("group", "kind", "event_id")
        order = pc.sort_indices(table.select(keys), [(key, "ascending") for key in keys])
        path = self.folder / f"joined-{element[0]:05d}.parquet"
        joined = table.take(order).drop_columns(["fate", "reason"]).rename_columns({"group": "prompt_key"})
        pq.write_table(joined, path, compression="zstd", compression_level=1)
        yield str(path)


class LeaveClaim(beam.DoFn):
    """Writes down where a result lies, where the driver finds it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def process(self, element: Claim) -> None:
        """One small file per result."""
        (self.folder / f"{uuid.uuid4().hex}.json").write_text(json.dumps(element))


class Join(beam.PTransform):
    """Files of the events table → `(shard, paths)`: every event once, with the group it is in.

    Delivery: as often as the input names a row; copies are told apart by id and content, so a repeated
    attempt changes nothing. Late events need no care: there are no windows, a build joins what is there.

    Args:
        staging: an existing folder, on storage that all workers share.
        shards: number of parts the work is divided into.
    """

    def __init__(self, staging: Path, shards: int):
        super().__init__()
        self.staging, self.shards = staging, shards

    def expand(self, files: Any) -> Any:
        """Groups by id, then by group."""
        staging, shards = self.staging, self.shards
        replies = (
            files
            | "SpillById" >> beam.ParDo(SpillById(staging, shards))
            | "ById" >> beam.GroupByKey()
            | "GroupReplies"
            >> beam.ParDo(GroupReplies(staging, shards)).with_outputs(KEYS, FEEDBACK, main="grouped")
        )
        keys = beam.pvalue.AsList(replies[KEYS])
        signals = replies[FEEDBACK] | "GroupFeedback" >> beam.ParDo(GroupFeedback(staging, shards), keys)
        return (replies["grouped"], signals) | "Grouped" >> beam.Flatten() | "ByGroup" >> beam.GroupByKey()


class JoinAndPrefer(beam.PTransform):
    """Files of the events table → claims: the parts of a segment, each with its events, rows and fates.

    Args:
        staging: an existing folder, on storage that all workers share.
        shards: number of parts the work is divided into; has no influence on what is made.
        config: what counts as a preference.
    """

    def __init__(self, staging: Path, shards: int, config: PreferConfig):
        super().__init__()
        self.staging, self.shards, self.config = staging, shards, config

    def expand(self, files: Any) -> Any:
        """`Join`, then the rules."""
        joined = files | "Join" >> Join(self.staging, self.shards)
        return joined | "Decide" >> beam.ParDo(Decide(self.staging, self.config))


def construct(
    pipeline: Any, files: list[EventFile], staging: Path, claims: Path, shards: int, config: PreferConfig
) -> None:
    """Adds the whole build to a pipeline; results are the claims it leaves."""
    made = pipeline | "Files" >> beam.Create(files) | JoinAndPrefer(staging, shards, config)
    made | "Claim" >> beam.ParDo(LeaveClaim(claims))


def read_claims(folder: Path) -> list[Claim]:
    """The claims that were left, in the order of their shards."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(found, key=lambda claim: claim["shard"])


def read_part(claim: Claim) -> Part:
    """The tables that a claim stands for."""
    return Part(
        read_arrow([claim["events"]], DECIDED),
        read_arrow([claim["rows"]], PREFERENCES),
        read_arrow([claim["prompts"]], PROMPTS),
    )
