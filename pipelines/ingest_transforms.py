"""The Beam half of ingest: read ranges, validate, write files, leave receipts.

Three transforms, `ReadBatches`, `Validate` and `WriteFiles`; all their steps are element-wise, so a runner
fuses them, and what they hand each other are paths of Arrow files: no payload goes through Beam. A range is
`[lo, hi)` of one partition; it is worked in batches that leave receipts of what they covered. The driver trusts
only receipts: a range whose receipts do not join up to its end is not committed.

Delivery: at least once per batch, whatever the runner; exactly once after the driver's commit. A runner that
works a batch twice leaves two receipts for the same range, of which `read_receipts` keeps one.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from feedback.sources import Record
from feedback.tables import EVENTS, to_table
from feedback.validation import Limits, Rejected

from . import parsing
from .events_table import KINDS, checksum
from .expectations import Expectations, ExpectationsConfig
from .processes import Ahead
from .ranges import Manner, Range, Sizes
from .sources import load

_PIECE_RECORDS = 5_000
_PIECE_BYTES = 8 * 2**20
_AHEAD = 6
"""Pieces that are parsed, and batches that are written, beside this process while it goes on."""


@dataclass(frozen=True)
class Batch:
    """The records that start in `[lo, hi)` of one partition, as a file; those of a few neighbours are checked together.

    Attributes:
        more: Whether reading stopped here for this commit, although the range goes on.
        path: Arrow file in `parsing.RECORDS`; empty where there are none (a range of blank lines).
        received: Number of records.
        size: Their bytes.
        last: Offset of the last record, -1 when there is none.
        checksum: `events_table.checksum` of that record.
    """

    range: Range
    lo: int
    hi: int
    more: bool
    path: str = ""
    received: int = 0
    size: int = 0
    last: int = -1
    checksum: int = 0


@dataclass(frozen=True)
class Receipt:
    """What was covered: `[lo, hi)` of a partition, row counts, and the files that hold the rows."""

    partition_id: str
    lo: int
    hi: int
    more: bool
    received: int
    rows: dict[str, int]
    reasons: dict[str, int]
    last: int
    """Offset of the last record, -1 when there is none (a range of blank lines)."""
    checksum: int
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """Batches that follow each other as rows in `EVENTS`, and the receipt that is left once they are written."""

    paths: tuple[str, ...]
    """Arrow files of the rows."""
    receipt: Receipt


class ReadBatches(beam.PTransform):
    """Ranges → batches of records, in order, until the range or one commit's worth of it is read.

    Args:
        sizes: Bounds of batches and commits.
        staging: Where the records are spilled; storage that the driver and all workers see.
        manner: What may be relied on where the work is done.
    """

    def __init__(self, sizes: Sizes, staging: Path, manner: Manner):
        super().__init__()
        self.read = ReadRange(sizes, staging, manner)

    def expand(self, pcoll: Any) -> Any:
        """PCollection of `Range` → PCollection of `Batch`."""
        return pcoll | "ReadRange" >> beam.ParDo(self.read)


class Validate(beam.PTransform):
    """Batches → rows of the events table: every record is an event or a dead letter with a reason.

    Args:
        limits: What is too much for one event.
        expectations: What must hold of the rows.
        now: Ingest time, aware.
        sizes: Bounds of what is checked at once.
        manner: What may be relied on where the work is done.
    """

    def __init__(
        self,
        limits: Limits,
        expectations: ExpectationsConfig,
        now: datetime,
        sizes: Sizes,
        manner: Manner,
    ):
        super().__init__()
        self.check = Check(limits, expectations, now, sizes, manner)

    def expand(self, pcoll: Any) -> Any:
        """PCollection of `Batch` → PCollection of `Checked`."""
        return pcoll | "Check" >> beam.ParDo(self.check)


class WriteFiles(beam.PTransform):
    """Checked batches → Parquet files in a staging folder and, when they are complete, receipts in another.

    Args:
        staging: Where the files go; storage that the driver and all workers see.
        receipts: Where the receipts go, likewise.
        manner: What may be relied on where the work is done.
    """

    def __init__(self, staging: Path, receipts: Path, manner: Manner):
        super().__init__()
        self.write = WriteBatch(staging, receipts, manner)

    def expand(self, pcoll: Any) -> Any:
        """PCollection of `Checked` → nothing; see `read_receipts`."""
        return pcoll | "WriteBatch" >> beam.ParDo(self.write)


class ReadRange(beam.DoFn):
    """Range → batches that follow each other without a gap."""

    def __init__(self, sizes: Sizes, staging: Path, manner: Manner):
        self.sizes, self.staging = sizes, staging
        # Pieces of what is checked at once, where they can be put together again.
        self.most_records = min(
            _PIECE_RECORDS if manner.in_process else sizes.batch_records, sizes.batch_records
        )
        self.most_bytes = min(_PIECE_BYTES if manner.in_process else sizes.batch_bytes, sizes.batch_bytes)

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
            if len(batch) < self.most_records and size < self.most_bytes:
                continue
            records_read, bytes_read = records_read + len(batch), bytes_read + size
            more = records_read >= self.sizes.commit_records or bytes_read >= self.sizes.commit_bytes
            yield self._spilled(element, lo, record.next_offset, more, batch, size)
            if more:
                return
            lo, batch, size = record.next_offset, [], 0
        if lo < element.hi or batch:
            hi = max(element.hi, batch[-1].next_offset) if batch else element.hi
            yield self._spilled(element, lo, hi, False, batch, size)

    def _spilled(self, asked: Range, lo: int, hi: int, more: bool, batch: list[Record], size: int) -> Batch:
        if not batch:
            return Batch(asked, lo, hi, more)
        path, last = parsing.spill_records(batch, self.staging), batch[-1]
        return Batch(asked, lo, hi, more, path, len(batch), size, last.offset, checksum(last.raw))


class Check(beam.DoFn):
    """Batches → rows. Never fails on a record's content.

    Batches are parsed in processes beside this one while it reads the next ones, and held until enough rows are
    there, as a run of Great Expectations takes as long for one row as for thousands.
    """

    def __init__(
        self,
        limits: Limits,
        expectations: ExpectationsConfig,
        now: datetime,
        sizes: Sizes,
        manner: Manner,
    ):
        self.limits, self.expectations, self.now = limits, expectations, now
        self.sizes, self.manner = sizes, manner

    def setup(self) -> None:
        """Builds the suite once per worker."""
        self.suite = Expectations(self.expectations, now=self.now)

    def start_bundle(self) -> None:
        """Nothing is held back from one bundle to the next."""
        self.ahead = Ahead(self.manner.processes, ahead=_AHEAD)
        self.parsed: list[tuple[Batch, str]] = []

    def process(self, element: Batch) -> Iterator[Checked]:
        """Yields what is complete by now."""
        given = (element.path, element.range.source, element.range.partition.id, self.now, self.limits)
        calls = [(parsing.parse, given)] if element.path else []
        for batch, paths in self.ahead.add(element, calls):
            self.parsed.append((batch, *paths) if paths else (batch, ""))
            if self._enough():
                yield from self._checked()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """What was held back."""
        for batch, paths in self.ahead.rest():
            self.parsed.append((batch, *paths) if paths else (batch, ""))
        for checked in self._checked():
            yield GlobalWindows.windowed_value(checked)

    def _enough(self) -> bool:
        if not self.manner.in_process:
            return True
        records = sum(batch.received for batch, _ in self.parsed)
        size = sum(batch.size for batch, _ in self.parsed)
        return records >= self.sizes.batch_records or size >= self.sizes.batch_bytes

    def _checked(self) -> Iterator[Checked]:
        """All that is parsed; what follows each other in a partition becomes one."""
        parsed, self.parsed = self.parsed, []
        tables = [parsing.read([path] if path else [], EVENTS) for _, path in parsed]
        failures = sorted(self.suite.failures(pa.concat_tables(tables)).items()) if parsed else []
        done, first = [], 0
        for (batch, path), table in zip(parsed, tables, strict=True):
            failed = {row - first: name for row, name in failures if first <= row < first + table.num_rows}
            first += table.num_rows
            if failed:
                table = self._without_failures(table, batch, failed)
                path = parsing.write(table, Path(path).parent)
            if self.manner.in_process and batch.path:
                parsing.remove([batch.path])
            done.append((batch, path, _counts(table["kind"]), _counts(table["reason"].drop_null())))
        for _, run in groupby(done, key=lambda each: each[0].range.partition.id):
            yield _joined(list(run))

    def _without_failures(self, table: pa.Table, batch: Batch, failures: dict[int, str]) -> pa.Table:
        """Rows that fail an expectation become dead letters that keep the bytes as they came."""
        rows = pa.array(list(failures), pa.int64())
        raws = parsing.read([batch.path], parsing.RECORDS).take(rows).to_pylist()
        ids = table["event_id"].take(rows).to_pylist()
        refused = to_table(
            [
                Rejected(
                    reason=f"expectation:{name}",
                    detail=f"the batch expectation {name} does not hold",
                    raw=record["raw"],
                    event_id=event_id,
                )
                for name, record, event_id in zip(failures.values(), raws, ids, strict=True)
            ],
            offsets=[record["offset"] for record in raws],
            ingest_time=self.now,
            source=batch.range.source,
            partition=batch.range.partition.id,
        )
        keep = np.ones(table.num_rows, dtype=bool)
        keep[list(failures)] = False
        return pa.concat_tables([table.filter(pa.array(keep)), refused])


def _joined(run: Sequence[tuple[Batch, str, dict[str, int], dict[str, int]]]) -> Checked:
    """Batches that follow each other, with the sums of their counts, as one."""
    batches = [batch for batch, *_ in run]
    newest = next((batch for batch in reversed(batches) if batch.path), batches[-1])
    rows: Counter[str] = sum((Counter(kinds) for _, _, kinds, _ in run), Counter())
    reasons: Counter[str] = sum((Counter(found) for *_, found in run), Counter())
    return Checked(
        tuple(path for _, path, *_ in run if path),
        Receipt(
            partition_id=batches[0].range.partition.id,
            lo=batches[0].lo,
            hi=batches[-1].hi,
            more=batches[-1].more,
            received=sum(batch.received for batch in batches),
            rows=dict.fromkeys(KINDS, 0) | rows,
            reasons=dict(reasons),
            last=newest.last,
            checksum=newest.checksum,
        ),
    )


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each value is there."""
    found = pc.value_counts(column)
    return dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))


class WriteBatch(beam.DoFn):
    """Checked batches → one Parquet file per kind, then the receipt; both leave nothing in the pipeline.

    Batches count only by their receipt, which is written last; so a bundle that dies in between left nothing.
    """

    def __init__(self, staging: Path, receipts: Path, manner: Manner):
        self.staging, self.receipts, self.manner = staging, receipts, manner

    def start_bundle(self) -> None:
        """Nothing is held back from one bundle to the next."""
        self.ahead = Ahead(self.manner.processes, ahead=_AHEAD)

    def process(self, element: Checked) -> None:
        """Lets this one be written while the next is read."""
        self._write(element)

    def finish_bundle(self) -> None:
        """Waits until everything is written; raises what the writing raised."""
        for receipt, files in self.ahead.rest():
            self._leave(receipt, files)

    def _write(self, element: Checked) -> None:
        calls = (
            [(parsing.write_kinds, (element.paths, self.staging, self.manner.in_process))]
            if element.paths
            else []
        )
        for receipt, files in self.ahead.add(element.receipt, calls):
            self._leave(receipt, files)

    def _leave(self, receipt: Receipt, files: list[dict[str, str]]) -> None:
        left = {**asdict(receipt), "files": files[0] if files else {}}
        path = self.receipts / f"{uuid.uuid4().hex}.json"
        path.with_suffix(".part").write_bytes(orjson.dumps(left))
        path.with_suffix(".part").replace(path)


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
