"""The segments that count, taken together: of each group, what the newest of them says."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from pipelines.workspace import Layout, write_atomically

from .keys import GROUP, find, hex_keys, spans, union
from .segment import LOADED, Segment, SegmentError, open_segment

STATE = "state.json"
DROPPED = "dropped.bin"
"""In a segment's folder: keys of the prompts that were left out as near-duplicates when it was newest."""


@dataclass(frozen=True)
class State:
    """What the newest build left.

    Attributes:
        segments: Names of the segments that count, oldest first.
        dataset: The version that was built.
        events_version: Version of the events table that it saw.
        dead_letters: Reason to number of dead letters among those events.
    """

    segments: tuple[str, ...]
    dataset: str
    events_version: int
    config_sha256: str
    code_sha256: str
    dead_letters: dict[str, int]


def folder(layout: Layout) -> Path:
    """Where segments and state lie."""
    return layout.root / "groups"


def read_state(layout: Layout) -> State | None:
    """What the newest build left; None when there is none, or when it cannot be read."""
    try:
        content = orjson.loads((folder(layout) / STATE).read_bytes())
        if content.pop("digest") != _digest(content):
            return None
        return State(**{**content, "segments": tuple(content["segments"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_state(layout: Layout, state: State) -> None:
    """Makes this the state, atomically."""
    content = {**vars(state), "segments": list(state.segments)}
    content["digest"] = _digest(content)
    write_atomically(folder(layout) / STATE, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True)
class Store:
    """Segments, oldest first, as one table of groups.

    Attributes:
        dropped: (D,) S32, in order: prompts left out as near-duplicates.
    """

    segments: tuple[Segment, ...]
    dropped: np.ndarray

    @cached_property
    def live(self) -> tuple[np.ndarray, ...]:
        """Per segment (groups,) bool: whether no newer segment has the group."""
        masks = [np.ones(len(segment["groups"]), dtype=bool) for segment in self.segments]
        for at, newer in enumerate(self.segments):
            for mask, older in zip(masks[:at], self.segments[:at], strict=True):
                places = find(older["groups"], newer["groups"])
                mask[places[places >= 0]] = False
        return tuple(masks)

    @property
    def stored_events(self) -> int:
        """Events in all segments, replaced ones included."""
        return sum(int(segment.manifest["events"]) for segment in self.segments)

    def groups_of(self, ids: np.ndarray, names: str = "ids", owners: str = "id_groups") -> np.ndarray:
        """(N,) S32: the group of each id; empty where the id is unknown."""
        found = np.zeros(len(ids), GROUP)
        for segment, live in zip(self.segments, self.live, strict=True):
            places = find(segment[names], ids)
            hit = np.flatnonzero(places >= 0)
            groups = segment[owners][places[hit]]
            hit, groups = hit[live[groups]], groups[live[groups]]
            found[hit] = segment["groups"][groups]
        return found

    def sessions_known(self, sessions: np.ndarray, without: np.ndarray) -> np.ndarray:
        """(N,) bool: whether an interaction of the session is there, outside of some groups."""
        known = np.zeros(len(sessions), dtype=bool)
        for segment, live in zip(self.segments, self.live if len(sessions) else (), strict=False):
            # One session has an entry for each group it is in, so a range is looked at.
            lo = np.searchsorted(segment["sessions"], sessions, "left")
            hi = np.searchsorted(segment["sessions"], sessions, "right")
            counted = live & ~_among(segment, without)
            alive = np.concatenate([[0], np.cumsum(counted[segment["session_groups"]])])
            known |= alive[hi] > alive[lo]
        return known

    def present(self, groups: np.ndarray) -> np.ndarray:
        """Those of some keys that are keys of groups with events."""
        found = np.zeros(len(groups), dtype=bool)
        for segment, live in zip(self.segments, self.live, strict=True):
            full = live & (np.diff(segment["starts"]) > 0)
            places = find(segment["groups"], groups)
            found[places >= 0] |= full[places[places >= 0]]
        return groups[found]

    def events_of(self, groups: np.ndarray) -> pa.Table:
        """All events of some groups, in `LOADED`."""
        tables = [LOADED.empty_table()]
        for segment, live in zip(self.segments, self.live, strict=True):
            wanted = np.flatnonzero(_among(segment, groups) & live)
            starts = segment["starts"][wanted]
            counts = segment["starts"][wanted + 1] - starts
            keys = pa.array(hex_keys(segment["groups"][wanted]), pa.string())
            events = segment.events(spans(starts, counts))
            owners = keys.take(pa.array(np.repeat(np.arange(len(wanted)), counts)))
            tables.append(events.append_column(LOADED.field("prompt_key"), owners))
        return pa.concat_tables(tables)

    def is_dropped(self, segment: Segment) -> np.ndarray:
        """(groups,) bool: whether the group's prompt is left out."""
        return _among(segment, self.dropped)

    def live_rows(self) -> list[np.ndarray]:
        """Per segment (rows,) bool: whether the row is in the dataset."""
        return [
            (live & ~self.is_dropped(segment))[segment["row_groups"]]
            for segment, live in zip(self.segments, self.live, strict=True)
        ]

    def fate_counts(self) -> dict[tuple[str, str, str], int]:
        """`(kind, fate, reason)` to number of events; the reason of an event that is in a row is empty."""
        counts: dict[tuple[str, str, str], int] = {}
        for segment, live in zip(self.segments, self.live, strict=True):
            sizes = np.diff(segment["starts"])
            names = [tuple(fate) for fate in segment.manifest["fates"]]
            out = self.is_dropped(segment)
            for groups, left_out in ((live & ~out, False), (live & out, True)):
                numbers = np.bincount(segment["fates"][np.repeat(groups, sizes)], minlength=len(names))
                for (kind, fate, reason), count in zip(names, numbers.tolist(), strict=True):
                    told = (kind, *near_duplicate(fate, reason)) if left_out else (kind, fate, reason)
                    if count:
                        counts[told] = counts.get(told, 0) + count
        return counts


def _among(segment: Segment, groups: np.ndarray) -> np.ndarray:
    """(groups,) bool: whether a segment's group is one of some."""
    mask = np.zeros(len(segment["groups"]), dtype=bool)
    places = find(segment["groups"], groups)
    mask[places[places >= 0]] = True
    return mask


def near_duplicate(fate: str, reason: str) -> tuple[str, str]:
    """Fate and reason of an event whose prompt is left out: it is in no row."""
    return ("no_preference", "near_duplicate") if fate == "ready" else (fate, reason)


def open_store(layout: Layout, state: State, *, verified: bool = True) -> Store:
    """Opens the segments of a state; `verified` as in `open_segment`.

    Raises:
        SegmentError: one of them is missing or damaged.
    """
    segments = tuple(open_segment(folder(layout) / name, verified=verified) for name in state.segments)
    if not segments:
        return Store((), np.zeros(0, GROUP))
    try:
        content = (segments[-1].path / DROPPED).read_bytes()
    except OSError as error:
        raise SegmentError("A segment cannot be opened.", got=str(error)) from error
    if len(content) % GROUP.itemsize or hashlib.sha256(content[32:]).digest() != content[:32]:
        raise SegmentError("A segment was changed or cut off.", got=segments[-1].name)
    return Store(segments, np.frombuffer(content[32:], GROUP))


def dropped_file(dropped: np.ndarray) -> bytes:
    """Content of `dropped.bin`: the SHA-256 of what follows, then the keys."""
    content = union(dropped).tobytes()
    return hashlib.sha256(content).digest() + content
