"""What one round of an ingest reads: parts of partitions, and the bounds within which they are worked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedback.sources import Partition


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
class Manner:
    """What may be relied on where the work is done."""

    processes: int = 0
    """That work beside the one that runs the stages."""
    in_process: bool = False
    """All in this process: nothing is worked twice, so what was read can be removed, and what a stage gives at the
    end of a bundle goes on. Clusters repeat work, and Beam's Dask runner drops what comes so late."""
