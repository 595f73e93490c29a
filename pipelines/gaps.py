"""Gaps: offsets that a source had thrown away before they were read. Never passed over in silence.

A gap is a row of the events table of kind `gap`, committed together with the rows that follow it: `partition`
and `offset` say where it begins, `detail` says `lost [lo, hi)`. It is no event, so whoever counts events skips
that kind.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from feedback.events import SCHEMA_VERSION
from feedback.sources import Partition
from feedback.tables import EVENTS

from .events_table import EventFile, Position

KIND = "gap"


@dataclass(frozen=True)
class Gap:
    """Offsets `[lo, hi)` of a partition that can no longer be read."""

    partition: str
    lo: int
    hi: int
    first: bool
    """Nothing of this partition was ever read: the records may be older than the workspace."""

    @property
    def lost(self) -> int:
        """Number of offsets; with compaction or transactions some of them may never have been records."""
        return self.hi - self.lo

    def __str__(self) -> str:
        before = " before the first read" if self.first else ""
        return f"lost [{self.lo}, {self.hi}){before}"


def find(partitions: Sequence[Partition], at: Mapping[str, Position]) -> list[Gap]:
    """The gaps between what was read and what can still be read."""
    return [
        Gap(part.id, at[part.id].offset, part.earliest, at[part.id] == Position(0, -1, 0))
        for part in partitions
        if at[part.id].offset < part.earliest
    ]


def passed(gaps: Sequence[Gap], at: Mapping[str, Position]) -> dict[str, Position]:
    """The positions behind the gaps."""
    return {**at, **{gap.partition: replace(at[gap.partition], offset=gap.hi) for gap in gaps}}


def stage(gaps: Sequence[Gap], source: str, folder: Path, now: datetime) -> list[EventFile]:
    """Writes the rows into the staging folder; no file when there is no gap."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not gaps:
        return []
    rows = [
        {
            "digest": hashlib.sha256(f"{gap.partition} {gap}".encode()).hexdigest(),
            "ingest_time": now,
            "reason": "expired",
            "detail": str(gap),
            "source": source,
            "partition": gap.partition,
            "offset": gap.lo,
            "schema_version": SCHEMA_VERSION,
        }
        for gap in gaps
    ]
    schema = pa.schema([field for field in EVENTS if field.name != "kind"])
    path = folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")
    return [EventFile(path, KIND, len(rows))]
