"""Vectors of texts on disk, by key: immutable Parquet files in folders by the key's first hexadecimal digit.

    embeddings/
      7/3f0a….parquet   column key: SHA-256 in hex, all beginning with 7; column vector: float32
      91bc….parquet     as palate wrote them before there were folders: read, never written

A lookup reads the folders that can hold its keys, in them the row groups whose range of keys can, and vectors only
where it found a key. Where many small files have come together in a folder, whoever writes next puts them into one.
Files appear by renaming and are named by the keys in them, so any number of processes may read, write and merge at
once: the worst that can happen is that a vector is computed, or stands there, twice.
"""

from __future__ import annotations

import hashlib
import os
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

MOST_FILES = 8
"""Files of about the same size in a folder; with more of them they are merged."""
_GROUP_ROWS = 128  # keys are sorted in a file, so a key can be in one row group only
_TRIES = 3


def read(folder: Path | None, keys: Collection[str]) -> dict[str, np.ndarray]:
    """Those of the keys that are known, with their (E,) float32 vectors; damaged files know nothing.

    Args:
        folder: of the cache; None, or one that does not exist, is empty.
        keys: in lower-case hexadecimal digits.
    """
    if folder is None or not keys or not folder.is_dir():
        return {}
    wanted = defaultdict(list)
    every = sorted(set(keys))
    for key in every:
        wanted[key[0]].append(key)
    found = _read_folder(folder, every)
    for digit, some in wanted.items():
        found.update(_read_folder(folder / digit, some))
    return found


def write(folder: Path | None, fresh: Mapping[str, np.ndarray]) -> None:
    """Adds vectors; readers see each file whole or not at all."""
    if folder is None:
        return
    keys = defaultdict(list)
    for key in sorted(fresh):
        keys[key[0]].append(key)
    for digit, some in keys.items():
        _write_file(folder / digit, _table(some, [fresh[key] for key in some]))
        _merge(folder / digit)


def _read_folder(folder: Path, keys: Sequence[str]) -> dict[str, np.ndarray]:
    import pyarrow as pa

    found: dict[str, np.ndarray] = {}
    seen: set[Path] = set()
    for _ in range(_TRIES):
        vanished = False
        for file in sorted(folder.glob("*.parquet")):
            if file in seen:
                continue
            try:
                for table in _hits(file, keys):
                    vectors = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
                    vectors = vectors.astype(np.float32, copy=False).reshape(table.num_rows, -1)
                    found.update(zip(table["key"].to_pylist(), vectors, strict=True))
            except FileNotFoundError:
                vanished = True  # merged into another, which is there by now
                continue
            except (pa.ArrowException, OSError, KeyError, ValueError):
                pass  # damaged, or not ours
            seen.add(file)
        if not vanished:
            break
    return found


def _hits(file: Path, keys: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of the keys, which come sorted, a table for each row group that has any."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = pa.array(keys, pa.string())
    with file.open("rb") as stream:
        stored = pq.ParquetFile(stream)
        column = stored.schema_arrow.names.index("key")
        for number in range(stored.num_row_groups):
            bounds = stored.metadata.row_group(number).column(column).statistics
            if bounds is not None and bounds.has_min_max:
                at = bisect_left(keys, bounds.min)
                if at == len(keys) or keys[at] > bounds.max:
                    continue
            here = pc.is_in(stored.read_row_group(number, columns=["key"])["key"], wanted)
            if pc.any(here).as_py():
                yield stored.read_row_group(number, columns=["key", "vector"]).filter(here)


def _merge(folder: Path) -> None:
    """Many files of about the same size into one, so that their number grows with the logarithm of what they hold."""
    alike = defaultdict(list)
    for file in folder.glob("*.parquet"):
        with suppress(FileNotFoundError):
            alike[file.stat().st_size.bit_length() // 3].append(file)  # a factor of 8
    for files in alike.values():
        if len(files) <= MOST_FILES:
            continue
        rows: dict[str, np.ndarray] = {}
        read_of = [file for file in files if _add_all(file, rows)]
        if len(read_of) < 2:
            continue
        keys = sorted(rows)
        merged = _write_file(folder, _table(keys, [rows[key] for key in keys]))
        for file in read_of:
            if file != merged:
                file.unlink(missing_ok=True)


def _add_all(file: Path, rows: dict[str, np.ndarray]) -> bool:
    """Whether the file's rows could be added; not where another process has merged it, or it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open("rb") as stream:
            table = pq.ParquetFile(stream).read(columns=["key", "vector"])
        rows.update(zip(table["key"].to_pylist(), table["vector"].to_numpy(), strict=True))
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return False
    return True


def _table(keys: Sequence[str], vectors: Sequence[np.ndarray]) -> pa.Table:
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, vectors)])
    values = pa.array(np.concatenate([np.asarray(v, dtype=np.float32) for v in vectors]))
    return pa.table(
        {"key": list(keys), "vector": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)}
    )


def _write_file(folder: Path, table: pa.Table) -> Path:
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256("".join(table["key"].to_pylist()).encode()).hexdigest()[:24]
    partial = folder / f".{name}-{os.getpid()}-{threading.get_ident()}.partial"
    # Numbers of a network hardly repeat: neither a dictionary nor compression makes them smaller.
    pq.write_table(table, partial, row_group_size=_GROUP_ROWS, compression="none", use_dictionary=False)
    target = folder / f"{name}.parquet"
    partial.replace(target)
    return target
