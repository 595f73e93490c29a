"""Events that wait on disk until they can be delivered: appended at the end, taken from the front.

    <folder>/<time>-<pid>-<random>/lock          held (flock) by the process that the queue belongs to
    <folder>/<time>-<pid>-<random>/100000001.jsonl  segments: whole lines, oldest first; removed when delivered

A queue whose process has died is not locked, so the next client with the same folder takes it over and delivers it
first. What had been delivered of a segment that was not yet removed is then delivered again: at least once, and
events carry ids. A last line that was cut off by the death of its writer is counted as torn and left out.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SEGMENT_BYTES = 16 << 20


class Chunk(NamedTuple):
    """Lines from the front of the queue.

    Attributes:
        lines: Without line ends.
        size: Bytes that they take up in the segment.
        adopted: Whether another process left them.
        torn: Lines among these bytes that were cut off.
    """

    lines: list[bytes]
    size: int
    adopted: bool
    torn: int


@dataclass(slots=True)
class _Segment:
    path: Path
    size: int
    """Bytes of whole lines."""
    adopted: bool
    read: int = 0
    """Bytes delivered."""


@dataclass(slots=True)
class _Queue:
    """A folder that this process holds the lock of."""

    folder: Path
    lock: int
    segments: deque[_Segment]
    count: int = 10**8
    """Number of the newest segment; lower ones are free for lines that go before all others."""

    @property
    def waits(self) -> bool:
        """Whether a line in it is not delivered."""
        return any(segment.read < segment.size for segment in self.segments)


class Spill:
    """One process' queue, and those it has taken over. Not thread-safe: the caller holds a lock.

    Args:
        folder: Where queues are; made when first needed, readable by this user only.
        max_bytes: Most bytes below `folder`, those of other processes included.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._own: _Queue | None = None
        self._taken: deque[_Queue] = deque()
        self._writing: int | None = None
        self._known_bytes, self._looked_s = 0, 0.0

    @property
    def empty(self) -> bool:
        """Whether nothing waits, here or in what was taken over."""
        return self.size_bytes == 0

    @property
    def size_bytes(self) -> int:
        """Bytes that wait."""
        queues = [*self._taken, *([self._own] if self._own else [])]
        return sum(segment.size - segment.read for queue in queues for segment in queue.segments)

    def append(self, lines: list[bytes]) -> bool:
        """Writes lines behind all others; they survive the death of this process when this returns.

        Returns:
            False where they cannot be kept: the disk or the limit is full. Then none of them is.
        """
        data = b"\n".join(lines) + b"\n"
        if not self._fits(len(data)):
            return False
        try:
            segment = self._segment_for(len(data))
        except OSError:
            return False
        assert self._writing is not None
        try:
            written = os.write(self._writing, data)
        except OSError:
            written = -1
        if written == len(data):
            segment.size += written
            self._known_bytes += written
            return True
        # The disk is full: back to whole lines. Where even that fails, the rest is one torn line at the end.
        try:
            os.ftruncate(self._writing, segment.size)
        except OSError:
            self._stop_writing()
        return False

    def prepend(self, lines: list[bytes]) -> bool:
        """Writes lines before all others of this process: they were taken first, and came back.

        Returns:
            As `append`.
        """
        if self._own is None or not self._own.waits:
            return self.append(lines)
        data = b"\n".join(lines) + b"\n"
        if not self._fits(len(data)):
            return False
        number = int(self._own.segments[0].path.stem) - 1
        path = self._own.folder / f"{number:09d}.jsonl"
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)
            return False
        self._own.segments.appendleft(_Segment(path, len(data), adopted=False))
        self._known_bytes += len(data)
        return True

    def _fits(self, size: int) -> bool:
        """Looks at the whole folder, but only when the limit seems reached and at most once a second."""
        if self._known_bytes + size <= self.max_bytes:
            return True
        if time.monotonic() - self._looked_s < 1.0:
            return False
        self._looked_s = time.monotonic()
        self._known_bytes = self._bytes_below()
        return self._known_bytes + size <= self.max_bytes

    def _bytes_below(self) -> int:
        total = 0
        for path in self.folder.glob("*/*.jsonl"):
            with suppress(OSError):  # delivered and removed in between
                total += path.stat().st_size
        return total

    def _segment_for(self, size: int) -> _Segment:
        """The segment to write to, a new one where the last is full or closed."""
        if self._own is None:
            self._own = self._create()
            self._known_bytes = self._bytes_below()
        segments = self._own.segments
        if self._writing is not None and segments and segments[-1].size + size <= SEGMENT_BYTES:
            return segments[-1]
        self._stop_writing()
        self._own.count += 1
        path = self._own.folder / f"{self._own.count:09d}.jsonl"
        self._writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        segments.append(_Segment(path, 0, adopted=False))
        return segments[-1]

    def set_aside(self, line: bytes) -> None:
        """Keeps what the receiver will never take, in `refused.jsonl`, for a person to look at.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / "refused.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)

    def head(self, max_bytes: int) -> Chunk | None:
        """The oldest lines, at least one and otherwise at most so many bytes; None when nothing waits."""
        queue = self._front()
        if queue is None:
            return None
        segment = queue.segments[0]
        with segment.path.open("rb") as file:
            file.seek(segment.read)
            data = file.read(min(max_bytes, segment.size - segment.read))
            if not data.endswith(b"\n") and segment.read + len(data) < segment.size:
                cut = data.rfind(b"\n") + 1
                data = data[:cut] if cut else data + file.readline()
        lines = [line for line in data.split(b"\n") if line]
        whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        return Chunk(whole, len(data), segment.adopted, len(lines) - len(whole))

    def _front(self) -> _Queue | None:
        """The queue whose turn it is, its first segment not yet delivered; removes what is finished with."""
        while self._taken and not self._taken[0].waits:
            self._remove(self._taken.popleft())
        queue = self._taken[0] if self._taken else self._own
        if queue is None or not queue.waits:
            return None
        while queue.segments[0].read >= queue.segments[0].size:
            queue.segments.popleft().path.unlink(missing_ok=True)
        return queue

    def done(self, chunk: Chunk) -> None:
        """The oldest lines were delivered; a segment goes when all of it was."""
        queue = self._front()
        if queue is None:
            return
        segment = queue.segments[0]
        segment.read += chunk.size
        if segment.read < segment.size:
            return
        if queue is self._own and len(queue.segments) == 1 and self._writing is not None:
            # Emptied and not removed: with little to do a file for each event would be made.
            os.ftruncate(self._writing, 0)
            segment.read = segment.size = 0
            return
        queue.segments.popleft()
        segment.path.unlink(missing_ok=True)
        self._front()

    def adopt(self) -> int:
        """Takes over what processes that died have left; returns the number of their queues."""
        if not self.folder.is_dir():
            return 0
        held = {queue.folder for queue in self._taken} | ({self._own.folder} if self._own else set())
        taken = 0
        for folder in sorted(path for path in self.folder.iterdir() if path not in held):
            lock = _lock(folder)
            if lock is None:
                continue
            # A file that was written by nobody any more has its final size.
            paths = sorted(folder.glob("*.jsonl"))
            segments = deque(_Segment(p, p.stat().st_size, adopted=True) for p in paths if p.stat().st_size)
            queue = _Queue(folder, lock, segments)
            if segments:
                self._taken.append(queue)
                taken += 1
            else:
                self._remove(queue)
        return taken

    def writing(self) -> int | None:
        """A descriptor of the segment that is written to, for the caller to fsync and close."""
        return None if self._writing is None else os.dup(self._writing)

    def close(self) -> None:
        """Gives up all locks; what waits stays for another process, or a later one."""
        self._front()
        self._stop_writing()
        if self._own is not None and not self._own.waits:
            self._remove(self._own)
        elif self._own is not None:
            os.close(self._own.lock)
        for queue in self._taken:
            os.close(queue.lock)
        self._own, self._taken = None, deque()

    def forget(self) -> None:
        """In a child process: closes its copies of the descriptors and leaves the files to the parent.

        Closing a copy does not release the parent's lock, as unlocking would.
        """
        queues = [*self._taken, *([self._own] if self._own else [])]
        for descriptor in [queue.lock for queue in queues] + [self._writing]:
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)
        self._own, self._taken, self._writing = None, deque(), None

    def _create(self) -> _Queue:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            name = f"{time.time_ns():020d}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            folder = self.folder / name
            folder.mkdir(mode=0o700)
            lock = _lock(folder)
            if lock is not None:
                return _Queue(folder, lock, deque())
            # Another process took the empty folder for one left behind, and removes it.

    def _stop_writing(self) -> None:
        if self._writing is not None:
            os.close(self._writing)
        self._writing = None

    def _remove(self, queue: _Queue) -> None:
        """Removes an empty queue while its lock is held, so that nobody takes it over in between."""
        shutil.rmtree(queue.folder, ignore_errors=True)
        os.close(queue.lock)


def _lock(folder: Path) -> int | None:
    """Descriptor of the lock of a queue, or None where it is held or gone."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    if os.fstat(descriptor).st_nlink == 0:  # removed between opening and locking
        os.close(descriptor)
        return None
    return descriptor
