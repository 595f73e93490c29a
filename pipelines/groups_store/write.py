"""Writes a segment, part by part, so that a million events need the memory of one part."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedback.tables import PREFERENCES
from pipelines.workspace import fsync_path

from . import segment
from .keys import GROUP, ID, find, group_keys, id_keys, union

DECIDED: pa.Schema = pa.schema(
    [
        *segment.STORED,
        ("group", pa.string()),
        ("fate", pa.string()),
        ("reason", pa.string()),
        ("preference_ids", pa.list_(pa.string())),
    ]
)
"""Events with the group they are in and what became of them."""

PROMPTS: pa.Schema = pa.schema([("prompt_key", pa.string()), ("text", pa.string())])
"""Texts of the prompts that have rows."""

STRENGTH = {"train": 0, "evaluation": 1, "test": 2}
"""Of two prompts that are nearly the same, the one in the later split stays."""

_BATCH_ROWS = 16_384
_ALIGNED = 64

Fingerprint = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
"""Texts of N prompts to their signatures (N, permutations) and band values (N, bands)."""


@dataclass(frozen=True)
class Part:
    """Some groups that were worked on, whole.

    Attributes:
        events: In `DECIDED`, ordered by group.
        rows: In `PREFERENCES`.
        prompts: In `PROMPTS`, one for each prompt key in `rows`.
    """

    events: pa.Table
    rows: pa.Table
    prompts: pa.Table


class SegmentWriter:
    """Takes parts in the order of their groups; no group is in two parts.

    Args:
        folder: an empty folder in staging.
        fingerprint: how near-duplicates of prompts are found; None for not at all.
    """

    def __init__(self, folder: Path, fingerprint: Fingerprint | None) -> None:
        self.folder, self._fingerprint = folder, fingerprint
        self._pieces: dict[str, list[np.ndarray]] = defaultdict(list)
        self._fates: dict[tuple[str, ...], int] = {}
        self._row_kinds: dict[tuple[str, ...], int] = {}
        self._groups = self._events_written = self._rows_written = self._made = 0
        self._events = pa.ipc.new_file(str(folder / segment.EVENTS), segment.STORED)
        self._rows = pq.ParquetWriter(
            folder / segment.ROWS,
            PREFERENCES,
            compression="zstd",
            compression_level=1,
            write_page_checksum=True,
        )

    def add(self, part: Part) -> None:
        """Writes one part."""
        if part.events.num_rows == 0:
            return
        self._events.write_table(part.events.select(segment.STORED.names), max_chunksize=_BATCH_ROWS)
        if part.rows.num_rows:
            self._rows.write_table(part.rows)
        keys = group_keys(part.events["group"].to_pylist())
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        groups = keys[first]
        group_of = np.repeat(np.arange(len(groups)), np.diff(np.append(first, len(keys)))) + self._groups
        self._put("groups", groups)
        self._put("counts", np.diff(np.append(first, len(keys))))
        self._index_events(part.events, group_of)
        self._index_rows(part, groups)
        self._groups += len(groups)
        self._events_written += part.events.num_rows
        self._rows_written += part.rows.num_rows

    def close(self, emptied: np.ndarray | None = None) -> segment.Segment:
        """Finishes the segment and opens it where it is.

        Args:
            emptied: keys of groups whose events have all gone to other groups.
        """
        self._events.close()
        self._rows.close()
        arrays = self._ordered(np.zeros(0, GROUP) if emptied is None else emptied)
        places: dict[str, Any] = {}
        with (self.folder / segment.ARRAYS).open("wb") as stream:
            for name in segment.INDEX:
                array = np.ascontiguousarray(arrays[name])
                stream.write(b"\0" * (-stream.tell() % _ALIGNED))
                places[name] = {"dtype": array.dtype.str, "shape": array.shape, "offset": stream.tell()}
                stream.write(array.data if array.size else b"")
            stream.write(b"\0" * _ALIGNED)
        files = {name: _described(self.folder / name) for name in _FILES}
        manifest = {
            "events": self._events_written,
            "rows": self._rows_written,
            "fates": list(self._fates),
            "row_kinds": list(self._row_kinds),
            "arrays": places,
            "files": files,
        }
        manifest["digest"] = segment.manifest_digest(manifest)
        (self.folder / segment.MANIFEST).write_bytes(orjson.dumps(manifest))
        for name in (*_FILES, segment.MANIFEST):
            fsync_path(self.folder / name)
        fsync_path(self.folder)
        return segment.open_segment(self.folder)

    def _put(self, name: str, array: np.ndarray) -> None:
        self._pieces[name].append(array)

    def _index_events(self, events: pa.Table, group_of: np.ndarray) -> None:
        fates = _codes(events, ["kind", "fate", "reason"], self._fates)
        self._put("fates", fates.astype(np.uint16))
        stands = pc.invert(pc.is_in(events["fate"], pa.array(["duplicate", "dead_letter"])))
        standing = stands.to_numpy(zero_copy_only=False)
        is_reply = pc.equal(events["kind"], "interaction").to_numpy(zero_copy_only=False)
        for kind, mask in (("interaction", standing & is_reply), ("feedback", standing & ~is_reply)):
            self._put("ids", id_keys(kind, events["event_id"].filter(pa.array(mask)).to_pylist()))
            self._put("id_groups", group_of[mask].astype(np.uint32))
        in_session = standing & is_reply & events["session_id"].is_valid().to_numpy(zero_copy_only=False)
        sessions = id_keys("session", events["session_id"].filter(pa.array(in_session)).to_pylist())
        # One entry for each group that the session is in: any of them may move away later.
        pairs = np.empty(len(sessions), dtype=[("session", ID), ("group", np.uint32)])
        pairs["session"], pairs["group"] = sessions, group_of[in_session]
        pairs = np.unique(pairs)
        self._put("sessions", pairs["session"].copy())
        self._put("session_groups", pairs["group"].copy())

    def _index_rows(self, part: Part, groups: np.ndarray) -> None:
        rows = part.rows
        made = part.events["preference_ids"].combine_chunks()
        row = pc.index_in(made.flatten(), value_set=rows["preference_id"].combine_chunks())
        self._put("made_counts", made.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
        self._put("made", (row.to_numpy(zero_copy_only=False) + self._rows_written).astype(np.uint32))
        row_groups = find(groups, group_keys(rows["prompt_key"].to_pylist()))
        self._put("row_ids", group_keys(rows["preference_id"].to_pylist()))
        self._put("row_groups", (row_groups + self._groups).astype(np.uint32))
        self._put("row_kinds", _codes(rows, ["rule", "split"], self._row_kinds).astype(np.uint16))
        self._put("row_times", rows["event_time"].cast(pa.int64()).to_numpy())
        prompt_groups = find(groups, group_keys(part.prompts["prompt_key"].to_pylist()))
        strengths = np.zeros(len(groups), np.uint8)
        splits = np.array([STRENGTH[split] for split in rows["split"].to_pylist()], np.uint8)
        np.maximum.at(strengths, row_groups, splits)
        self._put("prompt_groups", (prompt_groups + self._groups).astype(np.uint32))
        self._put("strengths", strengths[prompt_groups])
        if self._fingerprint is not None and part.prompts.num_rows:
            signatures, bands = self._fingerprint(part.prompts["text"].to_pylist())
            self._put("signatures", signatures)
            self._put("prompt_bands", bands)

    def _ordered(self, emptied: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of the index: what was put, in one piece and in order."""
        all_groups = union(self._joined("groups", GROUP), emptied)
        moved = np.searchsorted(all_groups, self._joined("groups", GROUP))
        counts = np.zeros(len(all_groups), np.int64)
        counts[moved] = self._joined("counts", np.int64)
        arrays = {
            "groups": all_groups,
            "starts": _starts(counts),
            "fates": self._joined("fates", np.uint16),
            "made_starts": _starts(self._joined("made_counts", np.int64)),
            "made": self._joined("made", np.uint32),
            "row_ids": self._joined("row_ids", GROUP),
            "row_kinds": self._joined("row_kinds", np.uint16),
            "row_times": self._joined("row_times", np.int64),
            "strengths": self._joined("strengths", np.uint8),
            "signatures": self._joined("signatures", np.uint32, width=1),
        }
        for name in ("row_groups", "prompt_groups", "id_groups", "session_groups"):
            arrays[name] = moved[self._joined(name, np.uint32)].astype(np.uint32)
        for name, beside in (("ids", "id_groups"), ("sessions", "session_groups")):
            arrays[name], arrays[beside] = _sorted_pair(self._joined(name, ID), arrays[beside])
        bands = self._joined("prompt_bands", np.uint64, width=1)
        owners = np.repeat(np.arange(len(bands), dtype=np.uint32), bands.shape[1])
        arrays["bands"], arrays["band_prompts"] = _sorted_pair(bands.ravel(), owners)
        return arrays

    def _joined(self, name: str, dtype: Any, width: int | None = None) -> np.ndarray:
        pieces = self._pieces.pop(name, []) if name not in _USED_TWICE else self._pieces.get(name, [])
        if not pieces:
            return np.zeros((0, width) if width else 0, dtype)
        return np.concatenate(pieces)


_FILES = (segment.EVENTS, segment.ROWS, segment.ARRAYS)
_USED_TWICE = ("groups",)


def _codes(table: pa.Table, columns: list[str], known: dict[tuple[str, ...], int]) -> np.ndarray:
    """(N,) int: the number of each row's values, which are numbered as they come."""
    if table.num_rows == 0:
        return np.zeros(0, np.int64)
    texts = [pc.fill_null(table[name], "") for name in columns]
    joined = pc.binary_join_element_wise(*texts, "\0").combine_chunks().dictionary_encode()
    numbers = [
        known.setdefault(tuple(text.split("\0")), len(known)) for text in joined.dictionary.to_pylist()
    ]
    return np.asarray(numbers)[joined.indices.to_numpy()]


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _sorted_pair(keys: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(keys, kind="stable")
    return keys[order], beside[order]


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest, "crc32c": segment.checksum(path)}
