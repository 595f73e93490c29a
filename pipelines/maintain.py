"""Maintenance: small files become large ones, and what nothing needs any more is removed.

Safe beside a running ingest, build or reader, and safe to kill: compaction is one Delta commit that changes no data
and keeps every position, so a writer that started before it still commits; vacuum and sweeps remove only what no
table, state or dataset names and what is older than the retention, which is far longer than any commit takes.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from . import events_table, replay_batches
from .damage import table_damage_told
from .errors import PipelineError
from .workspace import Layout, locked, sweep_staging

if TYPE_CHECKING:
    from deltalake import DeltaTable

VALIDATION = "validation"
"""Folder of the workspace that holds the outcomes of checks."""


class MaintainConfig(BaseModel):
    """What is compacted, and how long things are kept that nothing names any more."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    target_file_mb: int = Field(default=128, ge=1, le=1_048_576)
    """Size that compaction aims at."""
    min_small_files: int = Field(default=8, ge=2)
    """With fewer files than this below half the target size, a kind of events is left as it is."""
    retention_hours: int = Field(default=168, ge=0, le=876_000)
    """How long a file stays that no table names: a reader of an older version may still need it, and an ingest
    that is running has moved files into place which its commit will name. Below 1 only where nothing else runs."""
    keep_validations: int = Field(default=50, ge=1)
    """How many outcomes of checks are kept, newest first."""


@dataclass(frozen=True)
class Step:
    """One thing that maintenance did, or would do."""

    what: str
    items: int
    """Files or folders that it concerned."""
    freed_bytes: int
    """Bytes that are free afterwards; compaction frees its bytes only when its old files are vacuumed."""
    note: str = ""


@table_damage_told()
def maintain(
    workspace: Path,
    config: MaintainConfig | None = None,
    *,
    now: datetime,
    dry_run: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Step]:
    """Brings a workspace in order.

    Args:
        workspace: the workspace directory.
        config: see `MaintainConfig`.
        now: the clock, aware; decides what is old.
        dry_run: only tell what would be done.
        progress: called after every step.

    Raises:
        PipelineError: another maintenance is running here.
    """
    chosen = config or MaintainConfig()
    layout = Layout(Path(workspace).resolve())
    steps: list[Callable[[], Step]] = [
        lambda: _compact(layout, chosen, dry_run),
        lambda: _vacuum(layout, chosen, dry_run),
        lambda: _staging(layout, dry_run),
        lambda: _segments(layout, chosen, now, dry_run),
        lambda: _replays(layout, chosen, now, dry_run),
        lambda: _partials(layout, chosen, now, dry_run),
        lambda: _validations(layout, chosen, dry_run),
    ]
    done: list[Step] = []
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(layout.staging / ".maintain", wait=False))
        except BlockingIOError:
            raise PipelineError(
                "Another maintenance of this workspace is running.", next_step="wait for it"
            ) from None
        for step in steps:
            done.append(step())
            if progress:
                progress("maintain", len(done), len(steps))
    return done


def _compact(layout: Layout, config: MaintainConfig, dry_run: bool) -> Step:
    """Joins small files of each kind, where there are enough of them."""
    name = "compact small files of events"
    if not events_table.exists(layout):
        return Step(name, 0, 0)
    table = events_table.open_table(layout)
    limit = config.target_file_mb * 2**20
    small: dict[str, int] = {}
    for file in events_table.files(table):
        if file.path.stat().st_size < limit // 2:
            small[file.kind] = small.get(file.kind, 0) + 1
    kinds = sorted(kind for kind, count in small.items() if count >= config.min_small_files)
    made = 0
    for kind in () if dry_run else kinds:
        made += _optimize(layout, kind, limit)
    count = sum(small[kind] for kind in kinds)
    return Step(name, count, 0, f"into {made} files" if made else "")


def _optimize(layout: Layout, kind: str, target_size: int) -> int:
    """Compacts one kind. Another compaction at the same moment may be first; then there is nothing left to do."""
    from deltalake import ColumnProperties, PostCommitHookProperties, WriterProperties
    from deltalake.exceptions import CommitFailedError

    # Statistics would put the longest texts of users into the table's log.
    unindexed = dict.fromkeys(("body", "raw", "detail"), ColumnProperties(statistics_enabled="NONE"))
    table = events_table.open_table(layout)
    try:
        found = table.optimize.compact(
            partition_filters=[("kind", "=", kind)],
            target_size=target_size,
            max_concurrent_tasks=1,
            writer_properties=WriterProperties(compression="ZSTD", column_properties=unindexed),
            # What a later build has to read of the log must not be cleaned away by the way.
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
    except CommitFailedError:
        return 0
    return int(found["numFilesAdded"])


def _vacuum(layout: Layout, config: MaintainConfig, dry_run: bool) -> Step:
    """Removes files that the events table no longer names, and files that no commit ever named.

    Files are as old as the system's clock and the table's log say.
    """
    name = "vacuum events"
    if not events_table.exists(layout):
        return Step(name, 0, 0)
    table = events_table.open_table(layout)
    # The log goes on naming files that were vacuumed before.
    doomed = [path for path in _vacuumed(table, config, dry_run=True) if (layout.events / path).exists()]
    size = sum(_size(layout.events / path) for path in doomed)
    if doomed and not dry_run:
        _vacuumed(table, config, dry_run=False)
    return Step(name, len(doomed), size)


def _vacuumed(table: DeltaTable, config: MaintainConfig, *, dry_run: bool) -> list[str]:
    from deltalake import PostCommitHookProperties

    return table.vacuum(
        retention_hours=config.retention_hours,
        dry_run=dry_run,
        enforce_retention_duration=False,
        full=True,
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )


def _staging(layout: Layout, dry_run: bool) -> Step:
    """Work in progress of processes that died."""
    found = sweep_staging(layout, dry_run=dry_run)
    return Step("remove work of processes that died", len(found), sum(size for _, size in found))


def _segments(layout: Layout, config: MaintainConfig, now: datetime, dry_run: bool) -> Step:
    """Parts of the builds' memory that the newest build does not name; datasets hold links of their own.

    Under the build's lock, so that no build is at work on a segment that nothing names yet.
    """
    from .groups_store import store

    name = "remove segments that no build needs"
    folder = store.folder(layout)
    if not folder.is_dir():
        return Step(name, 0, 0)
    with locked(layout.staging / ".build"):
        state = store.read_state(layout)
        if state is None:
            return Step(name, 0, 0, "what the last build remembers is unreadable: nothing was removed")
        doomed = [path for path in folder.iterdir() if path.is_dir() and path.name not in state.segments]
        return _removed(name, _older(doomed, now, config), dry_run)


def _replays(layout: Layout, config: MaintainConfig, now: datetime, dry_run: bool) -> Step:
    """Batches of dead letters that a replay prepared and never read."""
    name = "remove replay batches that were never read"
    batches = sorted(replay_batches.folder(layout).glob("*.arrow"))
    if not batches:
        return Step(name, 0, 0)
    with locked(layout.staging / ".replay"):
        table = events_table.open_table(layout)
        doomed = [path for path in batches if replay_batches.read_until(table, path) == 0]
        return _removed(name, _older(doomed, now, config), dry_run)


def _partials(layout: Layout, config: MaintainConfig, now: datetime, dry_run: bool) -> Step:
    """Hidden files that an atomic write left behind when it was killed before its rename."""
    folders = (
        layout.datasets,
        layout.root / "groups",
        replay_batches.folder(layout),
        layout.root / VALIDATION,
    )
    doomed = [path for folder in folders for path in folder.glob(".*") if path.is_file()]
    return _removed("remove half-written files", _older(doomed, now, config), dry_run)


def _validations(layout: Layout, config: MaintainConfig, dry_run: bool) -> Step:
    """Outcomes of checks beyond the newest; each is a page and a document."""
    pages = [path for path in (layout.root / VALIDATION).glob("*.html") if path.is_file()]
    pages.sort(key=_changed, reverse=True)
    old = [file for page in pages[config.keep_validations :] for file in (page.with_suffix(".json"), page)]
    return _removed("remove old outcomes of checks", old, dry_run)


def _older(paths: Iterable[Path], now: datetime, config: MaintainConfig) -> list[Path]:
    """Those that were last changed before the retention."""
    before = (now - timedelta(hours=config.retention_hours)).timestamp()
    return [path for path in paths if _changed(path) < before]


def _changed(path: Path) -> float:
    """When a file or folder was last changed; never for one that its owner renamed or removed meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _removed(what: str, paths: Iterable[Path], dry_run: bool) -> Step:
    count = size = 0
    for path in paths:
        count, size = count + 1, size + _size(path)
        if dry_run:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return Step(what, count, size)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; 0 when it is gone."""
    if path.is_dir():
        return sum(_size(Path(folder) / name) for folder, _, names in os.walk(path) for name in names)
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
