"""Vectors on disk: what is written is found, whoever else writes, whatever else lies there."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reward_models import embedding_cache


def key(n: int) -> str:
    return hashlib.sha256(str(n).encode()).hexdigest()


def vectors(numbers: Iterable[int], width: int = 5) -> dict[str, np.ndarray]:
    return {key(n): np.full(width, n / 7, dtype=np.float32) for n in numbers}


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[k], wanted[k]) for k in wanted)


def write_old(folder: Path, name: str, rows: dict[str, np.ndarray]) -> None:
    """A file as palate wrote them before there were folders."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = pa.array([v.tolist() for v in rows.values()], pa.list_(pa.float32()))
    pq.write_table(pa.table({"key": list(rows), "vector": lists}), folder / f"{name}.parquet")


def test_what_was_written_is_found_and_nothing_else(tmp_path: Path) -> None:
    embedding_cache.write(tmp_path / "c", vectors(range(200)))
    embedding_cache.write(tmp_path / "c", vectors(range(200, 230)))
    wanted = vectors([3, 77, 199, 205])
    found = embedding_cache.read(tmp_path / "c", [*wanted, key(999)])
    assert same(found, wanted)
    assert all(v.dtype == np.float32 for v in found.values())
    assert not list(tmp_path.rglob("*.partial"))


def test_no_folder_no_keys_or_no_vectors_is_an_empty_cache(tmp_path: Path) -> None:
    assert embedding_cache.read(None, [key(1)]) == {}
    assert embedding_cache.read(tmp_path / "none", [key(1)]) == {}
    embedding_cache.write(None, vectors([1]))
    embedding_cache.write(tmp_path / "c", {})
    assert not (tmp_path / "c").exists()
    embedding_cache.write(tmp_path / "c", vectors([1]))
    assert embedding_cache.read(tmp_path / "c", []) == {}


def test_only_folders_that_can_hold_a_key_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedding_cache.write(tmp_path, vectors(range(300)))
    assert len(list(tmp_path.glob("?/*.parquet"))) == 16
    opened: list[str] = []
    hits = embedding_cache._hits
    monkeypatch.setattr(
        embedding_cache, "_hits", lambda file, keys: opened.append(file.parent.name) or hits(file, keys)
    )
    assert same(embedding_cache.read(tmp_path, [key(5)]), vectors([5]))
    assert opened == [key(5)[0]]


def test_files_of_before_are_read_and_left_alone(tmp_path: Path) -> None:
    write_old(tmp_path, "old", vectors(range(20)))
    write_old(tmp_path, "other-base", vectors(range(50, 60), width=9))
    embedding_cache.write(tmp_path, vectors(range(20, 40)))
    wanted = vectors([1, 19, 20, 39])
    assert same(embedding_cache.read(tmp_path, list(wanted)), wanted)
    assert embedding_cache.read(tmp_path, [key(55)])[key(55)].shape == (9,)
    assert (tmp_path / "old.parquet").is_file()


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "other columns", "no vector"])
def test_damaged_files_know_nothing_and_stop_nobody(damage: str, tmp_path: Path) -> None:
    digit = key(1)[0]
    some = [n for n in range(2000) if key(n)[0] == digit][:40]
    embedding_cache.write(tmp_path, vectors(some[:20]))
    (file,) = tmp_path.rglob("*.parquet")
    bad = file.with_name("bad.parquet")
    if damage == "cut":
        bad.write_bytes(file.read_bytes()[:-50])
    elif damage == "other columns":
        pq.write_table(pa.table({"a": [1]}), bad)
    elif damage == "no vector":
        pq.write_table(pa.table({"key": [key(some[0])]}), bad)
    else:
        bad.write_bytes(b"" if damage == "empty" else b"hello")
    for n in some[20:]:  # enough of them to be merged
        embedding_cache.write(tmp_path, vectors([n]))
    assert same(embedding_cache.read(tmp_path, [key(n) for n in some]), vectors(some))
    assert bad.is_file()


def test_many_small_writes_become_few_files(tmp_path: Path) -> None:
    some = [n for n in range(5000) if key(n)[0] == "a"][:200]
    for n in some:
        embedding_cache.write(tmp_path, vectors([n], width=600))
    assert len(list(tmp_path.rglob("*.parquet"))) < 30
    assert same(embedding_cache.read(tmp_path, [key(n) for n in some]), vectors(some, width=600))


def test_vectors_of_two_bases_are_merged_and_found(tmp_path: Path) -> None:
    some = [n for n in range(3000) if key(n)[0] == "b"][:30]
    for n in some:
        embedding_cache.write(tmp_path, vectors([n], width=3 + n % 2))
    for n in some:
        assert embedding_cache.read(tmp_path, [key(n)])[key(n)].shape == (3 + n % 2,)


def test_merging_into_a_file_that_is_there_already_loses_nothing(tmp_path: Path) -> None:
    some = [n for n in range(3000) if key(n)[0] == "c"][:12]
    for numbers in (
        some,
        *([n] for n in some),
    ):  # the first has the keys of all, and so the name of what is merged
        embedding_cache.write(tmp_path, vectors(numbers))
    assert len(list(tmp_path.rglob("*.parquet"))) < 13
    assert same(embedding_cache.read(tmp_path, [key(n) for n in some]), vectors(some))


def _write_some(folder: Path, first: int) -> None:
    for n in range(first, first + 60):
        embedding_cache.write(folder, vectors([n, n + 1, n + 2]))


def test_processes_and_threads_write_merge_and_read_at_once(tmp_path: Path) -> None:
    embedding_cache.write(tmp_path, vectors(range(40)))
    fork = get_context("spawn")
    writers = [fork.Process(target=_write_some, args=(tmp_path, 100 * k)) for k in range(2)]
    threads = [threading.Thread(target=_write_some, args=(tmp_path, 30)) for _ in range(2)]
    for one in [*writers, *threads]:
        one.start()
    while any(one.is_alive() for one in [*writers, *threads]):
        assert same(embedding_cache.read(tmp_path, list(vectors(range(40)))), vectors(range(40)))
    for one in [*writers, *threads]:
        one.join()
    assert all(one.exitcode == 0 for one in writers)
    wanted = vectors([*range(92), *range(100, 162)])
    assert same(embedding_cache.read(tmp_path, list(wanted)), wanted)
