"""Files that events wait in: segments of whole lines, in the folder of a queue that one process holds the lock of.

A segment keeps its file open, so that what somebody deletes or moves while it waits can still be read, and is
written anew where it belongs (`restore`). A queue keeps a lock (flock), which ends with its process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_COPY_BYTES = 1 << 20


class Chunk(NamedTuple):
    """Lines from the front of the queue.

    Attributes:
        lines: Without line ends.
        size: Bytes that they take up in the segment.
        adopted: Whether another process left them.
        torn: Lines among these bytes that were cut off, or cannot be read any more.
    """

    lines: list[bytes]
    size: int
    adopted: bool
    torn: int


@dataclass(slots=True, eq=False)
class Segment:
    """One file.

    Attributes:
        path: Where it is.
        size: Bytes of whole lines.
        adopted: Whether another process wrote it.
        file: Its descriptor, or None where too many are open.
        lines: Lines that wait in it; 0 where another process wrote it.
        read: Bytes delivered.
        whole: Whether it ends with a line end, so that lines may be added.
        dirty: Whether something was written since the last fsync.
    """

    path: Path
    size: int
    adopted: bool
    file: int | None
    lines: int = 0
    read: int = 0
    whole: bool = True
    dirty: bool = False

    @classmethod
    def new(cls, path: Path, exclusive: bool = False) -> Segment:
        """An empty one. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_EXCL if exclusive else os.O_TRUNC)
        return cls(path, 0, adopted=False, file=os.open(path, flags, 0o600))

    def append(self, data: bytes, lines: int) -> None:
        """Adds whole lines, or none: also where the disk is full, or a signal handler raises in the midst of it.

        Raises:
            OSError: they cannot be written.
        """
        assert self.file is not None
        before = self.size
        try:
            if os.write(self.file, data) == len(data):
                self.size += len(data)
                self.lines += lines
                self.dirty = True
        finally:
            if self.size == before:
                self._cut()
        if self.size == before:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _cut(self) -> None:
        """Back to whole lines. Where even that fails, the rest is one torn line at the end."""
        assert self.file is not None
        try:
            os.ftruncate(self.file, self.size)
        except OSError:
            self.whole = False

    def head(self, max_bytes: int) -> Chunk:
        """The next lines, at least one and otherwise at most so many bytes. Raises OSError."""
        rest = self.size - self.read
        wanted = min(max_bytes, rest)
        while True:
            data = self._bytes(wanted)
            cut = data.rfind(b"\n") + 1
            vanished = len(data) < wanted
            if vanished or cut or wanted == rest:
                break
            wanted = min(2 * wanted, rest)
        if vanished or wanted == rest:
            size = rest
        else:
            data, size = data[:cut], cut
        lines = [line for line in data.split(b"\n") if line]
        whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        torn = len(lines) - len(whole)
        if vanished and not self.adopted:
            torn = max(self.lines - len(whole), torn)
        return Chunk(whole, size, self.adopted, torn)

    def _bytes(self, size: int) -> bytes:
        if self.file is not None:
            return os.pread(self.file, size, self.read)
        try:
            with self.path.open("rb") as file:
                file.seek(self.read)
                return file.read(size)
        except FileNotFoundError:
            return b""

    @property
    def gone(self) -> bool:
        """Whether somebody deleted or moved the file, which can still be read."""
        return self.file is not None and misplaced(self.path, self.file)

    def restore(self, folder: Path) -> None:
        """Writes what waits in it anew. Raises OSError; nothing has changed then."""
        assert self.file is not None
        fresh, offset = Segment.new(folder / self.path.name), self.read
        try:
            while offset < self.size and (data := os.pread(self.file, _COPY_BYTES, offset)):
                data = data[: self.size - offset]
                fresh.append(data, 0)
                offset += len(data)
        except BaseException:
            fresh.close()
            fresh.path.unlink(missing_ok=True)
            raise
        self.close()
        self.path, self.file, self.size, self.read, self.dirty = fresh.path, fresh.file, fresh.size, 0, True

    def remove(self) -> OSError | None:
        """Removes the file; where that fails empties it, so that nobody delivers it again. Returns the failure."""
        failure = None
        try:
            self.path.unlink(missing_ok=True)
        except OSError as problem:
            failure = problem
            with suppress(OSError):
                os.truncate(self.path if self.file is None else self.file, 0)
        self.close()
        return failure

    def close(self) -> None:
        """Lets go of the file."""
        descriptor, self.file = self.file, None
        close(descriptor)


@dataclass(slots=True, eq=False)
class Queue:
    """A folder that this process holds the lock of.

    Attributes:
        folder: Where its segments are made.
        lock: Descriptor of the lock.
        segments: Oldest first.
        count: Number of the newest segment; lower ones are free for lines that go before all others.
    """

    folder: Path
    lock: int
    segments: deque[Segment] = field(default_factory=deque)
    count: int = 10**8

    @classmethod
    def new(cls, root: Path) -> Queue:
        """An empty one below a folder, which is made too. Raises OSError."""
        while True:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = root / f"{time.time_ns():020d}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            folder.mkdir(mode=0o700)
            try:
                descriptor = lock(folder)
            except OSError:
                with suppress(OSError):
                    (folder / "lock").unlink(missing_ok=True)
                    folder.rmdir()
                raise
            if descriptor is not None:
                return cls(folder, descriptor)
            # Another process took the empty folder for one left behind, and removes it.

    @property
    def waits(self) -> bool:
        """Whether a line in it is not delivered."""
        return any(segment.read < segment.size for segment in self.segments)

    @property
    def gone(self) -> bool:
        """Whether somebody deleted or moved the folder."""
        return misplaced(self.folder / "lock", self.lock)

    def restore(self, root: Path, at_most: int) -> int:
        """Makes a folder again that is gone, and some of the files that are; returns how many. Raises OSError."""
        if self.gone:
            fresh = Queue.new(root)
            close(self.lock)
            self.folder, self.lock = fresh.folder, fresh.lock
        restored = 0
        for segment in self.segments:
            if restored < at_most and segment.gone:
                segment.restore(self.folder)
                restored += 1
        return restored

    def close(self) -> None:
        """Lets go of the files, then of the lock."""
        for segment in self.segments:
            segment.close()
        close(self.lock)


def lock(folder: Path) -> int | None:
    """Descriptor of the lock of a queue, or None where it is held or gone.

    Raises:
        OSError: there can be no lock now.
    """
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # else removed between opening and locking
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        close(descriptor)
        raise
    close(descriptor)
    return None


def misplaced(path: Path, descriptor: int) -> bool:
    """Whether an open file is not, or no longer, what stands at its path."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def close(descriptor: int | None) -> None:
    """Closes a descriptor; a failure is of no use to anybody."""
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)
