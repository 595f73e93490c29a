"""The Beam half of ingest: read a range, validate, check, write files, leave a receipt.

All steps are element-wise, so a runner fuses them and no payload goes through a shuffle. A range is
`[lo, hi)` of one partition; it is worked in batches, each leaving a receipt that says what it covered. The
driver trusts only receipts: a range whose receipts do not join up to its end is not committed.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedback.sources import Partition, Record, load
from feedback.tables import EVENTS, to_table
from feedback.validation import Limits, Rejected, parse

from .events_table import KINDS, checksum
from .expectations import Expectations, ExpectationsConfig


@dataclass(frozen=True)
class Range:
    """One partition's part to be read now."""

    source: str
    source_config: dict[str, Any]
    partition: Partition
    lo: int
    hi: int


@dataclass(frozen=True)
class Sizes:
    """Bounds that keep memory, files and commits small."""

    batch_records: int
    batch_bytes: int
    commit_records: int
    commit_bytes: int


@dataclass(frozen=True)
class Batch:
    """The records that start in `[lo, hi)` of one partition; `table` is filled by validation."""

    range: Range
    lo: int
    hi: int
    more: bool
    """Whether reading stopped here for this commit, although the range goes on."""
    records: list[Record]
    table: pa.Table | None = None


@dataclass(frozen=True)
class Receipt:
    """What one batch covered: `[lo, hi)` of its partition, row counts, and the files that hold the rows."""

    partition_id: str
    lo: int
    hi: int
    more: bool
    received: int
    rows: dict[str, int]
    reasons: dict[str, int]
    last: int
    """Offset of the last record, -1 when the batch holds none (a range of blank lines)."""
    checksum: int
    files: dict[str, str] = field(default_factory=dict)


class ReadBatches(beam.DoFn):
    """Range → batches, in order, until the range or one commit's worth is read."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes

    def process(self, element: Range) -> Iterator[Batch]:
        """Yields batches that follow each other without a gap."""
        source = load(element.source)
        config = source.Config(**element.source_config)
        batch: list[Record] = []
        lo, size, records_read, bytes_read = element.lo, 0, 0, 0
        for record in source.read(element.partition, element.lo, element.hi, config):
            batch.append(record)
            size += len(record.raw)
            if len(batch) < self.sizes.batch_records and size < self.sizes.batch_bytes:
                continue
            records_read, bytes_read = records_read + len(batch), bytes_read + size
            more = records_read >= self.sizes.commit_records or bytes_read >= self.sizes.commit_bytes
            yield Batch(element, lo, record.next_offset, more, batch)
            if more:
                return
            lo, batch, size = record.next_offset, [], 0
        if lo < element.hi or batch:
            hi = max(element.hi, batch[-1].next_offset) if batch else element.hi
            yield Batch(element, lo, hi, False, batch)


class Validate(beam.DoFn):
    """Batch → batch with a table of the `EVENTS` schema: one row per record, event or dead letter."""

    def __init__(self, limits: Limits, now: datetime):
        self.limits, self.now = limits, now

    def process(self, element: Batch) -> Iterator[Batch]:
        """Never fails on a record's content."""
        parsed = [parse(record.raw, now=self.now, limits=self.limits) for record in element.records]
        table = to_table(
            parsed,
            source=element.range.source,
            partition=element.range.partition.id,
            offsets=[record.offset for record in element.records],
            ingest_time=self.now,
        )
        yield replace(element, table=table)


class Expect(beam.DoFn):
    """Turns rows that fail an expectation into dead letters that keep the bytes as they came."""

    def __init__(self, config: ExpectationsConfig, now: datetime):
        self.config, self.now = config, now

    def setup(self) -> None:
        """Builds the suite once per worker."""
        self.suite = Expectations(self.config, now=self.now)

    def process(self, element: Batch) -> Iterator[Batch]:
        """Yields the batch with as many rows as it came with."""
        assert element.table is not None
        kinds = element.table["kind"].to_pylist()
        accepted = [row for row, kind in enumerate(kinds) if kind != "dead_letter"]
        failures = self.suite.failures(element.table.take(pa.array(accepted, pa.int64())))
        if not failures:
            yield element
            return
        failed = {accepted[row]: name for row, name in sorted(failures.items())}
        ids = element.table["event_id"]
        refused = to_table(
            [
                Rejected(
                    reason=f"expectation:{name}",
                    detail=f"the batch expectation {name} does not hold",
                    raw=element.records[row].raw,
                    event_id=ids[row].as_py(),
                )
                for row, name in failed.items()
            ],
            source=element.range.source,
            partition=element.range.partition.id,
            offsets=[element.records[row].offset for row in failed],
            ingest_time=self.now,
        )
        kept = element.table.filter(pa.array(row not in failed for row in range(len(kinds))))
        yield replace(element, table=pa.concat_tables([kept, refused]))


class WriteFiles(beam.DoFn):
    """Batch → receipt, after writing one Parquet file per kind into the staging folder."""

    def __init__(self, staging: Path):
        self.staging = staging

    def process(self, element: Batch) -> Iterator[Receipt]:
        """Names files by chance: a repeated attempt never overwrites what another wrote."""
        assert element.table is not None
        table, records = element.table.cast(EVENTS), element.records
        rows: dict[str, int] = {}
        files: dict[str, str] = {}
        for kind in KINDS:
            part = table.filter(pc.equal(table["kind"], kind))
            rows[kind] = part.num_rows
            if part.num_rows:
                path = self.staging / f"{uuid.uuid4().hex}.parquet"
                pq.write_table(part.drop_columns(["kind"]), path, compression="zstd")
                files[kind] = str(path)
        dead = table.filter(pc.equal(table["kind"], "dead_letter"))
        yield Receipt(
            partition_id=element.range.partition.id,
            lo=element.lo,
            hi=element.hi,
            more=element.more,
            received=len(records),
            rows=rows,
            reasons=dict(Counter(dead["reason"].to_pylist())),
            last=records[-1].offset if records else -1,
            checksum=checksum(records[-1].raw) if records else 0,
            files=files,
        )


class LeaveReceipt(beam.DoFn):
    """Writes each receipt where the driver finds it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def process(self, element: Receipt) -> None:
        """One JSON file per receipt."""
        (self.folder / f"{uuid.uuid4().hex}.json").write_bytes(orjson.dumps(asdict(element)))


def read_receipts(folder: Path) -> list[Receipt]:
    """All receipts of a run, ordered by partition and offset."""
    found = [Receipt(**orjson.loads(path.read_bytes())) for path in folder.glob("*.json")]
    return sorted(found, key=lambda receipt: (receipt.partition_id, receipt.lo))
