"""Events that wait on disk until they can be delivered: appended at the end, taken from the front.

    <folder>/<time>-<pid>-<random>/lock          held (flock) by the process that the queue belongs to
    <folder>/<time>-<pid>-<random>/100000001.jsonl  segments: whole lines, oldest first; removed when delivered

A queue whose process has died is not locked, so the next client with the same folder takes it over and delivers it
first. What had been delivered of a segment that was not yet removed is then delivered again: at least once, and
events carry ids. A last line that was cut off by the death of its writer is counted as torn and left out.

What somebody deletes or moves while it waits is written anew (`restore`). What was delivered and cannot be removed
is emptied, and its queue kept from being taken over again while this process lives.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from palate.client_segments import Chunk, Queue, Segment, close, lock

SEGMENT_BYTES = 16 << 20
OPEN_SEGMENTS = 64
"""Most segments whose files are kept open: as many as the default limit of a spill has."""


class Spill:
    """One process' queue, and those it has taken over. Not thread-safe: the caller holds a lock.

    Args:
        folder: Where queues are; made when first needed, readable by this user only.
        max_bytes: Most bytes below `folder`, those of other processes included.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self.complain: Callable[[str, str], None] = lambda *_: None
        self.why = ""  # why lines could not be kept, the last time
        self._own: Queue | None = None
        self._taken: deque[Queue] = deque()
        self._stuck: list[Queue] = []  # delivered, and not to be removed
        self._known_bytes, self._looked_s = 0, 0.0

    @property
    def empty(self) -> bool:
        """Whether nothing waits, here or in what was taken over."""
        return self.size_bytes == 0

    @property
    def size_bytes(self) -> int:
        """Bytes that wait."""
        return sum(segment.size - segment.read for segment in self._segments)

    def append(self, lines: list[bytes]) -> bool:
        """Writes lines behind all others; they survive the death of this process when this returns.

        Returns:
            False where they cannot be kept: the disk or the limit is full. Then none of them is.
        """
        data = b"\n".join(lines) + b"\n"
        try:
            if not self._fits(len(data)):
                return False
            self._segment_for(len(data)).append(data, len(lines))
        except OSError as problem:
            self.why = str(problem)
            return False
        self._known_bytes += len(data)
        return True

    def prepend(self, lines: list[bytes]) -> bool:
        """Writes lines before all others of this process: they were taken first, and came back.

        Returns:
            As `append`.
        """
        if self._own is None or not self._own.waits:
            return self.append(lines)
        data = b"\n".join(lines) + b"\n"
        segment: Segment | None = None
        try:
            if not self._fits(len(data)):
                return False
            self._present(self._own)
            number = int(self._own.segments[0].path.stem) - 1
            segment = Segment.new(self._own.folder / f"{number:09d}.jsonl", exclusive=True)
            segment.append(data, len(lines))
        except OSError as problem:
            self.why = str(problem)
            if segment is not None:
                segment.remove()
            return False
        self._own.segments.appendleft(segment)
        self._bound_files(segment)
        self._known_bytes += len(data)
        return True

    def _fits(self, size: int) -> bool:
        """Looks at the whole folder, but only when the limit seems reached and at most once a second."""
        if self._known_bytes + size <= self.max_bytes:
            return True
        self.why = f"the limit of {self.max_bytes} bytes is reached"
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

    def _segment_for(self, size: int) -> Segment:
        """The segment to write to, a new one where the last is full or cannot be written to."""
        if self._own is None:
            self._own = Queue.new(self.folder)
            self._known_bytes = self._bytes_below()
        self._present(self._own)
        segments = self._own.segments
        last = segments[-1] if segments else None
        if last is not None and last.file is not None and last.whole and last.size + size <= SEGMENT_BYTES:
            return last
        segment = Segment.new(self._own.folder / f"{self._own.count + 1:09d}.jsonl")
        self._own.count += 1
        segments.append(segment)
        if last is not None:
            self._bound_files(last)
        return segment

    @property
    def _queues(self) -> list[Queue]:
        return [*self._taken, *([self._own] if self._own else [])]

    @property
    def _segments(self) -> Iterator[Segment]:
        return (segment for queue in self._queues for segment in queue.segments)

    def _present(self, queue: Queue) -> None:
        if queue.gone:
            self.complain("deleted", f"Somebody removed {queue.folder}, where events wait; it is made again")
            queue.restore(self.folder, OPEN_SEGMENTS)

    def _bound_files(self, segment: Segment, known: int = 0) -> None:
        if known + sum(other.file is not None for other in self._segments) > OPEN_SEGMENTS:
            segment.close()

    def restore(self, at_most: int = 1) -> bool:
        """Writes anew what somebody deleted or moved while it waits; False where that is not possible now.

        Args:
            at_most: Files in this call, since each may be large.
        """
        try:
            for queue in self._queues:
                if queue.waits and queue.restore(self.folder, at_most):
                    self.complain("deleted", f"Somebody removed files of {self.folder}; they are made again")
        except OSError as problem:
            self.complain(
                "deleted", f"Somebody removed files of {self.folder}; not made again yet: {problem}"
            )
            return False
        return True

    def head(self, max_bytes: int) -> Chunk | None:
        """The oldest lines, at least one and otherwise at most so many bytes; None when nothing waits.

        Raises:
            OSError: they cannot be read.
        """
        queue = self._front()
        return None if queue is None else queue.segments[0].head(max_bytes)

    def _front(self) -> Queue | None:
        """The queue whose turn it is, its first segment not yet delivered; removes what is finished with."""
        while self._taken and not self._taken[0].waits:
            self._remove(self._taken.popleft())
        queue = self._taken[0] if self._taken else self._own
        if queue is None or not queue.waits:
            return None
        while queue.segments[0].read >= queue.segments[0].size:
            self._drop(queue.segments.popleft())
        return queue

    def done(self, chunk: Chunk) -> None:
        """The oldest lines were delivered; a segment goes when all of it was."""
        queue = self._front()
        if queue is None:
            return
        segment = queue.segments[0]
        segment.read += chunk.size
        segment.lines -= len(chunk.lines) + chunk.torn
        if segment.read < segment.size:
            return
        if queue is self._own and len(queue.segments) == 1 and segment.file is not None:
            # Emptied and not removed: with little to do a file for each event would be made.
            try:
                os.ftruncate(segment.file, 0)
                segment.read = segment.size = segment.lines = 0
            except OSError as problem:  # it counts as read, and what comes is written behind it
                self.complain(
                    "remove", f"What was delivered cannot be removed from {segment.path}: {problem}"
                )
            return
        self._drop(queue.segments.popleft())
        self._front()

    def _drop(self, segment: Segment) -> None:
        failure = segment.remove()
        if failure is not None:
            self.complain("remove", f"{segment.path} was delivered and cannot be removed: {failure}")

    def adopt(self) -> int:
        """Takes over what processes that died have left; returns the number of their queues. Raises OSError."""
        stuck, self._stuck = self._stuck, []
        for delivered in stuck:
            self._remove(delivered)
        if not self.folder.is_dir():
            return 0
        held = {queue.folder for queue in [*self._queues, *self._stuck]}
        taken = 0
        for folder in sorted(path for path in self.folder.iterdir() if path not in held):
            try:
                queue = self._take(folder)
            except OSError as problem:  # of another user, for instance
                self.complain("adopt", f"{folder} is left where it is: {problem}")
                continue
            if queue is not None and queue.segments:
                self._taken.append(queue)
                taken += 1
            elif queue is not None:
                self._remove(queue)
        return taken

    def _take(self, folder: Path) -> Queue | None:
        if folder.suffix == ".jsonl" or (descriptor := lock(folder)) is None:
            return None
        queue = Queue(folder, descriptor)
        try:
            # A file that was written by nobody any more has its final size.
            for path in sorted(folder.glob("*.jsonl")):
                if size := path.stat().st_size:
                    queue.segments.append(Segment(path, size, adopted=True, file=os.open(path, os.O_RDWR)))
                    self._bound_files(queue.segments[-1], len(queue.segments))
        except BaseException:
            queue.close()
            raise
        return queue

    def unsynced(self) -> list[int]:
        """Descriptors of what was written since the last call, for the caller to fsync and close. Raises OSError."""
        descriptors = []
        for segment in self._segments:
            if segment.dirty and segment.file is not None:
                descriptors.append(os.dup(segment.file))
            segment.dirty = False
        return descriptors

    def close(self) -> None:
        """Gives up all locks; what waits stays for another process, or a later one."""
        self._front()
        self.restore(at_most=1 << 30)
        if self._own is not None and not self._own.waits:
            self._remove(self._own)
        elif self._own is not None:
            self._own.close()
        for queue in [*self._taken, *self._stuck]:
            queue.close()
        self._own, self._taken, self._stuck = None, deque(), []

    def forget(self) -> None:
        """In a child process: closes its copies of the descriptors and leaves the files to the parent.

        Closing a copy does not release the parent's lock, as unlocking would.
        """
        for queue in [*self._queues, *self._stuck]:
            queue.close()
        self._own, self._taken, self._stuck = None, deque(), []

    def _remove(self, queue: Queue) -> None:
        """Removes an empty queue while its lock is held, so that nobody takes it over in between."""
        for segment in queue.segments:
            self._drop(segment)
        queue.segments.clear()
        shutil.rmtree(queue.folder, ignore_errors=True)
        try:
            stuck = any(path.stat().st_size for path in queue.folder.glob("*.jsonl"))
        except OSError:
            stuck = queue.folder.exists()
        if stuck:
            self._stuck.append(queue)  # and keeps the lock: whoever took it would deliver it again
        else:
            close(queue.lock)
