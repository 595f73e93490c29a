"""What a client needs so that a signal handler, a finaliser or a log handler of the product may emit at any moment.

Such code runs in the midst of the product's thread, perhaps while that thread is inside the client. So the client
uses locks of which it can tell that the thread has them already, wakes its threads through `Bell`, and writes to
the log only when it has no lock, since a log handler may wait for another thread that emits.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_LOG = logging.getLogger("palate.client")
_LOG_EVERY_S = 60.0
_LOCKED_IN_THREADING = frozenset(("start", "enumerate", "active_count", "__init__", "_after_fork"))


class Bell:
    """As `threading.Event`, whose `set` must not be interrupted by itself; the put of a `SimpleQueue` may be."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        """Wakes the one thread that waits, or the next that does."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Whether it rang in time, or since the last wait."""
        try:
            self._rings.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True


def held(lock: Any) -> bool:
    """Whether this thread has an RLock."""
    return bool(lock._is_owned())


def inside_threading() -> bool:
    """Whether this thread was interrupted where `threading` has a lock that starting a thread needs."""
    frame, names = sys._getframe(1), vars(threading)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals is names and frame.f_code.co_name in _LOCKED_IN_THREADING:
            return True
    return False


class Complaints:
    """Logs, about the same thing at most once a minute; later, where this thread has a lock of the client.

    Args:
        locked: Whether it has.
    """

    def __init__(self, locked: Callable[[], bool]) -> None:
        self._locked = locked
        self._logged: dict[str, float] = {}
        self._unsaid: deque[tuple[int, str]] = deque()

    def __call__(self, about: str, text: str, level: int = logging.WARNING) -> None:
        """Logs a text now, later, or, so soon after another about the same thing, not."""
        now = time.monotonic()
        if now - self._logged.get(about, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged[about] = now
            self.say(level, text)

    def say(self, level: int, text: str) -> None:
        """Logs a text now, or later."""
        self._unsaid.append((level, text))
        self.catch_up()

    def catch_up(self) -> None:
        """Logs what had to wait."""
        while self._unsaid and not self._locked():
            with suppress(Exception):  # of another thread that was faster, or of the product's log handler
                level, text = self._unsaid.popleft()
                _LOG.log(level, "palate: %s", text)
