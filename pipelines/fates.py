"""Where every event ended, as of the newest build.

Fates of interactions and feedback lie in the segments of the group store, beside the events they are fates
of. A dead letter has no group: its fate was settled when it came in, so it is read from the events table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from feedback.tables import FATES

from . import events_table
from .errors import PipelineError
from .groups_store.keys import find, hex_keys, id_keys, spans, union
from .groups_store.segment import Segment, SegmentError
from .groups_store.store import Store, near_duplicate, open_store, read_state
from .workspace import Layout

_OF_EVENT = ("event_id", "kind", "digest", "ingest_time", "partition", "offset")
_ATTEMPTS = 3


@dataclass(frozen=True)
class BuiltFrom:
    """What a set of fates was made from, and the dataset that was made with it."""

    dataset: str
    events_version: str
    config_sha256: str
    code_sha256: str


def built_from(layout: Layout) -> BuiltFrom | None:
    """What the newest build saw and made; None when nothing was built."""
    state = read_state(layout)
    if state is None:
        return None
    return BuiltFrom(state.dataset, str(state.events_version), state.config_sha256, state.code_sha256)


def read(
    layout: Layout, *, event_ids: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """Fates as of the newest build; of dead letters, as of now.

    Args:
        layout: the workspace.
        event_ids: of these ids only; None for all. Looking up a few costs the same however many there are.
        columns: those of `FATES` that are wanted; None for all.

    Returns:
        In `FATES`, one row for each row of the events table, unordered. Empty when nothing was built, except
        for dead letters.

    Raises:
        PipelineError: the group store is damaged.
    """
    tables = [*_of_groups(_store(layout), event_ids), _of_dead_letters(layout, event_ids)]
    table = pa.concat_tables(tables)
    return table if columns is None else table.select(list(columns))


def _store(layout: Layout) -> Store | None:
    """The newest store. A build may remove a segment between reading the state and opening it."""
    for attempt in range(_ATTEMPTS):
        state = read_state(layout)
        if state is None:
            return None
        try:
            return open_store(layout, state)
        except SegmentError as error:
            if attempt == _ATTEMPTS - 1:
                raise PipelineError(
                    "What the last build remembers is damaged.",
                    got=error.got,
                    next_step="palate build (makes it again)",
                ) from error
    return None


def _of_groups(store: Store | None, event_ids: Sequence[str] | None) -> Iterator[pa.Table]:
    yield FATES.empty_table()
    if store is None:
        return
    wanted = None
    if event_ids is not None:
        ids = (id_keys(kind, event_ids) for kind in ("interaction", "feedback"))
        wanted = union(*(store.groups_of(some) for some in ids))
    for segment, live in zip(store.segments, store.live, strict=True):
        groups = np.flatnonzero(live)
        if wanted is not None:
            groups = np.intersect1d(find(segment["groups"], wanted), groups)
        starts = segment["starts"][groups]
        places = spans(starts, segment["starts"][groups + 1] - starts)
        table = _decoded(segment, places, store.is_dropped(segment))
        if event_ids is not None:
            table = table.filter(pc.is_in(table["event_id"], value_set=pa.array(event_ids, pa.string())))
        yield table


def _decoded(segment: Segment, places: np.ndarray, left_out: np.ndarray) -> pa.Table:
    """The fates of some events of a segment, in `FATES`."""
    known = [tuple(fate) for fate in segment.manifest["fates"]]
    known += [(kind, *near_duplicate(fate, reason)) for kind, fate, reason in known]
    out = left_out[segment.group_of_event(places)]
    codes = pa.array(segment["fates"][places] + np.where(out, len(known) // 2, 0))
    starts = segment["made_starts"]
    counts = np.where(out, 0, starts[places + 1] - starts[places])
    made = segment["row_ids"][segment["made"][spans(starts[places], counts)]]
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    columns = segment.events(places, list(_OF_EVENT))
    decided = {
        "fate": pa.array([fate for _, fate, _ in known], pa.string()).take(codes),
        "reason": pa.array([reason or None for *_, reason in known], pa.string()).take(codes),
        "preference_ids": pa.ListArray.from_arrays(offsets, pa.array(hex_keys(made), pa.string())),
    }
    arrays = [decided[name] if name in decided else columns[name] for name in FATES.names]
    return pa.table(arrays, names=FATES.names).cast(FATES)


def _of_dead_letters(layout: Layout, event_ids: Sequence[str] | None) -> pa.Table:
    if not events_table.exists(layout):
        return FATES.empty_table()
    wanted = pc.field("kind") == "dead_letter"
    if event_ids is not None:
        wanted &= pc.field("event_id").isin(pa.array(event_ids, pa.string()))
    dataset = events_table.open_table(layout).to_pyarrow_dataset()
    table = dataset.to_table(columns=[*_OF_EVENT, "reason"], filter=wanted)
    decided = {
        "fate": pa.repeat(pa.scalar("dead_letter"), table.num_rows),
        "preference_ids": pa.array([[]] * table.num_rows, pa.list_(pa.string())),
    }
    arrays = [decided[name] if name in decided else table[name] for name in FATES.names]
    return pa.table(arrays, names=FATES.names).cast(FATES)
