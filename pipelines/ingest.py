"""Ingest: records of a source become rows of the events table, each exactly once.

Delivery: for every partition the driver takes the offset up to which the table has read it, lets Beam work
the range from there, and commits the files, the dead letters, the gaps and the new offset in one Delta commit.
Killed at any instant, the next run continues from the last commit. Any number of them may run at once: of two
that worked the same range Delta refuses the second, which then reads on from where the first arrived. A record
that appears twice in the input is two rows; the build keeps one of them and calls the other `duplicate`.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from feedback.errors import PalateError
from feedback.sources import Partition
from feedback.validation import Limits

from . import events_table, gaps, processes, sources
from .continuity import advance, refuse_rewritten
from .errors import BrokerError, OutrunError, PipelineError, disk_full, full_disk_error, last_line
from .events_table import EventFile, Position
from .expectations import ExpectationsConfig
from .kafka.dead_letters import DeadLettersConfig, send_new
from .kafka.settings import is_url
from .quality import QualityConfig
from .ranges import Manner, Range, Sizes
from .runner import IN_PROCESS, RunnerConfig, given, import_beam, run_pipeline
from .workspace import Layout, staging_folder

if TYPE_CHECKING:
    from .receipts import Receipt

_MODULES = {sources.KAFKA: ("kafka", "pipelines.kafka.source")}
"""What reading a source imports, where that takes long."""
_RECORD_BYTES = 1_000
"""What a record is taken to have, to tell large work from small."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class IngestConfig(BaseModel):
    """How a source is read and what is accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    limits: Limits = Limits()
    """What validation accepts of one event."""
    expectations: ExpectationsConfig = ExpectationsConfig()
    """What must hold of every row of a batch."""
    dead_letters: DeadLettersConfig = DeadLettersConfig()
    """Where dead letters go beside the events table."""
    quality: QualityConfig = QualityConfig()
    """How many bad rows stop the loop before it trains; an ingest itself is never stopped by them."""
    batch_records: int = Field(default=50_000, ge=1)
    """Records checked and written together, over all partitions. Below 5,000 the fixed 0.2 s of a Great
    Expectations run dominates."""
    batch_bytes: int = Field(default=64 * 2**20, ge=1)
    """Bytes after which a batch is closed early; bounds memory, which is about six times as much."""
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
    gaps: list[str] = field(default_factory=list)
    """What had expired before it was read, as `<partition>: lost [lo, hi)`; each is a row of kind `gap`."""
    lost: int = 0
    """Offsets in those gaps."""
    sent_dead_letters: int = 0
    """Dead letters written to a topic of their own, where one is configured."""
    seconds: float = 0.0


def ingest(
    path: Path | str,
    *,
    source: str,
    source_config: Mapping[str, Any] | None = None,
    workspace: Path,
    config: IngestConfig | None = None,
    runner: RunnerConfig | None = None,
    now: datetime | None = None,
    progress: Progress | None = None,
) -> IngestSummary:
    """Reads what is new at `path` into the workspace's events table.

    Args:
        path: a file, or a folder of them, as the source understands it; or `kafka://broker/topic`, which is
            read with the source `kafka`, up to the end the topic had when reading began.
        source: name of a module in `feedback/sources`, `kafka`, or `module:object`.
        source_config: fields of that source's `Config`.
        workspace: the workspace directory; made when absent.
        config: see `IngestConfig`.
        runner: which Beam runner works the ranges; this process when None.
        now: ingest time (aware); the clock when None.
        progress: called after every commit with the number of partitions read to their end.

    Returns:
        Counts; every record received is a row of exactly one kind.

    Raises:
        SourceError: there is no such source, or nothing it can read.
        InputError: the input shrank, or was rewritten after it had been read.
        BrokerError: a broker is away; everything committed before stays.
        DiskFullError: no space; everything committed before stays, nothing is half there.
        PipelineError: a range was not worked completely, or other writers were always first.
    """
    config = config or IngestConfig()
    layout = Layout(Path(workspace).resolve())
    settings = dict(source_config or {})
    source = sources.KAFKA if is_url(path) else source
    partitions = sources.partitions(path, source, settings)
    work = Work(source, settings, layout, config, runner or RunnerConfig())
    reached: dict[str, Position] = {}
    summary = drain(partitions, work, now=now or datetime.now(UTC), progress=progress, checked=reached)
    tell_source(partitions, {name: at.offset for name, at in reached.items()}, work)
    summary.sent_dead_letters = send_new(layout, config.dead_letters)
    return summary


@dataclass(frozen=True)
class Work:
    """What stays the same from one drain to the next."""

    source: str
    settings: dict[str, Any]
    layout: Layout
    config: IngestConfig
    runner: RunnerConfig


def drain(
    partitions: Sequence[Partition],
    work: Work,
    *,
    now: datetime,
    progress: Progress | None = None,
    checked: MutableMapping[str, Position] | None = None,
) -> IngestSummary:
    """Reads partitions from where the table is to their `end`. Arguments and errors as `ingest`.

    Args:
        partitions: what to read; an `end` may lie before the true one.
        work: see `Work`.
        now: ingest time, aware.
        progress: see `ingest`.
        checked: positions at which it is known that the partition is still the one that was read before;
            extended. Whoever drains again and again keeps it, so that not every round looks anew.
    """
    started = time.monotonic()
    summary = IngestSummary(
        partitions=len(partitions),
        pending_bytes=sum(part.pending_bytes for part in partitions),
        dropped=dict(sum((Counter(part.dropped) for part in partitions), Counter())),
    )
    try:
        with staging_folder(work.layout, "ingest") as staging:
            checked = {} if checked is None else checked
            _rounds(partitions, work, staging, now.astimezone(UTC), summary, progress, checked)
    except PalateError:
        raise
    except Exception as error:
        raise _explained(error, work.layout) from error
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _explained(error: Exception, layout: Layout) -> PalateError:
    """An error of a worker, as ours. Runners tell where it happened in a text that ends with what happened."""
    if disk_full(error):
        return full_disk_error(layout.root, "free some space and run the same command again")
    kind = BrokerError if BrokerError.__name__ in str(error) else PipelineError
    return kind(
        "Ingest stopped; what was committed before stays.",
        got=last_line(error),
        next_step="mend the cause and run the same command again: it continues where it stopped",
    )


def _rounds(
    partitions: Sequence[Partition],
    work: Work,
    staging: Path,
    now: datetime,
    summary: IngestSummary,
    progress: Progress | None,
    checked: MutableMapping[str, Position],
) -> None:
    """Works and commits bounded ranges until every partition is read to its end."""
    conflicts, committed = 0, False
    while True:
        table = events_table.open_table(work.layout)
        before = {part.id: events_table.position(table, part.id) for part in partitions}
        for part in partitions:
            if checked.get(part.id) != before[part.id]:
                refuse_rewritten(part, before[part.id], work.source, work.settings)
        expired = gaps.find(partitions, before)
        reached = gaps.passed(expired, before)
        ranges = _ranges(partitions, work, reached)
        if not committed:  # by another, should that one have been first
            summary.already_read = len(partitions) - len(ranges)
        if progress:
            progress("ingest", len(partitions) - len(ranges), len(partitions))
        if not ranges and not expired:
            checked.update(before)
            return
        workers = work.runner.processes(_records(ranges))
        # They import while this process imports what it needs itself.
        processes.start(workers, *_MODULES.get(work.source, ()))
        receipts = _run(ranges, staging, work, now, workers)
        positions = {**{gap.partition: reached[gap.partition] for gap in expired}}
        positions |= advance(ranges, receipts, reached)
        staged = gaps.stage(expired, work.source, staging, now) + [
            EventFile(Path(file), kind, receipt.rows[kind])
            for receipt in receipts
            for kind, file in receipt.files.items()
        ]
        if events_table.append(work.layout, table, staged, positions):
            conflicts, committed = 0, True
            checked.update({**before, **positions})
            _count(summary, receipts, expired)
        elif (conflicts := conflicts + 1) > work.config.max_conflicts:
            raise OutrunError(
                "Other writers of this workspace were first every time.",
                got=f"{conflicts} refused commits in a row",
                next_step="let the other ingest end, then run this one again",
            )


def _ranges(partitions: Sequence[Partition], work: Work, at: Mapping[str, Position]) -> list[Range]:
    """What is left to read."""
    return [
        Range(
            work.source,
            work.settings,
            part,
            at[part.id].offset,
            part.end,
            at[part.id].last,
            at[part.id].checksum,
        )
        for part in partitions
        if at[part.id].offset < part.end
    ]


def _records(ranges: Sequence[Range]) -> int:
    """About how many records there are to be read."""
    return sum(_bytes(each) for each in ranges) // _RECORD_BYTES


def _bytes(each: Range) -> int:
    """About how many bytes a range has, whatever its offsets count."""
    part, length = each.partition, each.hi - each.lo
    try:
        return part.path.stat().st_size * length // max(1, part.end)
    except OSError:  # no file, but a topic
        return length * _RECORD_BYTES


def _run(ranges: Sequence[Range], staging: Path, work: Work, now: datetime, workers: int) -> list[Receipt]:
    """One bounded Beam pipeline over all ranges of this round."""
    if not ranges:
        return []
    import_beam()
    from . import ingest_transforms as steps
    from . import receipts

    folder = staging / "receipts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = work.config
    sizes = Sizes(config.batch_records, config.batch_bytes, config.commit_records, config.commit_bytes)
    manner = Manner(workers, in_process=work.runner.runner == IN_PROCESS)

    def construct(pipeline: Any) -> None:
        (
            pipeline
            | "Ranges" >> given(list(ranges), work.runner)
            | "ReadBatches" >> steps.ReadBatches(sizes, manner)
            | "Validate" >> steps.Validate(config.limits, config.expectations, now, sizes, staging, manner)
            | "WriteFiles" >> steps.WriteFiles(staging, folder, manner)
        )

    run_pipeline(construct, work.runner)
    return receipts.read_receipts(folder)


def tell_source(partitions: Sequence[Partition], at: Mapping[str, int], work: Work) -> None:
    """Lets a source that wants it know the offsets up to which is committed; nothing depends on it."""
    tell = getattr(sources.load(work.source), "after_commit", None)
    if tell is not None and partitions:
        tell(partitions, at, sources.settings_of(work.source, work.settings))


def _count(summary: IngestSummary, receipts: Sequence[Receipt], expired: Sequence[gaps.Gap]) -> None:
    """Adds a committed round to the summary."""
    reasons = Counter(summary.dead_letters)
    for receipt in receipts:
        summary.received += receipt.received
        summary.interactions += receipt.rows["interaction"]
        summary.feedback += receipt.rows["feedback"]
        reasons.update(receipt.reasons)
    summary.dead_letters = dict(sorted(reasons.items()))
    summary.gaps += [f"{gap.partition}: {gap}" for gap in expired]
    summary.lost += sum(gap.lost for gap in expired)
