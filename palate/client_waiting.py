"""Lines that wait to be delivered: in memory, in flight or on disk, each in one place until the next has it.

put() ─▶ buffer in memory ─▶ in flight ─▶ receiver        while all is well
                │                ▲
                └──────▶ spill on disk                    while the receiver is away, slow, or the buffer fills
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from threading import RLock
from typing import Any

from palate.client_reentry import Complaints, held
from palate.client_segments import Chunk, close
from palate.client_spill import Spill

CHUNK_BYTES, CHUNK_LINES = 1 << 20, 1000
_PATIENCE_S = 0.5
"""Longest that a call waits for the disk, when the buffer is full; the event is refused after that."""
_LATE_LINES = 10_000
_FULL = "the buffer is full and the disk too slow"


class Waiting:
    """What waits, and what became of it. Threads share it.

    Args:
        spill: What keeps lines on disk.
        max_buffer_bytes: Most bytes in memory.
        durable: Lines go through the spill, so that they survive the death of the process as soon as `put` returns.
    """

    def __init__(self, spill: Spill, max_buffer_bytes: int, durable: bool) -> None:
        self.spill, self.max_buffer_bytes, self.durable = spill, max_buffer_bytes, durable
        # Spill and what is in flight; held for a write to disk, and taken before memory.
        self.gate = RLock()
        self.memory = RLock()  # the buffer; held for an instant
        self.buffered_bytes = 0
        self.up, self.closed = True, False  # up: the receiver answers, as far as is known
        self.accepted, self.finished = 0, 0
        self.counts: Counter[str] = Counter()
        self.complain = spill.complain = Complaints(lambda: self.interrupted)
        self._buffer: list[bytes] = []
        self._flight: list[bytes] | None = None
        self._late: deque[bytes] = deque()

    @property
    def interrupted(self) -> bool:
        """Whether this thread is inside here already: a signal handler, a finaliser or a log handler calls."""
        return held(self.memory) or held(self.gate)

    @property
    def crowded(self) -> bool:
        """Whether the buffer fills."""
        return self.buffered_bytes * 2 > self.max_buffer_bytes

    def put(self, line: bytes) -> bool:
        """Takes one line; False where neither memory nor disk has room for it."""
        if self.interrupted and len(self._late) < _LATE_LINES:
            self._late.append(line)  # taken in when the interrupted call goes on
            return True
        why = self._put(line)
        if self._late:
            with self.memory:
                self._admit_late()
            if self.durable:
                self.spill_memory()
        self.complain.catch_up()
        return self.refuse(why) if why else True

    def _put(self, line: bytes) -> str:
        """Why the line was not taken; empty where it was."""
        if self.durable:
            with self.gate:
                if not self.closed and self.spill.append([line]):
                    self.accepted += 1
                    return ""
                self.complain("full", f"The spill {self.spill.folder} takes no more events: {self.spill.why}")
        with self.memory:
            if self.closed:
                return "the client is closed"
            if self.buffered_bytes + len(line) <= self.max_buffer_bytes:
                self._take(line)
                return ""
        try:
            # The guard did not keep up: this thread makes room itself, which costs one write.
            if not self.gate.acquire(timeout=_PATIENCE_S):
                return _FULL
            if self.closed or not self.spill_memory() or not self.spill.append([line]):
                return "the buffer and the spill are full"
            with self.memory:
                self.accepted += 1
            return ""
        finally:
            if held(self.gate):
                self.gate.release()

    def _take(self, line: bytes) -> None:
        self._buffer.append(line)
        self.buffered_bytes += len(line)
        self.accepted += 1

    def _admit_late(self) -> None:
        while self._late:
            self._take(self._late.popleft())

    def refuse(self, why: str) -> bool:
        """Counts and logs a line that was not taken; False."""
        with self.memory:
            self.counts["refused"] += 1
        self.complain("refused", f"An event was not kept: {why}. Refused so far: {self.counts['refused']}")
        return False

    def wanted(self) -> int:
        """How many lines were taken so far."""
        with self.memory:
            self._admit_late()
            return self.accepted

    def spill_memory(self) -> bool:
        """Moves to disk what is in the buffer, behind what was in flight to a receiver that does not answer.

        What is in flight to one that does answer stays there, or it would arrive twice.

        Returns:
            False where it does not fit.
        """
        with self.gate:
            if self._flight and not self.up:
                # It was taken before what is on disk now.
                if not self._kept(self._flight, first=True):
                    return False
                self._flight = None
            with self.memory:
                self._admit_late()
                lines, size = self._buffer, self.buffered_bytes
                self._buffer, self.buffered_bytes = [], 0
            kept = False
            try:
                kept = not lines or self._kept(lines)
            finally:  # also where a signal handler raises
                if not kept:
                    with self.memory:
                        self._buffer[:0] = lines
                        self.buffered_bytes += size
            return kept

    def _kept(self, lines: list[bytes], first: bool = False) -> bool:
        if (self.spill.prepend if first else self.spill.append)(lines):
            self.counts["spilled"] += len(lines)
            return True
        self.complain(
            "full",
            f"The spill {self.spill.folder} takes no more events ({self.spill.why}); they wait in memory",
        )
        return False

    def watch(self) -> bool:
        """Moves to disk what should not wait in memory; whether something waits there."""
        with self.gate:
            with self.memory:
                self._admit_late()
            if self.crowded or not self.up or not self.spill.empty:
                self.spill_memory()
            if self.spill.empty:
                return False
            self.spill.restore()
            return True

    def fsync(self) -> None:
        """Makes what is on disk survive a power cut."""
        try:
            with self.gate:
                descriptors = self.spill.unsynced()
            for descriptor in descriptors:
                try:
                    os.fsync(descriptor)  # without the gate: nobody waits for the disk
                finally:
                    close(descriptor)
        except OSError as problem:
            self.complain("fsync", f"fsync of the spill failed: {problem}")

    def next(self) -> Chunk | list[bytes] | None:
        """What to send now: what came back, else the front of the spill, else the buffer, then in flight."""
        with self.gate:
            if self._flight:
                return self._flight
            try:
                chunk = self.spill.head(CHUNK_BYTES)
            except OSError as problem:
                self.complain("read", f"The spill cannot be read: {problem}")
                return None
            if chunk is not None:
                return chunk
            with self.memory:
                self._admit_late()
                if not self._buffer:
                    return None
                lines = self._buffer[:CHUNK_LINES]
                del self._buffer[:CHUNK_LINES]
                self.buffered_bytes -= sum(map(len, lines))
            self._flight = lines
            return lines

    def came_back(self, chunk: Chunk | list[bytes]) -> None:
        """What was sent did not arrive."""
        with self.gate:
            if self._flight is chunk:
                self.spill_memory()  # where there is no room on disk either, it stays in flight

    def delivered(self, chunk: Chunk | list[bytes], refused: int) -> None:
        """What was sent did arrive, but for so many lines."""
        with self.gate:
            lines = chunk.lines if isinstance(chunk, Chunk) else chunk
            self.counts["delivered"] += len(lines) - refused
            self.counts["refused_by_receiver"] += refused
            if isinstance(chunk, Chunk):
                self.counts["torn"] += chunk.torn
                self.counts["adopted"] += len(lines) if chunk.adopted else 0
                self.finished += 0 if chunk.adopted else len(lines) + chunk.torn
                self.spill.done(chunk)
            elif self._flight is chunk:
                self._flight = None
                self.finished += len(lines)
            # else the guard has put it on disk meanwhile, and it arrives twice

    def close(self) -> None:
        """Keeps on disk what waits, and takes nothing any more."""
        with self.gate:
            self.up = False  # nobody waits for an answer any more
            with self.memory:
                self.closed = True
            if not self.spill_memory():
                lost = len(self._buffer) + len(self._flight or [])
                self.counts["refused"] += lost
                self.complain.say(
                    logging.ERROR,
                    f"{lost} events could not be kept when the client was closed: {self.spill.why}",
                )
            self.fsync()
            self.spill.close()
        self.complain.catch_up()

    def stats(self) -> dict[str, Any]:
        """Counters of this process, and how things stand."""
        with self.gate, self.memory:
            self._admit_late()
            counts = ("spilled", "refused", "refused_by_receiver", "adopted", "torn")
            return {
                "accepted": self.accepted,
                "delivered": self.counts["delivered"],
                "waiting": self.accepted - self.finished,
                "in_memory_bytes": self.buffered_bytes,
                "on_disk_bytes": self.spill.size_bytes,
                **{name: self.counts[name] for name in counts},
                "receiver_up": self.up,
            }
