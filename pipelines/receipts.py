"""What workers of an ingest leave for the driver: what was covered, and which files hold it."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson


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


def leave(receipt: Receipt, files: dict[str, str], folder: Path) -> None:
    """Writes a receipt with the files of each kind, whole or not at all."""
    path = folder / f"{uuid.uuid4().hex}.json"
    path.with_suffix(".part").write_bytes(orjson.dumps({**asdict(receipt), "files": files}))
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
