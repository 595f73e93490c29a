"""Where things lie in a workspace, and the few ways in which they are written.

A reader never sees a half-written thing: a file is written under another name, fsynced and renamed; work in
progress lies in `staging/`, in folders that their owner keeps locked. A folder whose lock is free belonged to
a process that died, so the next one removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LOCK_NAME = ".lock"


@dataclass(frozen=True)
class Layout:
    """Paths below one workspace directory."""

    root: Path

    @property
    def events(self) -> Path:
        """Delta table of events and dead letters, partitioned by `kind`; its log also holds the offsets."""
        return self.root / "tables" / "events"

    @property
    def datasets(self) -> Path:
        """One folder per dataset version, and the file `newest` that names the last one built."""
        return self.root / "datasets"

    @property
    def staging(self) -> Path:
        """Work in progress; nothing in it is ever read as a result."""
        return self.root / "staging"


def fsync_path(path: Path) -> None:
    """Asks the operating system to put a file, or a folder's list of names, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader finds the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds an exclusive lock on a file. The kernel frees it when the process dies.

    Raises:
        BlockingIOError: another process holds it, and `wait` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


@contextmanager
def staging_folder(layout: Layout, purpose: str) -> Iterator[Path]:
    """A fresh folder below `staging/`, locked while in use and removed afterwards."""
    layout.staging.mkdir(parents=True, exist_ok=True)
    folder = layout.staging / f"{purpose}-{uuid.uuid4().hex}"
    # Under the outer lock, so that a sweeping process never meets the folder before its lock is taken.
    with locked(layout.staging / _LOCK_NAME):
        _sweep(layout.staging)
        folder.mkdir()
        stream = (folder / _LOCK_NAME).open("a")
        fcntl.flock(stream, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        stream.close()


def sweep_staging(layout: Layout, *, dry_run: bool = False) -> list[tuple[Path, int]]:
    """Removes what dead processes left in `staging/`, and tells each folder with its size in bytes."""
    layout.staging.mkdir(parents=True, exist_ok=True)
    with locked(layout.staging / _LOCK_NAME):
        return _sweep(layout.staging, dry_run)


def _sweep(staging: Path, dry_run: bool = False) -> list[tuple[Path, int]]:
    """Removes the folders whose owner is dead."""
    found: list[tuple[Path, int]] = []
    for folder in staging.iterdir():
        if not folder.is_dir():
            continue
        try:
            with (folder / _LOCK_NAME).open("a") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append((folder, _bytes_below(folder)))
                if not dry_run:
                    shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # its owner is alive
        except OSError:
            found.append((folder, _bytes_below(folder)))
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)  # killed before it had its lock file
    return found


def _bytes_below(folder: Path) -> int:
    """Size of a folder's files; of what vanishes meanwhile nothing is counted."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
