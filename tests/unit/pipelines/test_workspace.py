"""Staging folders, atomic files, locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.workspace import Layout, staging_folder, write_atomically

HOLD = """
import sys, time
from pathlib import Path
from pipelines.workspace import Layout, staging_folder
with staging_folder(Layout(Path(sys.argv[1])), "test") as folder:
    (folder / "half").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def _hold(workspace: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(workspace)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_staging_folder_is_gone_afterwards(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(KeyError), staging_folder(layout, "test") as folder:
        (folder / "x").write_text("x")
        raise KeyError
    assert not folder.exists()


def test_folders_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path: Path) -> None:
    dead, folder_of_dead = _hold(tmp_path)
    alive, folder_of_alive = _hold(tmp_path)
    try:
        os.kill(dead.pid, signal.SIGKILL)
        dead.wait()
        assert folder_of_dead.is_dir()
        with staging_folder(Layout(tmp_path), "test"):
            assert not folder_of_dead.exists()
            assert (folder_of_alive / "half").exists()
    finally:
        alive.kill()
        alive.wait()


def test_a_failed_atomic_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "newest"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["newest"]
