"""The Beam half of ingest: read ranges, validate, write files, leave receipts.

Three transforms, `ReadBatches`, `Validate` and `WriteFiles`; all their steps are element-wise, so a runner
fuses them, and what they hand each other are paths of Arrow files: no payload goes through Beam. A range is
`[lo, hi)` of one partition; it is worked in batches that leave receipts of what they covered. The driver trusts
only receipts: a range whose receipts do not join up to its end is not committed.

Delivery: at least once per batch, whatever the runner; exactly once after the driver's commit. A runner that
works a batch twice leaves two receipts for the same range, of which `receipts.read_receipts` keeps one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from feedback.tables import EVENTS, to_table
from feedback.validation import Limits, Rejected

from . import parsing
from .events_table import KINDS
from .expectations import Expectations, ExpectationsConfig
from .parsing import Parsed
from .processes import Ahead
from .ranges import Manner, Range, Sizes
from .receipts import Receipt, leave
from .sources import load

_AHEAD = 8
"""Batches that are read, and rows that are written, beside this process while it goes on."""


@dataclass(frozen=True)
class Batch:
    """A part of a range that is read at once."""

    range: Range
    more: bool = False
    """Whether this commit ends here, although what was asked goes on."""


@dataclass(frozen=True)
class Checked:
    """Batches that follow each other as rows in `EVENTS`, and the receipt that is left once they are written."""

    paths: tuple[str, ...]
    """Arrow files of the rows."""
    receipt: Receipt


class ReadBatches(beam.PTransform):
    """Ranges → batches: parts of them to be read, one commit's worth at most.

    Args:
        sizes: Bounds of commits.
        manner: What may be relied on where the work is done.
    """

    def __init__(self, sizes: Sizes, manner: Manner):
        super().__init__()
        self.cut = CutRange(sizes, manner)

    def expand(self, pcoll: Any) -> Any:
        """PCollection of `Range` → PCollection of `Batch`."""
        return pcoll | "CutRange" >> beam.ParDo(self.cut)


class Validate(beam.PTransform):
    """Batches → rows of the events table: every record is an event or a dead letter with a reason.

    Args:
        limits: What is too much for one event.
        expectations: What must hold of the rows.
        now: Ingest time, aware.
        sizes: Bounds of what is checked at once, and of commits.
        staging: Where the rows go; storage that the driver and all workers see.
        manner: What may be relied on where the work is done.
    """

    def __init__(
        self,
        limits: Limits,
        expectations: ExpectationsConfig,
        now: datetime,
        sizes: Sizes,
        staging: Path,
        manner: Manner,
    ):
        super().__init__()
        self.check = Check(limits, expectations, now, sizes, staging, manner)

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
        """PCollection of `Checked` → nothing; see `receipts`."""
        return pcoll | "WriteBatch" >> beam.ParDo(self.write)


class CutRange(beam.DoFn):
    """Range → parts of it for several processes, where the source can be cut; else the range itself."""

    def __init__(self, sizes: Sizes, manner: Manner):
        self.sizes, self.manner = sizes, manner

    def process(self, element: Range) -> Iterator[Batch]:
        """Parts that follow each other without a gap."""
        source = load(element.source)
        cuts = getattr(source, "cuts", None)
        if cuts is None or self.manner.processes == 0:
            yield Batch(element)
            return
        lo, records, size = element.lo, 0, 0
        config = source.Config(**element.source_config)
        for cut in cuts(element.partition, element.lo, element.hi, config):
            records, size = records + cut.records, size + cut.size
            more = records >= self.sizes.commit_records or size >= self.sizes.commit_bytes
            yield Batch(replace(element, lo=lo, hi=cut.offset), more)
            if more:
                return
            lo = cut.offset
        yield Batch(replace(element, lo=lo))


class Check(beam.DoFn):
    """Batches → rows. Never fails on a record's content.

    Batches are read and parsed in processes beside this one, and held until enough rows are there, as a run of
    Great Expectations takes as long for one row as for thousands.
    """

    def __init__(
        self,
        limits: Limits,
        expectations: ExpectationsConfig,
        now: datetime,
        sizes: Sizes,
        staging: Path,
        manner: Manner,
    ):
        self.limits, self.expectations, self.now = limits, expectations, now
        self.sizes, self.staging, self.manner = sizes, staging, manner

    def setup(self) -> None:
        """Builds the suite once per worker."""
        self.suite = Expectations(self.expectations, now=self.now)

    def start_bundle(self) -> None:
        """Nothing is held back from one bundle to the next."""
        self.ahead = Ahead(self.manner.processes, ahead=_AHEAD)
        self.parsed: list[tuple[Range, Parsed]] = []
        self.stopped: set[str] = set()

    def process(self, element: Batch) -> Iterator[Checked]:
        """Yields what is complete by now."""
        given = (element.range, self.sizes, self.now, self.limits, self.staging)
        for batch, (pieces,) in self.ahead.add(element, [(parsing.parse, given)]):
            yield from self._take(batch, pieces)
        if not self.manner.in_process:
            yield from self._checked()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """What was held back."""
        for batch, (pieces,) in self.ahead.rest():
            for checked in self._take(batch, pieces):
                yield GlobalWindows.windowed_value(checked)
        for checked in self._checked():
            yield GlobalWindows.windowed_value(checked)

    def _take(self, batch: Batch, pieces: list[Parsed]) -> Iterator[Checked]:
        """Adds what was parsed; yields what is enough."""
        partition = batch.range.partition.id
        if partition in self.stopped:
            _tidy(self.manner, [piece.path for piece in pieces if piece.path])
            return
        # The commit may be full before the batch ends, as a source need not know sizes where it cuts. What was
        # read beyond is left for the next one.
        if pieces[-1].hi < batch.range.hi:
            self.stopped.add(partition)
        for number, piece in enumerate(pieces, 1):
            more = piece.more or (batch.more and number == len(pieces))
            self.parsed.append((batch.range, replace(piece, more=more)))
            rows = sum(held.received for _, held in self.parsed)
            size = sum(held.size for _, held in self.parsed)
            if rows >= self.sizes.batch_records or size >= self.sizes.batch_bytes:
                yield from self._checked()

    def _checked(self) -> Iterator[Checked]:
        """All that is parsed; what follows each other in a partition becomes one."""
        parsed, self.parsed = self.parsed, []
        tables = [parsing.read([piece.path] if piece.path else [], EVENTS) for _, piece in parsed]
        failures = sorted(self.suite.failures(pa.concat_tables(tables)).items()) if parsed else []
        done, first = [], 0
        for (asked, piece), table in zip(parsed, tables, strict=True):
            failed = {row - first: name for row, name in failures if first <= row < first + table.num_rows}
            first += table.num_rows
            if failed:
                table = self._without_failures(table, replace(asked, lo=piece.lo, hi=piece.hi), failed)
                _tidy(self.manner, [piece.path])
                piece = replace(piece, path=parsing.write(table, self.staging))
            done.append((asked.partition.id, piece, table))
        for partition, run in groupby(done, key=lambda each: each[0]):
            yield _joined(partition, [(piece, table) for _, piece, table in run])

    def _without_failures(self, table: pa.Table, asked: Range, failures: dict[int, str]) -> pa.Table:
        """Rows that fail an expectation become dead letters that keep the bytes as they came."""
        records = list(parsing.records(asked))
        if len(records) != table.num_rows:
            raise RuntimeError(f"{asked.partition.id} changed while it was read")
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
            source=asked.source,
            partition=asked.partition.id,
        )
        keep = np.ones(table.num_rows, dtype=bool)
        keep[list(failures)] = False
        return pa.concat_tables([table.filter(pa.array(keep)), refused])


def _joined(partition: str, run: Sequence[tuple[Parsed, pa.Table]]) -> Checked:
    """Pieces that follow each other, with the sums of their counts, as one."""
    pieces = [piece for piece, _ in run]
    if any(before.hi != after.lo for before, after in pairwise(pieces)):
        raise RuntimeError(f"{partition} was not read without gaps")  # which the receipt would no longer show
    newest = next((piece for piece in reversed(pieces) if piece.path), pieces[-1])
    table = pa.concat_tables([table for _, table in run])
    return Checked(
        tuple(piece.path for piece in pieces if piece.path),
        Receipt(
            partition_id=partition,
            lo=pieces[0].lo,
            hi=pieces[-1].hi,
            more=pieces[-1].more,
            received=sum(piece.received for piece in pieces),
            rows=dict.fromkeys(KINDS, 0) | _counts(table["kind"]),
            reasons=_counts(table["reason"].drop_null()),
            last=newest.last,
            checksum=newest.checksum,
        ),
    )


def _tidy(manner: Manner, paths: Iterable[str]) -> None:
    """Removes files that are done with, where nothing is worked twice.

    The staging folder stays for all commits of a long backlog, so they cannot wait for its end.
    """
    for path in paths if manner.in_process else ():
        Path(path).unlink(missing_ok=True)


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
        for element, files in self.ahead.rest():
            self._leave(element, files)

    def _write(self, element: Checked) -> None:
        calls = [(parsing.write_kinds, (element.paths, self.staging))] if element.paths else []
        for done, files in self.ahead.add(element, calls):
            self._leave(done, files)

    def _leave(self, element: Checked, files: list[dict[str, str]]) -> None:
        leave(element.receipt, files[0] if files else {}, self.receipts)
        # Only now, as a process that dies while it writes leaves its work to be done again.
        _tidy(self.manner, element.paths)
