"""The ledger: what came in and where it ended, row by row, counted from the tables as they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from . import events_table, fates
from .damage import table_damage_told
from .events_table import KINDS
from .workspace import Layout

if TYPE_CHECKING:
    import pyarrow as pa

NOT_BUILT = "not_built"
"""Reason of an event that came after the newest build: it waits for the next one."""

_SHOWN = 5


@dataclass(frozen=True)
class Ledger:
    """Counts of a workspace. An event that arrived is in exactly one fate."""

    received: int = 0
    """Rows of the events table, dead letters included."""
    fates: dict[str, int] = field(default_factory=dict)
    """Fate to number of events."""
    reasons: dict[str, int] = field(default_factory=dict)
    """`fate/reason` to number of events, where there is a reason."""
    dead_letters: dict[str, int] = field(default_factory=dict)
    """Reason to number of dead letters."""
    missing: int = 0
    """Rows of the events table that a build saw and that have no fate."""
    doubled: int = 0
    """Fates beyond the one that a row has, and fates of rows that are not there."""
    examples: tuple[str, ...] = ()
    """Up to five rows that are missing or doubled, as `partition @offset`."""

    @property
    def balanced(self) -> bool:
        """Whether every row has exactly one fate, and no fate is of another row."""
        return not self.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """What does not balance, in words; empty when it does."""
        where = f" (such as {', '.join(self.examples)})" if self.examples else ""
        found = []
        if self.missing:
            found.append(f"{self.missing} rows of the events table have no fate{where}")
        if self.doubled:
            found.append(f"{self.doubled} fates are one too many{where}")
        if not found and self.received != sum(self.fates.values()):
            found.append(f"{self.received} events came in, {sum(self.fates.values())} have a fate")
        return tuple(found)


@table_damage_told()
def balance(workspace: Path, since: datetime | None = None, until: datetime | None = None) -> Ledger:
    """Puts every row of the events table beside its fate.

    Events that were ingested after the newest build are `waiting`, reason `not_built`, except dead letters,
    whose fate was settled when they came in.

    Args:
        workspace: the workspace directory.
        since: only what was ingested at this time or later, aware; None from the beginning.
        until: only what was ingested before this time; None up to now.
    """
    layout = Layout(Path(workspace).resolve())
    if not events_table.exists(layout):
        return Ledger()
    # In this order: a build that ends in between settles more than is looked for, never less; and the events
    # are read last, so that they hold at least what the build saw.
    built = fates.built_from(layout)
    settled = _within(fates.read(layout, columns=_FATE_COLUMNS), since, until)
    rows = _within(_received(layout), since, until)
    return _compared(rows, settled, _not_built(layout, built))


_FATE_COLUMNS = ("kind", "fate", "reason", "ingest_time", "partition", "offset")
_WHERE = ["partition", "offset"]


def _received(layout: Layout) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pc.field("kind").isin(pa.array(KINDS))
    dataset = events_table.open_table(layout).to_pyarrow_dataset()
    return dataset.to_table(columns=["kind", "reason", "ingest_time", *_WHERE], filter=wanted)


def _within(table: pa.Table, since: datetime | None, until: datetime | None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    for bound, keep in ((since, pc.greater_equal), (until, pc.less)):
        if bound is not None:
            table = table.filter(keep(table["ingest_time"], pa.scalar(bound, table["ingest_time"].type)))
    return table


def _not_built(layout: Layout, built: fates.BuiltFrom | None) -> pa.Table | None:
    """Where the rows are that came after a build; None when that is all of them, or cannot be told."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if built is None:
        return None
    added = events_table.added_since(layout, events_table.open_table(layout), int(built.events_version))
    if added is None:
        return None
    tables = [pq.ParquetFile(file.path).read(columns=_WHERE) for file in added if file.kind in KINDS]
    empty = pa.table({"partition": pa.array([], pa.string()), "offset": pa.array([], pa.int64())})
    return pa.concat_tables([empty, *(table.cast(empty.schema) for table in tables)])


def _compared(rows: pa.Table, settled: pa.Table, not_built: pa.Table | None) -> Ledger:
    """The ledger of some rows and the fates found for them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = settled.group_by(_WHERE).aggregate([([], "count_all")])
    beside = rows.join(count, _WHERE, join_type="left outer")
    number = pc.fill_null(beside["count_all"], 0)
    open_ = beside.filter(pc.equal(number, 0))
    doubled = beside.filter(pc.greater(number, 1))
    strange = count.select(_WHERE).join(rows.select(_WHERE), _WHERE, join_type="left anti")
    # A dead letter that came after the fates were read is settled all the same.
    dead = open_.filter(pc.equal(open_["kind"], "dead_letter"))
    open_ = open_.filter(pc.not_equal(open_["kind"], "dead_letter"))
    missing = open_ if not_built is None else open_.join(not_built, _WHERE, join_type="left anti")
    if not_built is None:
        missing = open_.slice(0, 0)
    late = [("dead_letter", reason) for reason in dead["reason"].to_pylist()]
    counts = Counter(late)
    grouped = settled.group_by(["fate", "reason"]).aggregate([([], "count_all")])
    for row in grouped.to_pylist():
        counts[row["fate"], row["reason"]] += row["count_all"]
    if waiting := open_.num_rows - missing.num_rows:
        counts["waiting", NOT_BUILT] += waiting
    wrong = pa.concat_tables([table.select(_WHERE) for table in (missing, doubled, strange)])
    return Ledger(
        received=rows.num_rows,
        **_told(counts),
        missing=missing.num_rows,
        doubled=strange.num_rows + (pc.sum(doubled["count_all"]).as_py() or 0) - doubled.num_rows,
        examples=tuple(f"{r['partition']} @{r['offset']}" for r in wrong.slice(0, _SHOWN).to_pylist()),
    )


def _told(counts: Counter[tuple[str, str | None]]) -> dict[str, dict[str, int]]:
    told: dict[str, Counter[str]] = {"fates": Counter(), "reasons": Counter(), "dead_letters": Counter()}
    for (fate, reason), count in counts.items():
        told["fates"][fate] += count
        if reason is not None:
            told["reasons"][f"{fate}/{reason}"] += count
            if fate == "dead_letter":
                told["dead_letters"][reason] += count
    return {name: dict(sorted(counter.items())) for name, counter in told.items()}
