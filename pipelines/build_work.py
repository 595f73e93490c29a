"""What a build works on, and the segment that comes of it: everything, or only what new events touch."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedback.joining import PROMPT_KEYS
from feedback.preferences import PreferConfig

from . import processes
from .affected import affected
from .events_table import KINDS, EventFile, added_since
from .garbage import uncollected
from .grouping import decide, group_all
from .groups_store import store as groups
from .groups_store.keys import GROUP, group_keys, union
from .groups_store.segment import STORED, Segment, SegmentError, verify
from .groups_store.store import State, Store
from .groups_store.write import Part, SegmentWriter
from .near_duplicate_prompts import dropped_prompts, fingerprint
from .shards import read_events
from .workspace import Layout, fsync_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from .build import BuildConfig
    from .runner import RunnerConfig

_LARGEST_SHARE = 0.1
_MOST_STORED = 3
_SEGMENTS_OF_A_SIZE = 8


@dataclass(frozen=True)
class Remembered:
    """What the last build left, if it still counts, and the files that were added since."""

    state: State
    store: Store
    new: list[EventFile]
    verified: Future[None]
    """The comparison of the store with its checksums, which runs beside the work on it."""

    def sound(self) -> bool:
        """Whether the store is as it was written; waits until it is known. Nothing made of it counts before."""
        return self.verified.exception() is None


@dataclass(frozen=True)
class Made:
    """What a build made.

    Attributes:
        store: The segments that count from now on.
        segment: The new one among them, still in staging; None when there is none.
        dead_letters: Reason to number of dead letters.
    """

    store: Store
    segment: Segment | None
    dead_letters: dict[str, int]

    def events(self) -> int:
        """Number of events that have a fate."""
        return sum(self.store.fate_counts().values()) + sum(self.dead_letters.values())

    def balances(self, files: Sequence[EventFile]) -> bool:
        """Whether every row of these files has a fate."""
        return self.events() == sum(file.rows for file in files)


def remembered(layout: Layout, wanted: tuple[str, str], table: DeltaTable) -> Remembered | None:
    """What the last build left; None when it was made otherwise, is damaged, or cannot be continued.

    Args:
        layout: the workspace.
        wanted: digests of the configuration and of the code.
        table: the snapshot of the events table that is to be built.
    """
    state = groups.read_state(layout)
    _sweep(layout, state)
    if state is None or (state.config_sha256, state.code_sha256) != wanted:
        return None
    new = added_since(layout, table, state.events_version)
    if new is None:
        return None
    try:
        store = groups.open_store(layout, state, verified=False)
    except SegmentError:
        return None
    beside = ThreadPoolExecutor(1, thread_name_prefix="verify-segments")
    verified = beside.submit(_verify, store.segments)
    beside.shutdown(wait=False)
    return Remembered(state, store, [file for file in new if file.kind in KINDS], verified)


def _verify(segments: Iterable[Segment]) -> None:
    for segment in segments:
        verify(segment)


def made(
    files: Sequence[EventFile],
    last: Remembered | None,
    staging: Path,
    config: BuildConfig,
    runner: RunnerConfig | None,
) -> Made:
    """`worked` upon what was remembered if that is sound, else everything anew."""
    if last is not None:
        try:
            found = worked(files, last, staging, config, runner)
        except Exception:
            if last.sound():
                raise
        else:
            if last.sound() and found.balances(files):
                return found
    return worked(files, None, staging, config, runner)


def _sweep(layout: Layout, state: State | None) -> None:
    """Removes segments that no state names: a build that was killed left them, or they were replaced."""
    named = set(state.segments) if state else set()
    for path in groups.folder(layout).glob("segment-*"):
        if path.name not in named:
            shutil.rmtree(path, ignore_errors=True)


def worked(
    files: Sequence[EventFile],
    last: Remembered | None,
    staging: Path,
    config: BuildConfig,
    runner: RunnerConfig | None,
) -> Made:
    """Decides about all events that are new, and about all that they touch.

    Args:
        files: all files of the events table.
        last: what the last build left; None to decide about everything.
        staging: the folder in which the segment is made.
        config: see `BuildConfig`.
        runner: which Beam runner works a large build.
    """
    new = [file for file in last.new if file.kind != "dead_letter"] if last else []
    total = sum(file.rows for file in files)
    count = sum(file.rows for file in new)
    if last and not new:
        return Made(last.store, None, _dead_letters(last.new, last.state.dead_letters))
    if (
        last is None
        or count > max(config.in_memory_rows, total * _LARGEST_SHARE)
        or last.store.stored_events > _MOST_STORED * total
    ):
        made = _everything([file for file in files if file.kind != "dead_letter"], staging, config, runner)
        return Made(made, made.segments[-1] if made.segments else None, _dead_letters(files, {}))
    with uncollected():
        store = _increment(last.store, new, staging, config)
    return Made(store, store.segments[-1], _dead_letters(last.new, last.state.dead_letters))


def _everything(
    files: Sequence[EventFile], staging: Path, config: BuildConfig, runner: RunnerConfig | None
) -> Store:
    """A store of one segment, made from the events table alone."""
    rows = sum(file.rows for file in files)
    if rows == 0:
        return Store((), np.zeros(0, GROUP))
    if rows <= config.in_memory_rows:
        parts = _in_memory(read(files), PROMPT_KEYS.empty_table(), config.prefer, config.rows_per_shard)
    else:
        parts = _by_pipeline(files, rows, staging, config, runner)
    segment = _written(staging, parts, config.prefer)
    return _without_near_duplicates(Store((segment,), np.zeros(0, GROUP)), None, config.prefer)


def _increment(before: Store, new: Sequence[EventFile], staging: Path, config: BuildConfig) -> Store:
    """The store with one more segment for what new files touch."""
    events = read(new)
    merged = _to_merge(before.segments, events.num_rows)
    also = [
        segment["groups"][live]
        for segment, live in zip(before.segments, before.live, strict=True)
        if segment in merged
    ]
    touched = affected(before, events, union(*also))
    parts = _in_memory(touched.events, touched.elsewhere, config.prefer, config.rows_per_shard)
    # A group of a merged segment that is empty must stay so, or an older segment's would count again.
    segment = _written(staging, parts, config.prefer, union(touched.groups, *also))
    kept = tuple(segment for segment in before.segments if segment not in merged)
    return _without_near_duplicates(Store((*kept, segment), np.zeros(0, GROUP)), before, config.prefer)


def _to_merge(segments: Sequence[Segment], new_events: int) -> list[Segment]:
    """The newest segments, when there are too many of their size: their groups are written once more.

    Of each order of magnitude (a factor of eight) at most eight stay, so the number of segments grows with
    the logarithm of the events, and an event is written again once for each order of magnitude.
    """
    size = _magnitude(new_events)
    run: list[Segment] = []
    for segment in reversed(segments[1:]):  # the first one holds what was there from the beginning
        if _magnitude(segment.manifest["events"]) > size:
            if len(run) + 1 < _SEGMENTS_OF_A_SIZE:
                break
            size = _magnitude(segment.manifest["events"])
        run.append(segment)
    return run if len(run) + 1 >= _SEGMENTS_OF_A_SIZE else []


def _magnitude(events: int) -> int:
    return max(int(events).bit_length() - 1, 0) // 3


def _in_memory(
    events: pa.Table, elsewhere: pa.Table, config: PreferConfig, rows_per_part: int
) -> Iterator[Part]:
    """Groups and decides in this process; in parts, so that rows of few groups are held at a time."""
    grouped = group_all(events, elsewhere)
    grouped = grouped.take(pc.sort_indices(grouped["group"])).combine_chunks()
    keys = group_keys(grouped["group"].to_pylist())
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    edges = np.append(first, len(keys))
    lo = 0
    while lo < len(keys):
        hi = int(edges[np.searchsorted(edges, min(lo + rows_per_part, len(keys)))])
        yield decide(grouped.slice(lo, hi - lo), config)
        lo = hi


def _by_pipeline(
    files: Sequence[EventFile], rows: int, staging: Path, config: BuildConfig, runner: RunnerConfig | None
) -> Iterator[Part]:
    """The same by a Beam pipeline, for what does not fit in memory."""
    from .runner import RunnerConfig, import_beam, run_pipeline

    runner = runner or RunnerConfig()
    workers = runner.processes(rows)
    processes.start(workers)  # they import while this process imports what it needs itself
    import_beam()
    from . import build_transforms as steps

    spills, claims = staging / f"spills-{uuid.uuid4().hex}", staging / f"claims-{uuid.uuid4().hex}"
    spills.mkdir()
    claims.mkdir()
    shards = max(1, min(config.shards, -(-rows // config.rows_per_shard)))
    run_pipeline(
        lambda pipeline: steps.construct(
            pipeline, list(files), spills, claims, shards, config.prefer, runner, workers
        ),
        runner,
    )
    for claim in steps.read_claims(claims):
        yield steps.read_part(claim)


def read(files: Iterable[EventFile]) -> pa.Table:
    """The events of some files in `STORED`."""
    return pa.concat_tables([STORED.empty_table(), *(part for file in files for part in read_events(file))])


def _written(
    staging: Path, parts: Iterable[Part], config: PreferConfig, replaced: np.ndarray | None = None
) -> Segment:
    """A segment of these parts; `replaced` groups that are in none of them are in it as empty ones."""
    folder = staging / f"segment-{uuid.uuid4().hex}"
    folder.mkdir()
    writer = SegmentWriter(folder, fingerprint(config.near_duplicates))
    for part in parts:
        writer.add(part)
    return writer.close(replaced)


def _without_near_duplicates(after: Store, before: Store | None, config: PreferConfig) -> Store:
    """The store with the prompts that are left out, and these written into its newest segment."""
    dropped = dropped_prompts(after, before, config.near_duplicates)
    path = after.segments[-1].path / groups.DROPPED
    path.write_bytes(groups.dropped_file(dropped))
    fsync_path(path)
    return Store(after.segments, dropped)


def _dead_letters(files: Iterable[EventFile], known: dict[str, int]) -> dict[str, int]:
    """Reasons of dead letters and their numbers: those known, and those of some files."""
    counts = Counter(known)
    for file in files:
        if file.kind == "dead_letter":
            counts.update(pq.read_table(file.path, columns=["reason"])["reason"].to_pylist())
    return dict(sorted(counts.items()))


def keep(layout: Layout, made: Made) -> tuple[str, ...]:
    """Moves the new segment out of staging; gives the names of all segments, oldest first."""
    if made.segment is not None:
        groups.folder(layout).mkdir(parents=True, exist_ok=True)
        made.segment.path.rename(groups.folder(layout) / made.segment.name)
        fsync_path(groups.folder(layout))
    return tuple(segment.name for segment in made.store.segments)
