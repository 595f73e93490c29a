"""Lines from a product's threads to a receiver that may be away, without making the product wait.

Two threads work for it, started with the first line: the sender alone talks to the receiver and may block; the guard
moves to disk what has waited too long in memory, so that a receiver that hangs costs no more than a second's lines
if the process is killed. Nothing that goes wrong ends them. Where the system has no thread to give, the product's
calls keep events on disk, once a second, and try again to start them.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from palate.client_folder import set_aside
from palate.client_reentry import Bell, inside_threading
from palate.client_segments import Chunk
from palate.client_sinks import Away, Sink
from palate.client_spill import Spill
from palate.client_waiting import Waiting

LINGER_S = 0.02
GUARD_S = 0.1
IN_MEMORY_S = 1.0
"""Longest that a line is in flight before it is kept on disk as well."""
FSYNC_S = 1.0
ADOPT_S = 30.0
BACKOFF_S = (0.2, 5.0)
_THREADS_S = 1.0
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
        self._make_sink, self._options = make_sink, (spill, max_buffer_bytes, durable)
        self._reset()

    def _reset(self) -> None:
        self.waiting = Waiting(*self._options)
        self.complain = self.waiting.complain
        self._wake, self._alarm, self._halt = Bell(), Bell(), Bell()
        self._stopping = False
        self._settled = threading.Condition()
        self._asked_s: float | None = None  # when the receiver was given what it has not yet answered
        self._last_error = ""
        self._threads: dict[str, threading.Thread] = {}
        self._running, self._retry_s = False, 0.0
        self._backoff_s, self._adopted_s = BACKOFF_S[0], -ADOPT_S
        self._sink: Sink | None = None

    # -- the product's side ------------------------------------------------------------------------------------

    def put(self, line: bytes) -> bool:
        """Takes one line; False where neither memory nor disk has room for it."""
        taken = self.waiting.put(line)
        if not self._running:
            self.start()
        if self.waiting.crowded:
            self._alarm.ring()
        self._wake.ring()
        return taken

    def flush(self, timeout_s: float, patient: bool = True) -> bool:
        """Waits until the receiver has what was put before; False where it does not yet.

        Args:
            timeout_s: longest wait.
            patient: waits for a receiver that is away, too.
        """
        waiting = self.waiting
        if waiting.interrupted:
            return False  # and would never be, while this thread has the lock
        wanted, deadline = waiting.wanted(), time.monotonic() + timeout_s
        self._wake.ring()
        while waiting.finished < wanted and (self._running or self.start() or patient):
            with self._settled:
                left = deadline - time.monotonic()
                over = left <= 0 or self._stopping or not (patient or waiting.up)
                if over or waiting.finished >= wanted:
                    break
                self._settled.wait(min(left, 0.5))
        return waiting.finished >= wanted

    def close(self, timeout_s: float) -> bool:
        """Delivers what can be delivered in time and keeps the rest on disk; True where nothing is left."""
        waiting = self.waiting
        if waiting.interrupted:
            return False
        if waiting.closed:
            return waiting.finished >= waiting.accepted
        try:
            self.flush(timeout_s, patient=False)
            self._stop()
        finally:  # also where a signal handler raises: an impatient person's second Ctrl-C loses nothing
            self._stopping = True
            waiting.close()
        return waiting.finished >= waiting.accepted

    def _stop(self) -> None:
        self._stopping = True
        for bell in (self._wake, self._alarm, self._halt):
            bell.ring()
        for thread in self._threads.values():
            if thread.is_alive():
                thread.join(timeout=1.0)

    def stats(self) -> dict[str, Any]:
        """Counters of this process, and how things stand."""
        return self.waiting.stats() | {"last_error": self._last_error}

    def after_fork(self) -> None:
        """In a child process: what waits is the parent's; the child starts with nothing."""
        try:
            if self._sink is not None:
                _PARENTS.append(self._sink)
                self._sink.abandon()
            self._options[0].forget()
        finally:
            self._reset()

    def start(self) -> bool:
        """Starts what does not run of the threads, at most once a second; whether both run.

        Done by the first line, or before to deliver what an earlier process left.
        """
        waiting = self.waiting
        if waiting.interrupted or waiting.closed or time.monotonic() < self._retry_s:
            return self._running
        problem: Exception | str = "a signal came while a thread was started"
        if not inside_threading():
            with waiting.memory:
                problem = self._start_threads() or ""
        self._running = not problem
        if problem:
            self._retry_s = time.monotonic() + _THREADS_S
            self.complain("threads", f"No thread to deliver events, tried again each second: {problem}")
            waiting.spill_memory()
        return self._running

    def _start_threads(self) -> Exception | None:
        for target in (self._sender, self._guard):
            name = f"palate-{target.__name__}"
            if name in self._threads and self._threads[name].is_alive():
                continue
            self._threads[name] = threading.Thread(target=target, name=name, daemon=True)
            try:
                self._threads[name].start()
            except Exception as problem:  # the limit of threads, no memory, the end of the interpreter
                return problem
        return None

    # -- guard -------------------------------------------------------------------------------------------------

    def _guard(self) -> None:
        synced_s, owed = time.monotonic(), False
        while not self._stopping:
            try:
                self._alarm.wait(GUARD_S)
                asked_s = self._asked_s
                if asked_s is not None and time.monotonic() - asked_s > IN_MEMORY_S and self.waiting.up:
                    with self.waiting.gate:
                        if self._asked_s == asked_s:
                            self._set_away(f"no answer for {IN_MEMORY_S} s")
                owed = self.waiting.watch() or owed
                if owed and time.monotonic() - synced_s >= FSYNC_S:
                    self.waiting.fsync()
                    synced_s, owed = time.monotonic(), False
                self.complain.catch_up()
            except BaseException:  # a fault of ours must not end it
                self._report("guard")

    # -- sender ------------------------------------------------------------------------------------------------

    def _sender(self) -> None:
        while not self._stopping:
            try:
                self._send_next()
                self.complain.catch_up()
            except BaseException:  # neither must one end delivery
                self._report("sender")
                self._halt.wait(BACKOFF_S[1])
        with suppress(Exception):
            if self._sink is not None:
                self._sink.close()

    def _report(self, thread: str) -> None:
        with suppress(BaseException):
            text = f"The {thread} failed in an unexpected way and goes on:\n{traceback.format_exc()}"
            self.complain(thread, text, logging.ERROR)

    def _send_next(self) -> None:
        sink = self._sink = self._sink or self._make_sink()
        if time.monotonic() - self._adopted_s >= ADOPT_S:
            self._adopted_s = time.monotonic()
            self._adopt()
        chunk = self.waiting.next()
        if chunk is None:
            if self._wake.wait(FSYNC_S):
                self._halt.wait(LINGER_S)  # a few more may come and travel together
            else:
                sink.sync()
            return
        lines = chunk.lines if isinstance(chunk, Chunk) else chunk
        self._asked_s = time.monotonic()
        try:
            refused = sink.send(lines) if lines else []
        except Away as problem:
            self._away(chunk, str(problem))
            self._halt.wait(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_S[1])
        except BaseException as problem:
            self._away(chunk, repr(problem))
            raise
        else:
            self._backoff_s = BACKOFF_S[0]
            self._delivered(chunk, refused)

    def _adopt(self) -> None:
        try:
            with self.waiting.gate:
                taken = self.waiting.spill.adopt()
            if taken:
                self.complain.say(logging.INFO, f"delivering what {taken} earlier processes left")
        except OSError as problem:
            self.complain("adopt", f"Cannot look for what earlier processes left: {problem}")

    def _away(self, chunk: Chunk | list[bytes], why: str) -> None:
        with self.waiting.gate:
            self._asked_s = None
            self._set_away(why[:500])
            self.waiting.came_back(chunk)

    def _set_away(self, why: str) -> None:
        self.waiting.up, self._last_error = False, why
        with self._settled:  # an impatient flush waits no longer
            self._settled.notify_all()
        self.complain("away", f"The receiver is away, events are kept in {self.waiting.spill.folder}: {why}")

    def _delivered(self, chunk: Chunk | list[bytes], refused: list[bytes]) -> None:
        self._asked_s = None
        for line in refused:
            self.complain(
                "refused_by_receiver", f"The receiver refuses an event of {len(line)} bytes; it is set aside"
            )
            try:
                set_aside(self.waiting.spill.folder, line)
            except OSError as problem:
                self.complain.say(logging.ERROR, f"an event that the receiver refuses was lost: {problem}")
        with self.waiting.gate:
            if not self.waiting.up:
                self.complain.say(logging.INFO, "the receiver is back")
            self.waiting.up, self._last_error = True, ""
            self.waiting.delivered(chunk, len(refused))
        with self._settled:
            self._settled.notify_all()
