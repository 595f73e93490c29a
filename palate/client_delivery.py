"""Lines from a product's threads to a receiver that may be away, without making the product wait.

    put() ─▶ buffer in memory ─▶ sender ─▶ receiver           while all is well
                    │                ▲
                    └─ guard ─▶ spill on disk                 while the receiver is away, slow, or the buffer fills

A line is in one place at a time and leaves it when the next has it: the buffer, in flight, or the spill. Two
threads work for it, started with the first line: the sender alone talks to the receiver and may block; the guard
moves to disk what has waited too long in memory, so that a receiver that hangs costs no more than a second's lines
if the process is killed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from palate.client_sinks import Away, Sink
from palate.client_spill import Chunk, Spill

_LOG = logging.getLogger("palate.client")
CHUNK_BYTES, CHUNK_LINES = 1 << 20, 1000
LINGER_S = 0.02
GUARD_S = 0.1
IN_MEMORY_S = 1.0
"""Longest that a line is in flight before it is kept on disk as well."""
FSYNC_S = 1.0
ADOPT_S = 30.0
BACKOFF_S = (0.2, 5.0)
_LOG_EVERY_S = 60.0
_PATIENCE_S = 0.5
"""Longest that a call waits for the disk, when the buffer is full; the event is refused after that."""
_PARENTS: list[Any] = []
"""After a fork: the parent's connections, kept so that nothing finalises them while the parent uses them."""


class Delivery:
    """A queue with a receiver.

    Args:
        make_sink: Makes the receiver's side; called in the sender's thread.
        spill: What keeps lines on disk.
        max_buffer_bytes: Most bytes in memory.
        durable: Lines go through the spill, so that they survive the death of the process as soon as `put` returns.
    """

    def __init__(
        self, make_sink: Callable[[], Sink], spill: Spill, max_buffer_bytes: int, durable: bool
    ) -> None:
        self._make_sink, self.spill, self.durable = make_sink, spill, durable
        self.max_buffer_bytes = max_buffer_bytes
        self._logged: dict[str, float] = {}
        self._reset()

    def _reset(self) -> None:
        # Reentrant, since a signal handler of the product may emit while its thread is in here.
        self._memory = threading.RLock()  # the buffer; held for an instant
        # Spill and what is in flight; held for a write to disk, and taken before _memory.
        self._gate = threading.RLock()
        self._wake, self._alarm, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._settled = threading.Condition()
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._flight: list[bytes] | None = None
        self._asked_s: float | None = None  # when the receiver was given what it has not yet answered
        self._up, self._last_error, self._closed = True, "", False
        self._accepted, self._finished = 0, 0
        self._counts: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._sink: Sink | None = None

    # -- the product's side ------------------------------------------------------------------------------------

    def put(self, line: bytes) -> bool:
        """Takes one line; False where neither memory nor disk has room for it."""
        if self._closed:
            return self._refuse("the client is closed")
        if not self._threads:
            self.start()
        if self.durable:
            with self._gate:
                kept = self.spill.append([line])
            if kept:
                with self._memory:
                    self._accepted += 1
                self._wake.set()
                return True
        with self._memory:
            if self._buffered_bytes + len(line) <= self.max_buffer_bytes:
                self._buffer.append(line)
                self._buffered_bytes += len(line)
                self._accepted += 1
                crowded = self._buffered_bytes * 2 > self.max_buffer_bytes
                kept = True
            else:
                kept = False
        if not kept:
            return self._put_on_disk(line)
        if crowded and not self._alarm.is_set():
            self._alarm.set()
        if not self._wake.is_set():
            self._wake.set()
        return True

    def _put_on_disk(self, line: bytes) -> bool:
        """The guard did not keep up: this thread makes room itself, which costs one write."""
        if not self._gate.acquire(timeout=_PATIENCE_S):
            return self._refuse("the buffer is full and the disk too slow")
        try:
            if self._spill_memory() and self.spill.append([line]):
                with self._memory:
                    self._accepted += 1
                return True
        finally:
            self._gate.release()
        return self._refuse("the buffer and the spill are full")

    def _refuse(self, why: str) -> bool:
        with self._memory:
            self._counts["refused"] += 1
        self.complain("refused", f"An event was not kept: {why}. Refused so far: {self._counts['refused']}")
        return False

    def flush(self, timeout_s: float, patient: bool = True) -> bool:
        """Waits until the receiver has what was put before; False where it does not yet.

        Args:
            timeout_s: longest wait.
            patient: waits for a receiver that is away, too.
        """
        wanted, deadline = self._accepted, time.monotonic() + timeout_s
        self._wake.set()
        with self._settled:
            while self._finished < wanted and not self._stopping.is_set() and (patient or self._up):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._settled.wait(min(left, 0.5))
        return self._finished >= wanted

    def close(self, timeout_s: float) -> bool:
        """Delivers what can be delivered in time and keeps the rest on disk; True where nothing is left."""
        if self._closed:
            return self._finished >= self._accepted
        done = self.flush(timeout_s, patient=False)
        self._closed = True
        self._stopping.set()
        self._wake.set()
        self._alarm.set()
        for thread in self._threads:
            thread.join(timeout=1.0)
        with self._gate:
            self._up = False  # nobody waits for an answer any more
            if not self._spill_memory():
                lost = len(self._buffer) + len(self._flight or [])
                self._counts["refused"] += lost
                _LOG.error(
                    "palate: %d events could not be kept when the client was closed: no room on disk", lost
                )
            self._fsync()
            self.spill.close()
        return done

    def stats(self) -> dict[str, Any]:
        """Counters of this process, and how things stand."""
        with self._gate, self._memory:
            return {
                "accepted": self._accepted,
                "delivered": self._counts["delivered"],
                "waiting": self._accepted - self._finished,
                "in_memory_bytes": self._buffered_bytes,
                "on_disk_bytes": self.spill.size_bytes,
                "spilled": self._counts["spilled"],
                "refused": self._counts["refused"],
                "refused_by_receiver": self._counts["refused_by_receiver"],
                "adopted": self._counts["adopted"],
                "torn": self._counts["torn"],
                "receiver_up": self._up,
                "last_error": self._last_error,
            }

    def complain(self, about: str, text: str) -> None:
        """Logs a warning, about the same thing at most once a minute."""
        now = time.monotonic()
        if now - self._logged.get(about, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged[about] = now
            _LOG.warning("palate: %s", text)

    def after_fork(self) -> None:
        """In a child process: what waits is the parent's; the child starts with nothing."""
        if self._sink is not None:
            self._sink.abandon()
            _PARENTS.append(self._sink)
        self.spill.forget()
        self._reset()

    def start(self) -> None:
        """Starts the threads, once; done by the first line, or before to deliver what an earlier process left."""
        with self._memory:
            if self._threads or self._closed:
                return
            self._threads = [
                threading.Thread(target=target, name=f"palate-{target.__name__}", daemon=True)
                for target in (self._sender, self._guard)
            ]
            for thread in self._threads:
                thread.start()

    # -- guard -------------------------------------------------------------------------------------------------

    def _guard(self) -> None:
        synced_s, owed = time.monotonic(), False
        while not self._stopping.is_set():
            self._alarm.wait(GUARD_S)
            self._alarm.clear()
            with self._gate:
                hanging = self._asked_s is not None and time.monotonic() - self._asked_s > IN_MEMORY_S
                if hanging and self._up:
                    self._set_away(f"no answer for {IN_MEMORY_S} s")
                with self._memory:
                    crowded = self._buffered_bytes * 2 > self.max_buffer_bytes
                if crowded or not self._up or not self.spill.empty:
                    self._spill_memory()
                owed = owed or not self.spill.empty
            if owed and time.monotonic() - synced_s >= FSYNC_S:
                self._fsync()
                synced_s, owed = time.monotonic(), False

    def _spill_memory(self) -> bool:
        """Moves to disk what is in the buffer, behind what was in flight to a receiver that does not answer.

        What is in flight to one that does answer stays there, or it would arrive twice.

        Returns:
            False where it does not fit.
        """
        with self._gate:
            if self._flight and not self._up:
                # It was taken before what is on disk now.
                if not self._kept(self._flight, first=True):
                    return False
                self._flight = None
            with self._memory:
                lines, size = self._buffer, self._buffered_bytes
                self._buffer, self._buffered_bytes = [], 0
            if not lines or self._kept(lines):
                return True
            with self._memory:
                self._buffer[:0] = lines
                self._buffered_bytes += size
        return False

    def _kept(self, lines: list[bytes], first: bool = False) -> bool:
        if (self.spill.prepend if first else self.spill.append)(lines):
            self._counts["spilled"] += len(lines)
            return True
        self.complain("full", f"The spill {self.spill.folder} takes no more events; they wait in memory")
        return False

    def _fsync(self) -> None:
        with self._gate:
            descriptor = self.spill.writing()
        if descriptor is not None:
            try:
                os.fsync(descriptor)  # without the gate: nobody waits for the disk
            except OSError as problem:
                self.complain("fsync", f"fsync of the spill failed: {problem}")
            finally:
                os.close(descriptor)

    # -- sender ------------------------------------------------------------------------------------------------

    def _sender(self) -> None:
        stopping, backoff_s, adopted_s = self._stopping, BACKOFF_S[0], -ADOPT_S
        sink = self._sink = self._make_sink()
        while not stopping.is_set():
            if time.monotonic() - adopted_s >= ADOPT_S:
                adopted_s = time.monotonic()
                self._adopt()
            chunk = self._next()
            if chunk is None:
                if not self._wake.wait(FSYNC_S):
                    sink.sync()
                    continue
                self._wake.clear()
                stopping.wait(LINGER_S)  # a few more may come and travel together
                continue
            self._asked_s = time.monotonic()
            try:
                refused = sink.send(chunk.lines if isinstance(chunk, Chunk) else chunk)
            except Away as problem:
                self._away(chunk, problem)
                stopping.wait(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S[1])
            except Exception as problem:  # a fault of ours must not end delivery
                _LOG.exception("palate: delivery failed in an unexpected way")
                self._away(chunk, problem)
                stopping.wait(BACKOFF_S[1])
            else:
                backoff_s = BACKOFF_S[0]
                self._delivered(chunk, refused)
        sink.close()

    def _adopt(self) -> None:
        try:
            with self._gate:
                taken = self.spill.adopt()
            if taken:
                _LOG.info("palate: delivering what %d earlier processes left", taken)
        except OSError as problem:
            self.complain("adopt", f"Cannot look for what earlier processes left: {problem}")

    def _next(self) -> Chunk | list[bytes] | None:
        """What to send now: what came back, else the front of the spill, else the buffer, then in flight."""
        with self._gate:
            if self._flight:
                return self._flight
            try:
                chunk = self.spill.head(CHUNK_BYTES)
            except OSError as problem:
                self.complain("read", f"The spill cannot be read: {problem}")
                return None
            if chunk is not None:
                return chunk
            with self._memory:
                if not self._buffer:
                    return None
                lines = self._buffer[:CHUNK_LINES]
                del self._buffer[:CHUNK_LINES]
                self._buffered_bytes -= sum(map(len, lines))
            self._flight = lines
            return lines

    def _away(self, chunk: Chunk | list[bytes], problem: Exception) -> None:
        with self._gate:
            self._asked_s = None
            self._set_away(str(problem)[:500])
            if self._flight is chunk:
                self._spill_memory()  # where there is no room on disk either, it stays in flight

    def _set_away(self, why: str) -> None:
        self._up, self._last_error = False, why
        with self._settled:  # an impatient flush waits no longer
            self._settled.notify_all()
        self.complain("away", f"The receiver is away, events are kept in {self.spill.folder}: {why}")

    def _delivered(self, chunk: Chunk | list[bytes], refused: list[bytes]) -> None:
        for line in refused:
            self.complain(
                "refused_by_receiver", f"The receiver refuses an event of {len(line)} bytes; it is set aside"
            )
            try:
                self.spill.set_aside(line)
            except OSError as problem:
                _LOG.error("palate: an event that the receiver refuses was lost: %s", problem)
        with self._gate:
            if not self._up:
                _LOG.info("palate: the receiver is back")
            self._up, self._last_error, self._asked_s = True, "", None
            lines = chunk.lines if isinstance(chunk, Chunk) else chunk
            own = 0
            if isinstance(chunk, Chunk):
                self.spill.done(chunk)
                self._counts["torn"] += chunk.torn
                self._counts["adopted"] += len(lines) if chunk.adopted else 0
                own = 0 if chunk.adopted else len(lines) + chunk.torn
            elif self._flight is chunk:
                self._flight, own = None, len(lines)
            # else the guard has put it on disk meanwhile, and it arrives twice
            self._counts["delivered"] += len(lines) - len(refused)
            self._counts["refused_by_receiver"] += len(refused)
        with self._settled:
            self._finished += own
            self._settled.notify_all()
