"""The events table: one Delta table in which rows and read offsets become visible together.

Delivery guarantee: exactly once per source offset. A writer opens the table, reads from it up to where each
partition was read, processes what comes after, and commits files and new offsets **on that same snapshot**.
Of two writers that started from the same snapshot with the same partition, Delta refuses the second.
Committing from a fresh snapshot instead would accept the same rows twice.

Per partition three application transactions are kept: `<id>` the offset up to which it was read, `<id>#last`
the offset of the last record, `<id>#sum` a checksum of that record, so that a file that was rewritten after
it had been read is noticed instead of skipped.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from feedback.tables import EVENTS

from .workspace import Layout, fsync_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

KINDS = ("interaction", "feedback", "dead_letter")
"""Kinds of rows that are records of a source; the kind `gap` (`pipelines.gaps`) tells of records that are lost."""


@dataclass(frozen=True)
class EventFile:
    """One Parquet file of rows of one kind; `kind` is not among its columns, as Delta partitions by it."""

    path: Path
    kind: str
    rows: int


@dataclass(frozen=True)
class Position:
    """How far a partition was read."""

    offset: int
    """First offset not yet read."""
    last: int
    """Offset of the last record read; -1 when none was."""
    checksum: int
    """`checksum` of that record's bytes."""


def checksum(raw: bytes) -> int:
    """The first 63 bits of the SHA-256 of a record, as Delta keeps numbers of 64 bits with sign."""
    return int.from_bytes(hashlib.sha256(raw).digest()[:8], "big") >> 1


def exists(layout: Layout) -> bool:
    """Whether anything was ever ingested here."""
    return (layout.events / "_delta_log").is_dir() and any((layout.events / "_delta_log").glob("*.json"))


def open_table(layout: Layout, version: int | None = None) -> DeltaTable:
    """Opens the table as it is now, or as it was at `version`; makes it when absent."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if not exists(layout):
        layout.events.mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(layout.events, schema=EVENTS, partition_by=["kind"], mode="ignore")
        except DeltaError:
            if not exists(layout):  # otherwise another process made it at the same moment
                raise
    return DeltaTable(layout.events, version=version)


def position(table: DeltaTable, partition_id: str) -> Position:
    """How far this snapshot has read a partition; offset 0 when it never did."""
    offset = table.transaction_version(partition_id) or 0
    last = table.transaction_version(f"{partition_id}#last")
    return Position(
        offset, -1 if last is None else last, table.transaction_version(f"{partition_id}#sum") or 0
    )


def files(table: DeltaTable) -> list[EventFile]:
    """The files of a snapshot, with their number of rows, in a stable order."""
    import pyarrow as pa

    root = Path(table.table_uri.removeprefix("file://"))
    actions = pa.table(table.get_add_actions(flatten=True))
    found = [
        EventFile(root / row["path"], row["partition.kind"], row["num_records"])
        for row in actions.select(["path", "partition.kind", "num_records"]).to_pylist()
    ]
    return sorted(found, key=lambda file: str(file.path))


def added_since(
    layout: Layout, table: DeltaTable, version: int, kinds: Collection[str] | None = None
) -> list[EventFile] | None:
    """The files that brought new rows after a version, up to this snapshot, in the order they came.

    Files that maintenance rewrote are not among them, as they hold no new rows; the ones they replaced are,
    until they are vacuumed.

    Returns:
        None when the log or a file of that time is gone, or rows were removed; whoever asks has to read
        everything then.
    """
    actions = _actions(layout, version, table.version())
    if actions is None or any(action.get("remove", {}).get("dataChange") for action in actions):
        return None
    found: list[EventFile] = []
    for add in (action["add"] for action in actions if "add" in action):
        kind = str(add["partitionValues"]["kind"])
        if add["dataChange"] and (kinds is None or kind in kinds):
            rows = json.loads(add.get("stats") or "{}").get("numRecords", 0)
            found.append(EventFile(layout.events / unquote(add["path"]), kind, rows))
    return found if all(file.path.exists() for file in found) else None


def _actions(layout: Layout, since: int, to: int) -> list[dict[str, Any]] | None:
    """What the log says of the commits after a version up to another; None where a part of it is gone."""
    if to < since:
        return None
    actions: list[dict[str, Any]] = []
    for number in range(since + 1, to + 1):
        try:
            log = (layout.events / "_delta_log" / f"{number:020}.json").read_text()
        except FileNotFoundError:
            return None
        actions += [json.loads(line) for line in log.splitlines()]
    return actions


def append(
    layout: Layout, table: DeltaTable, staged: Sequence[EventFile], positions: Mapping[str, Position]
) -> bool:
    """Commits staged files and the partitions' new positions in one step.

    Args:
        layout: the workspace.
        table: the snapshot from which the positions were read; never a fresher one.
        staged: files in the workspace's staging folder, on the same file system.
        positions: partition id to its new position.

    Returns:
        False when another writer was first: nothing was changed, read the table again.
    """
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction

    transactions = [
        Transaction(f"{name}{suffix}", value)
        for name, at in sorted(positions.items())
        for suffix, value in (("", at.offset), ("#last", at.last), ("#sum", at.checksum))
    ]
    before = table.version()  # the handle moves on with its own commit
    moved: list[Path] = []
    actions: list[AddAction | RemoveAction] = []
    try:
        for file in staged:
            target = layout.events / f"kind={file.kind}" / f"part-{uuid.uuid4().hex}.parquet"
            target.parent.mkdir(exist_ok=True)
            fsync_path(file.path)
            file.path.rename(target)
            moved.append(target)
            actions.append(
                AddAction(
                    path=str(target.relative_to(layout.events)),
                    size=target.stat().st_size,
                    partition_values={"kind": file.kind},
                    modification_time=int(time.time() * 1000),
                    data_change=True,
                    stats=json.dumps({"numRecords": file.rows}),
                )
            )
        for folder in {path.parent for path in moved}:
            fsync_path(folder)
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=["kind"],
            commit_properties=CommitProperties(app_transactions=transactions),
        )
    except CommitFailedError:
        _discard_unless_committed(layout, moved, before)
        return False
    except BaseException:
        _discard_unless_committed(layout, moved, before)
        raise
    return True


def mark(table: DeltaTable, name: str, value: int) -> bool:
    """Commits one transaction number without rows on this snapshot; False when another writer was first."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    properties = CommitProperties(app_transactions=[Transaction(name, value)])
    try:
        table.create_write_transaction(
            [], "append", table.schema(), partition_by=["kind"], commit_properties=properties
        )
    except CommitFailedError:
        return False
    return True


def _discard_unless_committed(layout: Layout, moved: Sequence[Path], before: int) -> None:
    """Removes files that no commit after `before` names.

    An error may come after the commit, from writing a checkpoint; and until it is looked at, a compaction may have
    replaced the file, which readers of that commit still need. So the log is asked, not the newest snapshot.
    """
    if not moved:
        return
    actions = _actions(layout, before, open_table(layout).version())
    if actions is None:
        return  # what is in no commit then waits for vacuum
    committed = {unquote(each["add"]["path"]).rpartition("/")[2] for each in actions if "add" in each}
    for path in moved:
        if path.name not in committed:
            path.unlink(missing_ok=True)
