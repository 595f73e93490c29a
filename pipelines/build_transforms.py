"""The Beam half of build: dedupe, join and prefer over shards, with only file names in the shuffle.

Events are spilled as Arrow files by a hash of their id, so that all copies of one event meet; then by a hash
of their prompt key, so that everything said about one prompt meets. What is shuffled is `(shard, path)`: five
times faster than shuffling rows, and the runner's memory stays small. The one thing every shard needs to know
of all others, the prompt key of each interaction, is a side input of file names too. File names are drawn by
chance, so a repeated attempt never overwrites what another wrote.
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
import pyarrow.parquet as pq

from feedback.preferences import KEYED, PreferConfig, attach, dedupe, prefer, prompt_keys
from feedback.tables import EVENTS

from .events_table import EventFile

FATES = "fates"
KEYS = "keys"
FEEDBACK = "feedback"


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


def split_by(table: pa.Table, column: str, shards: int) -> Iterator[tuple[int, pa.Table]]:
    """The parts of a table by a hash of a column; the same value is in the same shard everywhere."""
    if table.num_rows == 0:
        return
    values = table[column].to_pylist()
    shard = np.fromiter(
        (zlib.crc32((value or "").encode()) % shards for value in values), np.int64, len(values)
    )
    for number in np.unique(shard):
        yield int(number), table.filter(pa.array(shard == number))


class SpillById(beam.DoFn):
    """File of the events table → `((kind, shard), path)`."""

    def __init__(self, staging: Path, shards: int):
        self.staging, self.shards = staging, shards

    def process(self, element: EventFile) -> Iterator[tuple[tuple[str, int], str]]:
        """Reads in batches, so that a large file needs little memory."""
        # The bytes of a dead letter can be large and no step needs them.
        wanted = [name for name in EVENTS.names if name not in ("kind", "raw")]
        with pq.ParquetFile(element.path) as file:
            for batch in file.iter_batches(batch_size=65_536, columns=wanted):
                table = pa.Table.from_batches([batch])
                table = table.append_column("kind", pa.array([element.kind] * table.num_rows, pa.string()))
                table = table.append_column("raw", pa.nulls(table.num_rows, pa.binary()))
                for shard, part in split_by(table.select(EVENTS.names).cast(EVENTS), "event_id", self.shards):
                    yield (element.kind, shard), write_arrow(self.staging, part)


class Dedupe(beam.DoFn):
    """All rows of some ids → each event once; interactions go on by prompt, feedback waits for its prompt."""

    def __init__(self, staging: Path, shards: int):
        self.staging, self.shards = staging, shards

    def process(self, element: tuple[tuple[str, int], Iterable[str]]) -> Iterator[Any]:
        """Yields `(shard, path)` and, tagged, the paths of fates, prompt keys and feedback."""
        (kind, _), paths = element
        events, fates = dedupe(read_arrow(paths, EVENTS))
        yield beam.pvalue.TaggedOutput(FATES, write_arrow(self.staging, fates))
        if kind == "feedback":
            yield beam.pvalue.TaggedOutput(FEEDBACK, write_arrow(self.staging, events))
        elif kind == "interaction":
            keys = prompt_keys(events)
            yield beam.pvalue.TaggedOutput(KEYS, write_arrow(self.staging, keys))
            keyed = events.append_column("prompt_key", keys["prompt_key"]).cast(KEYED)
            for shard, part in split_by(keyed, "prompt_key", self.shards):
                yield shard, write_arrow(self.staging, part)


class Attach(beam.DoFn):
    """Feedback → feedback beside its prompt, spilled by prompt; what has none gets its fate."""

    def __init__(self, staging: Path, shards: int):
        self.staging, self.shards = staging, shards

    def process(self, element: str, keys: list[str]) -> Iterator[Any]:
        """`keys` are the paths of the prompt keys of all interactions."""
        from feedback.joining import PROMPT_KEYS

        joined, fates = attach(read_arrow([element], EVENTS), read_arrow(keys, PROMPT_KEYS))
        yield beam.pvalue.TaggedOutput(FATES, write_arrow(self.staging, fates))
        for shard, part in split_by(joined.cast(KEYED), "prompt_key", self.shards):
            yield shard, write_arrow(self.staging, part)


class Prefer(beam.DoFn):
    """All events of some prompts → paths of their preference rows and, tagged, of their fates."""

    def __init__(self, staging: Path, config: PreferConfig):
        # As JSON: a configuration is checked again where it is used, and always pickles.
        self.staging, self.config_json = staging, config.model_dump_json()

    def process(self, element: tuple[int, Iterable[str]]) -> Iterator[Any]:
        """Pure work of `feedback.preferences.prefer` on one shard."""
        rows, fates = prefer(
            read_arrow(element[1], KEYED), PreferConfig.model_validate_json(self.config_json)
        )
        yield write_arrow(self.staging, rows)
        yield beam.pvalue.TaggedOutput(FATES, write_arrow(self.staging, fates))


class LeaveClaim(beam.DoFn):
    """Writes down the path of a result where the driver finds it."""

    def __init__(self, folder: Path, what: str):
        self.folder, self.what = folder, what

    def process(self, element: str) -> None:
        """One small file per result."""
        claim = json.dumps({"what": self.what, "path": element})
        (self.folder / f"{uuid.uuid4().hex}.json").write_text(claim)


def construct(
    pipeline: Any, files: list[EventFile], staging: Path, claims: Path, shards: int, config: PreferConfig
) -> None:
    """Adds the whole build to a pipeline; results are the claims it leaves."""
    deduped = (
        pipeline
        | "Files" >> beam.Create(files)
        | "SpillById" >> beam.ParDo(SpillById(staging, shards))
        | "ById" >> beam.GroupByKey()
        | "Dedupe" >> beam.ParDo(Dedupe(staging, shards)).with_outputs(FATES, KEYS, FEEDBACK, main="keyed")
    )
    keys = beam.pvalue.AsList(deduped[KEYS])
    attached = deduped[FEEDBACK] | "Attach" >> beam.ParDo(Attach(staging, shards), keys).with_outputs(
        FATES, main="keyed"
    )
    preferred = (
        (deduped["keyed"], attached["keyed"])
        | "Keyed" >> beam.Flatten()
        | "ByPrompt" >> beam.GroupByKey()
        | "Prefer" >> beam.ParDo(Prefer(staging, config)).with_outputs(FATES, main="rows")
    )
    preferred["rows"] | "ClaimRows" >> beam.ParDo(LeaveClaim(claims, "rows"))
    (
        (deduped[FATES], attached[FATES], preferred[FATES])
        | "Fates" >> beam.Flatten()
        | "ClaimFates" >> beam.ParDo(LeaveClaim(claims, FATES))
    )


def read_claims(folder: Path) -> dict[str, list[str]]:
    """Paths of the results by what they are."""
    found: dict[str, list[str]] = {"rows": [], FATES: []}
    for path in folder.glob("*.json"):
        claim = json.loads(path.read_text())
        found[claim["what"]].append(claim["path"])
    return found
