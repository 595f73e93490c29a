"""What must hold between one read of a partition and the next, so that nothing is skipped or read twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feedback.sources import Partition, Source

from . import sources
from .errors import InputError, PipelineError
from .events_table import Position, checksum

if TYPE_CHECKING:
    from .ranges import Range
    from .receipts import Receipt


def advance(
    ranges: Sequence[Range], receipts: Sequence[Receipt], before: Mapping[str, Position]
) -> dict[str, Position]:
    """Where each partition has arrived, if its receipts follow each other and account for every record.

    Raises:
        PipelineError: the runner dropped or repeated work.
    """
    positions: dict[str, Position] = {}
    for asked in ranges:
        at, more = before[asked.partition.id], False
        for receipt in receipts:
            if receipt.partition_id != asked.partition.id:
                continue
            if receipt.lo != at.offset or sum(receipt.rows.values()) != receipt.received:
                raise _not_once(asked, f"a receipt for [{receipt.lo}, {receipt.hi}) after {at.offset}")
            seen = (receipt.last, receipt.checksum) if receipt.received else (at.last, at.checksum)
            at, more = Position(receipt.hi, *seen), receipt.more
        if not more and at.offset < asked.hi:
            raise _not_once(asked, f"receipts up to {at.offset} of [{asked.lo}, {asked.hi})")
        positions[asked.partition.id] = at
    return positions


def _not_once(asked: Range, got: str) -> PipelineError:
    return PipelineError(
        f"The runner did not work {asked.partition.id} exactly once; nothing of this round was committed.",
        got=got,
        allowed="receipts that join up from the range's start to its end",
        next_step="run the same command again",
    )


def refuse_rewritten(partition: Partition, at: Position, source: str, settings: Mapping[str, Any]) -> None:
    """Refuses an input that is no longer the one that was read before.

    A source that is no file decides by a function of its own, `refuse_changed(partition, at, config)`.

    Raises:
        InputError: it is shorter than what was read of it, or its last record read is another one.
    """
    if at.offset == 0:
        return
    module = sources.load(source)
    own = getattr(module, "refuse_changed", None)
    if own is not None:
        own(partition, at, sources.settings_of(source, settings))
    else:
        _refuse_rewritten_file(partition, at, module, sources.settings_of(source, settings))


def _refuse_rewritten_file(partition: Partition, at: Position, module: Source, config: Any) -> None:
    """Its id already holds its first line or its whole content; here its last record read is looked at again."""
    size = partition.path.stat().st_size
    # An unterminated tail may have been read as final; the file is then longer than its complete lines.
    if at.offset > partition.end and at.offset > size:
        raise InputError(
            f"{partition.path} is shorter than it was when it was read.",
            got=f"{size} bytes",
            allowed=f"at least {at.offset} bytes: event files only grow",
            next_step="restore the file, or give the new content another file name",
        )
    if at.last < 0:
        return
    stop = partition.end if at.offset <= partition.end else size
    record = next(iter(module.read(partition, at.last, stop, config)), None)
    # A last line that was read before it was finished may have grown; what was read must be its beginning.
    if record and at.checksum in (checksum(record.raw), checksum(record.raw[: at.offset - at.last])):
        return
    raise InputError(
        f"{partition.path} was changed after it had been read: the record at {at.last} is another one.",
        allowed="event files only grow",
        next_step="restore the file, or give the new content another file name",
    )
