"""Ingest: records of a source become rows of the events table, each exactly once.

Delivery: for every partition the driver takes the offset up to which the table has read it, lets Beam work
the range from there, and commits the files, the dead letters and the new offset in one Delta commit. Killed
at any instant, the next run continues from the last commit. A record that appears twice in the input is two
rows; the build keeps one of them and calls the other `duplicate`.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feedback.errors import PalateError
from feedback.sources import Partition, load
from feedback.validation import Limits

from . import events_table
from .continuity import advance, refuse_rewritten
from .errors import InputError, PipelineError, disk_full, full_disk_error, last_line
from .events_table import EventFile, Position
from .expectations import ExpectationsConfig
from .runner import import_beam, run_pipeline
from .workspace import Layout, staging_folder

if TYPE_CHECKING:
    from .ingest_transforms import Range, Receipt

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class IngestConfig(BaseModel):
    """How a source is read and what is accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    limits: Limits = Limits()
    """What validation accepts of one event."""
    expectations: ExpectationsConfig = ExpectationsConfig()
    """What must hold of every row of a batch."""
    batch_records: int = Field(default=10_000, ge=1)
    """Records checked together. Below 5,000 the fixed 0.1 s of a Great Expectations run dominates."""
    batch_bytes: int = Field(default=32 * 2**20, ge=1)
    """Bytes after which a batch is closed early; bounds memory."""
    commit_records: int = Field(default=200_000, ge=1)
    """Records of one partition after which files and offset are committed."""
    commit_bytes: int = Field(default=256 * 2**20, ge=1)
    """Bytes of one partition after which files and offset are committed."""
    max_conflicts: int = Field(default=20, ge=0)
    """How often in a row another writer may be first before giving up."""


@dataclass
class IngestSummary:
    """What one call of `ingest` did. `received` = interactions + feedback + the sum of dead_letters."""

    received: int = 0
    interactions: int = 0
    feedback: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    """Reason to number of records refused for it."""
    partitions: int = 0
    already_read: int = 0
    """Partitions that held nothing new."""
    pending_bytes: int = 0
    """Bytes of an unfinished last line, left for the next time."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Parts of the input that its format marks as not to be used, by reason; they are no records."""
    seconds: float = 0.0


def ingest(
    path: Path,
    *,
    source: str,
    source_config: Mapping[str, Any] | None = None,
    workspace: Path,
    config: IngestConfig | None = None,
    now: datetime | None = None,
    progress: Progress | None = None,
) -> IngestSummary:
    """Reads what is new at `path` into the workspace's events table.

    Args:
        path: a file, or a folder of them, as the source understands it.
        source: name of a module in `feedback/sources`, or `module:object`.
        source_config: fields of that source's `Config`.
        workspace: the workspace directory; made when absent.
        config: see `IngestConfig`.
        now: ingest time (aware); the clock when None.
        progress: called after every commit with the number of partitions read to their end.

    Returns:
        Counts; every record received is a row of exactly one kind.

    Raises:
        SourceError: there is no such source, or nothing it can read.
        InputError: the input shrank, or was rewritten after it had been read.
        DiskFullError: no space; everything committed before stays, nothing is half there.
        PipelineError: a range was not worked completely, or other writers were always first.
    """
    started = time.monotonic()
    config = config or IngestConfig()
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    layout = Layout(Path(workspace).resolve())
    settings = dict(source_config or {})
    partitions = _partitions(Path(path), source, settings)
    summary = IngestSummary(
        partitions=len(partitions),
        pending_bytes=sum(part.pending_bytes for part in partitions),
        dropped=dict(sum((Counter(part.dropped) for part in partitions), Counter())),
    )
    try:
        with staging_folder(layout, "ingest") as staging:
            _rounds(partitions, source, settings, layout, staging, config, moment, summary, progress)
    except PalateError:
        raise
    except Exception as error:
        if disk_full(error):
            raise full_disk_error(layout.root, "free some space and run the same command again") from error
        raise PipelineError(
            "Ingest stopped; what was committed before stays.",
            got=last_line(error),
            next_step="mend the cause and run the same command again: it continues where it stopped",
        ) from error
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _partitions(path: Path, source: str, settings: Mapping[str, Any]) -> list[Partition]:
    """What there is to read."""
    module = load(source)
    try:
        config = module.Config(**settings)
    except ValidationError as error:
        raise InputError(
            f"The source {source} does not take these settings.",
            got=settings,
            allowed=sorted(module.Config.model_fields),
            next_step=str(error.errors()[0]["msg"]),
        ) from error
    return module.partitions(path, config)


def _rounds(
    partitions: Sequence[Partition],
    source: str,
    settings: dict[str, Any],
    layout: Layout,
    staging: Path,
    config: IngestConfig,
    now: datetime,
    summary: IngestSummary,
    progress: Progress | None,
) -> None:
    """Works and commits bounded ranges until every partition is read to its end."""
    import_beam()
    from .ingest_transforms import Range

    checked: dict[str, Position] = {}
    conflicts = 0
    while True:
        table = events_table.open_table(layout)
        before = {part.id: events_table.position(table, part.id) for part in partitions}
        for part in partitions:
            if checked.get(part.id) != before[part.id]:
                refuse_rewritten(part, before[part.id], source, settings)
        ranges = [
            Range(source, settings, part, before[part.id].offset, part.end)
            for part in partitions
            if before[part.id].offset < part.end
        ]
        if not checked:
            summary.already_read = len(partitions) - len(ranges)
        if progress:
            progress("ingest", len(partitions) - len(ranges), len(partitions))
        if not ranges:
            return
        receipts = _run(ranges, staging, config, now)
        positions = advance(ranges, receipts, before)
        staged = [
            EventFile(Path(file), kind, receipt.rows[kind])
            for receipt in receipts
            for kind, file in receipt.files.items()
        ]
        if events_table.append(layout, table, staged, positions):
            conflicts = 0
            checked = {**before, **positions}
            _count(summary, receipts)
        elif (conflicts := conflicts + 1) > config.max_conflicts:
            raise PipelineError(
                "Other writers of this workspace were first every time.",
                got=f"{conflicts} refused commits in a row",
                next_step="let the other ingest end, then run this one again",
            )


def _run(ranges: Sequence[Range], staging: Path, config: IngestConfig, now: datetime) -> list[Receipt]:
    """One bounded Beam pipeline over all ranges of this round."""
    from . import ingest_transforms as steps

    folder = staging / "receipts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sizes = steps.Sizes(config.batch_records, config.batch_bytes, config.commit_records, config.commit_bytes)

    def construct(pipeline: Any) -> None:
        import apache_beam as beam

        (
            pipeline
            | "Ranges" >> beam.Create(list(ranges))
            | "ReadBatches" >> beam.ParDo(steps.ReadBatches(sizes))
            | "Validate" >> beam.ParDo(steps.Validate(config.limits, now))
            | "Expect" >> beam.ParDo(steps.Expect(config.expectations, now))
            | "WriteFiles" >> beam.ParDo(steps.WriteFiles(staging))
            | "LeaveReceipt" >> beam.ParDo(steps.LeaveReceipt(folder))
        )

    run_pipeline(construct)
    return steps.read_receipts(folder)


def _count(summary: IngestSummary, receipts: Sequence[Receipt]) -> None:
    """Adds a committed round to the summary."""
    reasons = Counter(summary.dead_letters)
    for receipt in receipts:
        summary.received += receipt.received
        summary.interactions += receipt.rows["interaction"]
        summary.feedback += receipt.rows["feedback"]
        reasons.update(receipt.reasons)
    summary.dead_letters = dict(sorted(reasons.items()))
