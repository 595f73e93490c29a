"""Batches of dead letters that go through validation once more, and the links between old rows and new ones.

A batch is a file `replays/<id>.arrow`, named by its content: for each letter where its row lies and the bytes to
read in its place. As a source (`replay`) it is one partition `replay/<id>`, whose record n
is the file's row n. The file is there before its rows are and never changes, so a link can always be followed in
both directions; whether a batch was read, and how far, is known by the events table alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from feedback.sources import Partition, Record, require

from . import events_table
from .errors import PipelineError, disk_full, full_disk_error, last_line
from .workspace import Layout, write_atomically

if TYPE_CHECKING:
    from deltalake import DeltaTable

PREFIX = "replay/"
_SUFFIX = ".arrow"

Key = tuple[str, int]
"""Partition and offset of a row of the events table."""


class Config(BaseModel):
    """A batch is read in one way only."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def folder(layout: Layout) -> Path:
    """Where the batches lie."""
    return layout.root / "replays"


def write(layout: Layout, letters: Sequence[tuple[Key, bytes]]) -> Path:
    """Keeps a batch; the same letters with the same bytes are the same file.

    Args:
        layout: the workspace.
        letters: where each letter lies, and what to read in its place; ordered by place.

    Raises:
        DiskFullError: no space; there is no batch.
    """
    import pyarrow as pa

    digest = hashlib.sha256()
    for (partition, offset), raw in letters:
        digest.update(f"{partition}\0{offset}\0{hashlib.sha256(raw).hexdigest()}\n".encode())
    table = pa.table(
        {
            "partition": pa.array([key[0] for key, _ in letters], pa.string()),
            "offset": pa.array([key[1] for key, _ in letters], pa.int64()),
            "raw": pa.array([raw for _, raw in letters], pa.large_binary()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table, max_chunksize=10_000)
    path = folder(layout) / f"{digest.hexdigest()[:16]}{_SUFFIX}"
    content = sink.getvalue().to_pybytes()
    if not path.is_file() or path.read_bytes() != content:  # one that nobody read yet may have been damaged
        try:
            write_atomically(path, content)
        except OSError as error:
            if disk_full(error):
                again = "free some space and run the same command again"
                raise full_disk_error(layout.root, again) from error
            raise
    return path


def partitions(path: Path, _config: Config) -> list[Partition]:
    """The batch as one partition, with record numbers as offsets."""
    require(path, what="batch of dead letters")
    return [Partition(f"{PREFIX}{path.stem}", path, len(_places(path)))]


def read(partition: Partition, lo: int, hi: int, _config: Config) -> Iterator[Record]:
    """The records that end in (lo, hi]."""
    import pyarrow as pa

    with pa.memory_map(str(partition.path)) as source:
        raws = pa.ipc.open_file(source).read_all()["raw"]
        for number, raw in enumerate(raws.slice(lo, hi - lo).to_pylist(), lo):
            yield Record(number, number + 1, raw)


def origin(layout: Layout, partition: str, offset: int) -> Key | None:
    """The dead letter that a row was made of; None when the row is no replay."""
    path = folder(layout) / f"{partition.removeprefix(PREFIX)}{_SUFFIX}"
    if not partition.startswith(PREFIX) or not path.is_file():
        return None
    places = _places(path)
    return places[offset] if 0 <= offset < len(places) else None


def replays(layout: Layout, letters: Sequence[Key] | None = None) -> dict[Key, tuple[Key, ...]]:
    """The rows that were made of dead letters: of these, or of all when None."""
    batches = sorted(folder(layout).glob(f"*{_SUFFIX}"))
    if not batches or (letters is not None and not letters) or not events_table.exists(layout):
        return {}
    table = events_table.open_table(layout)
    asked = None if letters is None else set(letters)
    found: dict[Key, tuple[Key, ...]] = {}
    for path in batches:
        name = f"{PREFIX}{path.stem}"
        read = read_until(table, path)
        for number, place in enumerate(_places(path)[:read] if read else ()):
            if asked is None or place in asked:
                found[place] = (*found.get(place, ()), (name, number))
    return found


def read_until(table: DeltaTable, path: Path) -> int:
    """How many records of a batch are rows of the events table in this snapshot."""
    return events_table.position(table, f"{PREFIX}{path.stem}").offset


@lru_cache(maxsize=16)
def _places(path: Path) -> list[Key]:
    """Where the letters of a batch lie; batches never change.

    Raises:
        PipelineError: the file is damaged; which letters were replayed cannot be told without it.
    """
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
            return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise PipelineError(
            "A batch of replayed dead letters is damaged, so it is not known which letters it holds.",
            got=f"{path}: {last_line(error)[:200]}",
            next_step="restore the file from a copy of the workspace",
        ) from error
