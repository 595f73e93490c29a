"""The ledger: what came in and where it ended, counted from the tables as they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from . import events_table, fates_table
from .workspace import Layout

NOT_BUILT = "not_built"
"""Reason of an event that came after the newest build: it waits for the next one."""


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

    @property
    def balanced(self) -> bool:
        """Whether in = the sum of all fates."""
        return self.received == sum(self.fates.values())


def balance(workspace: Path) -> Ledger:
    """Counts what came in and where it ended.

    Events that were ingested after the newest build are `waiting`, reason `not_built`, except dead letters,
    whose fate was settled when they came in.
    """
    layout = Layout(Path(workspace).resolve())
    if not events_table.exists(layout):
        return Ledger()
    fates, reasons, dead, built = _built(layout)
    # Opened after the fates, so that it holds at least the events that the build saw.
    files = events_table.files(events_table.open_table(layout))
    new = [file for file in files if file.path.name not in built]
    for file in new:
        if file.kind == "dead_letter":
            fates["dead_letter"] += file.rows
            for reason, count in _reasons(file.path).items():
                dead[reason] += count
                reasons[f"dead_letter/{reason}"] += count
        else:
            fates["waiting"] += file.rows
            reasons[f"waiting/{NOT_BUILT}"] += file.rows
    return Ledger(
        received=sum(file.rows for file in files),
        fates=dict(sorted(fates.items())),
        reasons=dict(sorted(reasons.items())),
        dead_letters=dict(sorted(dead.items())),
    )


def _built(layout: Layout) -> tuple[Counter[str], Counter[str], Counter[str], set[str]]:
    """Counts of the fates table, and the names of the event files that its build saw."""
    fates: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    dead: Counter[str] = Counter()
    table = fates_table.open_table(layout)
    built = fates_table.built_from(table) if table else None
    if table is None or built is None:
        return fates, reasons, dead, set()
    counted = table.to_pyarrow_table(columns=["fate", "reason"]).group_by(["fate", "reason"])
    for row in counted.aggregate([([], "count_all")]).to_pylist():
        fates[row["fate"]] += row["count_all"]
        if row["reason"] is not None:
            reasons[f"{row['fate']}/{row['reason']}"] += row["count_all"]
            if row["fate"] == "dead_letter":
                dead[row["reason"]] += row["count_all"]
    seen = events_table.files(events_table.open_table(layout, int(built.events_version)))
    return fates, reasons, dead, {file.path.name for file in seen}


def _reasons(path: Path) -> Counter[str]:
    import pyarrow.parquet as pq

    return Counter(pq.read_table(path, columns=["reason"])["reason"].to_pylist())
