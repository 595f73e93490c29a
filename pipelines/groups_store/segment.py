"""A segment: the groups that one build worked on, in three files that never change.

    events.arrow    all events of the groups, ordered by group, uncompressed and mapped into memory, so that
                    reading one group in a hundred costs a hundredth
    rows.parquet    the preference rows of the groups
    index.bin       numpy arrays one after another, mapped too; `manifest.json` says where each lies

`INDEX` lists the arrays. A segment is written in staging and renamed into place by its caller. The manifest holds
sizes and checksums, of itself too; opening a segment reads its files once and compares them, at the speed of memory
where they were read lately, so that what a disk has damaged is never built upon.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import orjson
import pyarrow as pa

from feedback.joining import KEYED
from pipelines.errors import PipelineError

STORED: pa.Schema = pa.schema(
    [
        KEYED.field(name)
        for name in (
            "kind", "event_id", "digest", "interaction_id", "session_id", "event_time", "ingest_time", "body",
            "source", "partition", "offset",
        )
    ]
)  # fmt: skip
"""What the store keeps of an event: what deciding about it again needs."""

LOADED: pa.Schema = STORED.append(pa.field("prompt_key", pa.string()))
"""Events to be worked on, with the group they are in where it is known: that of an interaction is its prompt key."""

EVENTS = "events.arrow"
ROWS = "rows.parquet"
ARRAYS = "index.bin"
MANIFEST = "manifest.json"

INDEX: dict[str, str] = {
    "groups": "S32: keys of the groups, in order",
    "starts": "int64: where each group's events begin; one more at the end",
    "ids": "S16: id keys of interactions and feedback, in order",
    "id_groups": "uint32: the group that each id is in",
    "sessions": "S16: id keys of the sessions of interactions that stand, in order",
    "session_groups": "uint32: a group that has an interaction of that session",
    "fates": "uint16: of each event, which of the manifest's fates",
    "made_starts": "int64: where each event's rows begin in `made`; one more at the end",
    "made": "uint32: rows that rest on the events",
    "row_ids": "S32: the preference ids",
    "row_groups": "uint32: the group of each row",
    "row_kinds": "uint16: of each row, which of the manifest's pairs of rule and split",
    "row_times": "int64: event time of each row, in microseconds since 1970",
    "prompt_groups": "uint32: the groups that have rows",
    "strengths": "uint8: of each of these, the latest split it has rows in: train 0, evaluation 1, test 2",
    "signatures": "uint32 (prompts, permutations): MinHash signatures of their texts",
    "bands": "uint64: values of the signatures' bands, in order",
    "band_prompts": "uint32: which prompt each of these belongs to",
}
"""The arrays of a segment."""


_BLOCK_BYTES = 1 << 20


class SegmentError(PipelineError):
    """A segment is missing, damaged or of another make; the caller builds from the events table instead."""


@dataclass(frozen=True)
class Segment:
    """One segment, opened and mapped; nothing is read before it is asked for."""

    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.path.name

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of `INDEX`, mapped into memory."""
        with (self.path / ARRAYS).open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return {
            name: np.frombuffer(mapped, at["dtype"], int(np.prod(at["shape"])), at["offset"]).reshape(
                at["shape"]
            )
            if 0 not in at["shape"]
            else np.zeros(at["shape"], at["dtype"])
            for name, at in self.manifest["arrays"].items()
        }

    def map(self) -> None:
        """Maps its files, so that they stay readable when a later build removes the segment."""
        _ = self.arrays, self._batches

    def __getitem__(self, name: str) -> np.ndarray:
        """One of the arrays."""
        return self.arrays[name]

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        reader = pa.ipc.open_file(pa.memory_map(str(self.path / EVENTS)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate()
        return batches

    def events(self, places: np.ndarray, columns: list[str] | None = None) -> pa.Table:
        """Events by their number, in ascending order.

        Taken batch by batch: Arrow's strings of one array must stay below 2 GiB.
        """
        schema = STORED if columns is None else pa.schema([STORED.field(name) for name in columns])
        taken, first = [], 0
        for batch in self._batches:
            lo, hi = np.searchsorted(places, (first, first + batch.num_rows))
            if lo < hi:
                wanted = places[lo:hi] - first
                batch_of = batch.select(schema.names)
                _refuse_outside(batch_of, wanted)
                taken.append(batch_of.take(pa.array(wanted)))
            first += batch.num_rows
        return pa.Table.from_batches(taken, schema)

    def group_of_event(self, places: np.ndarray) -> np.ndarray:
        """(N,) int64: the group of each of N events."""
        return np.searchsorted(self["starts"], places, "right") - 1


def _refuse_outside(batch: pa.RecordBatch, wanted: np.ndarray) -> None:
    """Refuses texts that a damaged file says to lie outside of it, as Arrow would follow and end the process.

    A segment is worked on while it is verified, so this cannot be left to `verify`.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_string(column.type):
            _, offsets, texts = column.buffers()
            at = np.frombuffer(offsets, np.int32)
            lo, hi = at[column.offset + wanted], at[column.offset + wanted + 1]
            if (lo < 0).any() or (hi < lo).any() or (hi > (texts.size if texts else 0)).any():
                raise SegmentError("A segment was changed.", got=f"{EVENTS}, column {name}")


def open_segment(path: Path, *, verified: bool = True) -> Segment:
    """Opens a segment after comparing all of it with its checksums.

    Args:
        path: Its folder.
        verified: False leaves the comparison to the caller, who does it with `verify` before it trusts anything.

    Raises:
        SegmentError: a file is missing or is not as it was written.
    """
    try:
        manifest = orjson.loads((path / MANIFEST).read_bytes())
        if manifest["digest"] != manifest_digest(manifest) or set(manifest["arrays"]) != set(INDEX):
            raise SegmentError("A segment was changed, or is of another make.", got=path.name)
        for name in (EVENTS, ROWS, ARRAYS):
            if (path / name).stat().st_size != manifest["files"][name]["bytes"]:
                raise SegmentError("A segment was cut off.", got=f"{path.name}/{name}")
        segment = Segment(path, manifest)
        if verified:
            verify(segment)
        segment.map()
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, SegmentError):
            raise
        raise SegmentError("A segment cannot be opened.", got=f"{path.name}: {error}") from error
    return segment


def verify(segment: Segment) -> None:
    """Compares a segment's files with their checksums; reads all of them, and mostly without Python's lock.

    Raises:
        SegmentError: one is not as it was written.
    """
    for name in (EVENTS, ROWS, ARRAYS):
        try:
            found = checksum(segment.path / name)
        except OSError as error:
            raise SegmentError("A segment cannot be read.", got=f"{segment.name}/{name}: {error}") from error
        if found != segment.manifest["files"][name]["crc32c"]:
            raise SegmentError("A segment was changed.", got=f"{segment.name}/{name}")


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its own digest."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def checksum(path: Path) -> int:
    """CRC-32C of a file. Read and not mapped, so that it costs no memory."""
    found, block = 0, bytearray(_BLOCK_BYTES)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(block):
            found = crc32c.crc32c(memoryview(block)[:count], found)
    return found
