"""The Beam half of ingest: read ranges, validate, write files, leave receipts.

Three transforms, `ReadBatches`, `Validate` and `WriteFiles`; all their steps are element-wise, so a runner
fuses them and no payload goes through a shuffle. A range is `[lo, hi)` of one partition; it is worked in
batches, each leaving a receipt that says what it covered. The driver trusts only receipts: a range whose
receipts do not join up to its end is not committed.

Delivery: at least once per batch, whatever the runner; exactly once after the driver's commit. A runner that
works a batch twice leaves two receipts for the same range, of which `read_receipts` keeps one.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedback import fast_parse
from feedback.sources import Partition, Record
from feedback.tables import EVENTS, rows_to_table, to_table
from feedback.validation import Limits, Rejected

from .events_table import KINDS, checksum
from .expectations import Expectations, ExpectationsConfig, Outcome
from .sources import load

# Columns that repeat a few values; a dictionary of the others would only be built and thrown away.
_REPEATING = [
    "agent",
    "ingest_time",
    "reason",
    "schema_version",
    "session_id",
    "source",
    "partition",
    "user_id",
]


@dataclass(frozen=True)
class Range:
    """One partition's part to be read now."""

    source: str
    source_config: dict[str, Any]
    partition: Partition
    lo: int
    hi: int
    last: int = -1
    """Offset of the last record read before; -1 when none was."""
    checksum: int = 0
    """`events_table.checksum` of that record."""


@dataclass(frozen=True)
class Sizes:
    """Bounds that keep memory, files and commits small."""

    batch_records: int
    batch_bytes: int
    commit_records: int
    commit_bytes: int


@dataclass(frozen=True)
class Batch:
    """The records that start in `[lo, hi)` of one partition."""

    range: Range
    lo: int
    hi: int
    more: bool
    """Whether reading stopped here for this commit, although the range goes on."""
    records: list[Record]


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
    expectations: list[dict[str, Any]] = field(default_factory=list)
    """What the batch expectations found, see `expectations.Outcome.checks`."""


@dataclass(frozen=True)
class Checked:
    """A batch as rows in `EVENTS`, and the receipt that is left once they are written."""

    table: pa.Table
    receipt: Receipt


class ReadBatches(beam.PTransform):
    """Ranges → batches of records, in order, until the range or one commit's worth of it is read."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes

    def expand(self, pcoll: Any) -> Any:
        """PCollection of `Range` → PCollection of `Batch`."""
        return pcoll | "ReadRange" >> beam.ParDo(ReadRange(self.sizes))


class Validate(beam.PTransform):
    """Batches → batches as rows of the events table: every record is an event or a dead letter with a reason."""

    def __init__(self, limits: Limits, expectations: ExpectationsConfig, now: datetime):
        super().__init__()
        self.limits, self.expectations, self.now = limits, expectations, now

    def expand(self, pcoll: Any) -> Any:
        """PCollection of `Batch` → PCollection of `Checked`."""
        return pcoll | "Check" >> beam.ParDo(Check(self.limits, self.expectations, self.now))


class WriteFiles(beam.PTransform):
    """Checked batches → Parquet files in a staging folder and, when they are complete, receipts in another.

    Both folders must be storage that the driver and all workers see.
    """

    def __init__(self, staging: Path, receipts: Path):
        super().__init__()
        self.staging, self.receipts = staging, receipts

    def expand(self, pcoll: Any) -> Any:
        """PCollection of `Checked` → nothing; see `read_receipts`."""
        return pcoll | "WriteBatch" >> beam.ParDo(WriteBatch(self.staging, self.receipts))


class ReadRange(beam.DoFn):
    """Range → batches that follow each other without a gap."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes

    def process(self, element: Range) -> Iterator[Batch]:
        """Holds one batch in memory at a time."""
        source = load(element.source)
        config = source.Config(**element.source_config)
        batch: list[Record] = []
        lo, size, records_read, bytes_read = element.lo, 0, 0, 0
        for record in source.read(element.partition, element.lo, element.hi, config):
            if record.offset == element.last:
                # The end of the file when it was read, and its line has ended since. The record is there.
                if checksum(record.raw) == element.checksum:
                    continue
                # It was read before it was complete: a record of its own, at a place of its own.
                record = record._replace(offset=element.lo)
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


class Check(beam.DoFn):
    """Batch → rows. Never fails on a record's content."""

    def __init__(self, limits: Limits, expectations: ExpectationsConfig, now: datetime):
        self.limits, self.expectations, self.now = limits, expectations, now

    def setup(self) -> None:
        """Builds the suite once per worker."""
        self.suite = Expectations(self.expectations, now=self.now)

    def process(self, element: Batch) -> Iterator[Checked]:
        """As many rows as records."""
        records = element.records
        rows = fast_parse.rows([record.raw for record in records], now=self.now, limits=self.limits)
        where = {"source": element.range.source, "partition": element.range.partition.id}
        offsets = [record.offset for record in records]
        table = rows_to_table(rows, offsets=offsets, ingest_time=self.now, **where)
        del rows  # as large as the table
        outcome = self.suite.check(table)
        if outcome.failures:
            table = self._without_failures(table, records, outcome, where)
        kinds = Counter(table["kind"].to_pylist())
        yield Checked(
            table,
            Receipt(
                partition_id=element.range.partition.id,
                lo=element.lo,
                hi=element.hi,
                more=element.more,
                received=len(records),
                rows={kind: kinds[kind] for kind in KINDS},
                reasons=dict(Counter(table["reason"].drop_null().to_pylist())),
                last=records[-1].offset if records else -1,
                checksum=checksum(records[-1].raw) if records else 0,
                expectations=outcome.checks,
            ),
        )

    def _without_failures(
        self, table: pa.Table, records: list[Record], outcome: Outcome, where: dict[str, str]
    ) -> pa.Table:
        """Rows that fail an expectation become dead letters that keep the bytes as they came."""
        failures = dict(sorted(outcome.failures.items()))
        ids = table["event_id"].take(pa.array(list(failures), pa.int64())).to_pylist()
        refused = to_table(
            [
                Rejected(
                    reason=f"expectation:{name}",
                    detail=f"the batch expectation {name} does not hold",
                    raw=records[row].raw,
                    event_id=event_id,
                )
                for (row, name), event_id in zip(failures.items(), ids, strict=True)
            ],
            offsets=[records[row].offset for row in failures],
            ingest_time=self.now,
            **where,
        )
        keep = np.ones(table.num_rows, dtype=bool)
        keep[list(failures)] = False
        return pa.concat_tables([table.filter(pa.array(keep)), refused])


class WriteBatch(beam.DoFn):
    """Checked batch → one Parquet file per kind, then the receipt; both leave nothing in the pipeline.

    A thread compresses and writes one batch while the next is validated, as neither needs the other's lock.
    A batch counts only by its receipt, which is written last; so a bundle that dies in between left nothing.
    """

    def __init__(self, staging: Path, receipts: Path):
        self.staging, self.receipts = staging, receipts

    def setup(self) -> None:
        """Starts the thread."""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="write-files")
        self.running: Future[None] | None = None

    def process(self, element: Checked) -> None:
        """Waits for the batch before, then lets this one be written."""
        self.finish_bundle()
        self.running = self.thread.submit(self._write, element)

    def finish_bundle(self) -> None:
        """Waits until everything is written; raises what the writing raised."""
        running, self.running = self.running, None
        if running is not None:
            running.result()

    def teardown(self) -> None:
        """Ends the thread."""
        self.thread.shutdown(wait=True)

    def _write(self, element: Checked) -> None:
        # Names are drawn by chance: a repeated attempt never overwrites what another wrote.
        files: dict[str, str] = {}
        for kind, count in element.receipt.rows.items():
            if count == 0:
                continue
            path = self.staging / f"{uuid.uuid4().hex}.parquet"
            whole = count == element.table.num_rows
            part = element.table if whole else element.table.filter(pc.equal(element.table["kind"], kind))
            write_parquet(part.drop_columns(["kind"]), path)
            files[kind] = str(path)
        left = {**asdict(element.receipt), "files": files}
        path = self.receipts / f"{uuid.uuid4().hex}.json"
        path.with_suffix(".part").write_bytes(orjson.dumps(left))
        path.with_suffix(".part").replace(path)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Writes rows of `EVENTS` without `kind` as the events table keeps them."""
    pq.write_table(
        table.cast(_FILE),
        path,
        compression="zstd",
        use_dictionary=_REPEATING,
        write_statistics=["event_id", "event_time", "ingest_time", "offset"],
    )


_FILE = pa.schema([column for column in EVENTS if column.name != "kind"])


def read_receipts(folder: Path) -> list[Receipt]:
    """The receipts of a run, ordered by partition and offset, each batch's once.

    Cluster runners may work a batch again, after a lost worker or beside a slow one. Both attempts wrote the
    same rows to files of their own; the files of the one that is not kept are never committed.
    """
    found: dict[tuple[Any, ...], Receipt] = {}
    for path in sorted(folder.glob("*.json")):
        receipt = Receipt(**orjson.loads(path.read_bytes()))
        covered = (
            receipt.partition_id,
            receipt.lo,
            receipt.hi,
            receipt.received,
            receipt.last,
            receipt.checksum,
        )
        found.setdefault(covered, receipt)
    return sorted(found.values(), key=lambda receipt: (receipt.partition_id, receipt.lo))
