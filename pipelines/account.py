"""The ledger of a time range as people read it: with what was trained on, and with what was lost at the source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import dataset, fates, gaps
from .damage import table_damage_told
from .ledger import Ledger, balance
from .lookup import find
from .workspace import Layout

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class GapRow:
    """Records that had expired at their source before they were read. They are no events and have no fate."""

    partition: str
    offset: int
    """The first that was lost."""
    detail: str
    ingest_time: datetime


@dataclass(frozen=True)
class Account:
    """What arrived in a time range and where it ended."""

    since: datetime | None
    until: datetime | None
    received: int
    fates: dict[str, int]
    """Fate to number of events; `trained` are those of the ready ones whose rows a finished training used."""
    reasons: dict[str, int]
    """`fate/reason` to number of events, where there is a reason."""
    balanced: bool
    faults: tuple[str, ...] = ()
    """What does not balance."""
    gaps: tuple[GapRow, ...] = field(default=())

    def document(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)


@table_damage_told()
def account(
    workspace: Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    trained_on: Collection[str] = (),
) -> Account:
    """Counts what arrived in `[since, until)` and where it ended.

    Args:
        workspace: the workspace directory.
        since: first moment of arrival; None for the beginning.
        until: moment before which it arrived; None for the end.
        trained_on: dataset versions whose train split a finished training used.
    """
    layout = Layout(Path(workspace).resolve())
    ledger = balance(workspace, since, until)
    ends = dict(ledger.fates)
    trained = _trained(layout, since, until, trained_on) if trained_on else 0
    if trained:
        ends["trained"] = trained
        ends["ready"] -= trained
    return Account(
        since,
        until,
        ledger.received,
        {name: count for name, count in sorted(ends.items()) if count},
        ledger.reasons,
        ledger.balanced,
        _faults(ledger),
        tuple(_gaps(layout, since, until)),
    )


def _faults(ledger: Ledger) -> tuple[str, ...]:
    """What does not balance, in words."""
    if ledger.balanced:
        return ()
    where = f", such as {', '.join(ledger.examples)}" if ledger.examples else ""
    return (f"{ledger.missing} events have no fate, and there are {ledger.doubled} fates too many{where}",)


def _trained(
    layout: Layout, since: datetime | None, until: datetime | None, versions: Collection[str]
) -> int:
    """Ready events of the range with a row that is in the train split of one of these versions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if fates.built_from(layout) is None:
        return 0
    known = set(versions) & set(dataset.versions(layout.root))
    learned = [
        dataset.load(layout.root, version).rows("train", ["preference_id"])["preference_id"]
        for version in sorted(known)
    ]
    if not learned:
        return 0
    rows = fates.read(layout, columns=["fate", "preference_ids", "ingest_time"])
    rows = rows.filter(pc.and_(pc.equal(rows["fate"], "ready"), _within(rows["ingest_time"], since, until)))
    lists = rows["preference_ids"].combine_chunks()
    ids = pa.chunked_array([chunk for column in learned for chunk in column.chunks], pa.string())
    used = pc.is_in(pc.list_flatten(lists), value_set=ids.combine_chunks())
    return len(pc.unique(pc.list_parent_indices(lists).filter(used)))


def _gaps(layout: Layout, since: datetime | None, until: datetime | None) -> list[GapRow]:
    rows = find(
        layout,
        lambda part: _within(part["ingest_time"], since, until),
        columns=["ingest_time"],
        kinds=(gaps.KIND,),
    )
    names = ("partition", "offset", "detail", "ingest_time")
    return [GapRow(**row) for row in rows.select(names).sort_by("ingest_time").to_pylist()]


def _within(times: pa.ChunkedArray, since: datetime | None, until: datetime | None) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pc.is_valid(times)
    for compare, moment in ((pc.greater_equal, since), (pc.less, until)):
        if moment is not None:
            mask = pc.and_(mask, compare(times, pa.scalar(moment, times.type)))
    return mask
