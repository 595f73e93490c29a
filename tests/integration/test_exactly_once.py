"""Killed at any instant and run again, ingest and build leave what an undisturbed run leaves."""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from pipelines import dataset, events_table, fates
from pipelines.build import build, load
from pipelines.errors import DiskFullError
from pipelines.groups_store import store
from pipelines.ingest import ingest
from pipelines.ledger import balance
from pipelines.workspace import Layout
from tests.unit.pipelines.made import NOW, history, write

ROOT = Path(__file__).parents[2]
EVENTS = history(240)
DEADLY = -9


class Victims:
    """The program of `victims.py`, which runs what it is told in processes that die."""

    def __init__(self, errors: IO[str]) -> None:
        self.errors = errors
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.victims"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def follow(self, plan: list[dict[str, Any]], workspace: Path, folder: Path) -> list[list[int]]:
        """Works through a plan; gives the exit codes of each run."""
        assert self.process.stdin is not None and self.process.stdout is not None
        codes = []
        for step in plan:
            self.process.stdin.write(
                json.dumps({**step, "workspace": str(workspace), "folder": str(folder)}) + "\n"
            )
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
            self.errors.seek(0)
            said = self.errors.read()
            assert answer and "Traceback" not in said, said
            codes.append(json.loads(answer))
        return codes


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    with (tmp_path_factory.mktemp("victims") / "errors").open("w+") as errors:
        program = Victims(errors)
        try:
            yield program
        finally:
            program.process.kill()
            program.process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of events, with some events in both and two lines that are no events."""
    folder = tmp_path_factory.mktemp("in")
    write(folder / "a.jsonl", EVENTS[:150])
    second = write(folder / "b.jsonl", EVENTS[130:])
    second.write_bytes(b"{broken\n" + second.read_bytes() + b"[]\n")
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    workspace = tmp_path_factory.mktemp("undisturbed") / "w"
    ingest(folder, source="palate_jsonl", workspace=workspace, now=NOW)
    build(workspace=workspace)
    return state(workspace)


def state(workspace: Path) -> dict[str, Any]:
    """Everything a reader can see of a workspace, without the names of files."""
    layout = Layout(workspace)
    remembered = store.read_state(layout)
    assert remembered is not None
    assert {path.name for path in store.folder(layout).glob("segment-*")} >= set(remembered.segments)
    rows = events_table.open_table(layout).to_pyarrow_table().to_pylist()
    assert [path.name for path in layout.staging.iterdir() if path.is_dir()] == []
    assert dataset.versions(workspace) == [load(workspace).version]
    return {
        "events": sorted((row["partition"], row["offset"], row["kind"], row["digest"]) for row in rows),
        "fates": Counter(
            json.dumps(row, sort_keys=True, default=str) for row in fates.read(layout).to_pylist()
        ),
        "version": load(workspace).version,
        "rows": load(workspace).rows().to_pylist(),
        "ledger": balance(workspace),
    }


def test_killed_at_every_point_that_matters(
    tmp_path: Path, victims: Victims, folder: Path, undisturbed: dict[str, Any]
) -> None:
    plan: list[dict[str, Any]] = [
        {"at": "after reading a batch", "nth": 2},
        {"at": "before the first file"},
        {"at": "before a commit"},
        {"at": "between moving files and committing", "nth": 2},
        {"at": "after a commit"},
        {"at": "before a commit", "nth": 2},
        {"at": "after a commit", "nth": 1},
        {"at": "while a segment is written"},
        {"at": "before the dataset"},
        {"at": "while the dataset is written", "nth": 2},
        {"at": "between dataset and segment"},
        {"at": "between segment and state"},
        {"at": "between state and newest"},
    ]
    codes = victims.follow([*plan, {}], tmp_path / "w", folder)
    assert codes == [[DEADLY]] * len(plan) + [[0]]
    assert state(tmp_path / "w") == undisturbed


def test_killed_at_random_moments(
    tmp_path: Path, victims: Victims, folder: Path, undisturbed: dict[str, Any]
) -> None:
    draw = random.Random(7)
    plan = [{"after_s": round(draw.uniform(0.0, 1.5), 3)} for _ in range(10)]
    codes = victims.follow([*plan, {}], tmp_path / "w", folder)
    assert codes[-1] == [0] and {code for (code,) in codes[:-1]} <= {DEADLY, 0}
    assert state(tmp_path / "w") == undisturbed


def test_two_at_once(tmp_path: Path, victims: Victims, folder: Path, undisturbed: dict[str, Any]) -> None:
    assert victims.follow([{"together": 2}], tmp_path / "w", folder) == [[0, 0]]
    assert state(tmp_path / "w") == undisturbed


@contextmanager
def small_files(limit_bytes: int) -> Iterator[None]:
    """No file may grow beyond the limit: to a program the same as a disk that is full at that moment."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit_bytes", [0, 8_000])
def test_no_room_for_a_file(
    tmp_path: Path, folder: Path, undisturbed: dict[str, Any], limit_bytes: int
) -> None:
    workspace = tmp_path / "w"
    with small_files(limit_bytes), pytest.raises(DiskFullError, match="No space"):
        ingest(folder, source="palate_jsonl", workspace=workspace, now=NOW)
    assert ingest(folder, source="palate_jsonl", workspace=workspace, now=NOW).received == len(
        undisturbed["events"]
    )
    with small_files(limit_bytes), pytest.raises(DiskFullError, match="palate build"):
        build(workspace=workspace)
    build(workspace=workspace)
    assert state(workspace) == undisturbed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path, folder: Path, undisturbed: dict[str, Any]) -> None:
    workspace = small_disk / "w"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 232_000)
    with pytest.raises(DiskFullError, match="No space"):
        ingest(folder, source="palate_jsonl", workspace=workspace, now=NOW)
    filler.unlink()
    ingest(folder, source="palate_jsonl", workspace=workspace, now=NOW)
    filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 8_192))
    with pytest.raises(DiskFullError, match="palate build"):
        build(workspace=workspace)
    assert balance(workspace).balanced
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    build(workspace=workspace)
    assert state(workspace) == undisturbed
