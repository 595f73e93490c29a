"""A few processes beside this one, for pure work that holds Python's lock: parsing, joining, deciding.

Beam's own multi-process mode starts a whole SDK harness per worker (seconds each) and only divides what are several
elements to begin with. Here one long batch, or one shard after the other, goes to a process that imported
no more than it needs, and Beam's stages stay what they are: whoever calls sees results in order, as if
worked in place. The processes end by themselves when idle, and when this one is gone.

Workers run functions of this project on its own data; what is sent is bytes or paths, never code of others.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import current_process
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loky.process_executor import ProcessPoolExecutor

IDLE_S = 30.0
"""Seconds without work after which a process ends; starting one takes about one."""
_ORPHAN_CHECK_S = 1.0
_SPREAD_S = 0.05

_ENVIRONMENT = {
    # One thread each: there are as many processes as cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # What was freed is used again and not given back: on virtual machines new pages cost more than parsing.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "67108864",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
}

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module that can be imported, and its arguments."""

_lock = threading.Lock()
_pool: tuple[int, ProcessPoolExecutor] | None = None
_of_parent: list[Any] = []
"""In a fork: the pool of whoever forked. Kept, as its end would reach for locks that nobody here frees."""


def available() -> int:
    """As many processes as there are cores that this one may use; none where there is only one.

    A container's share of the processor counts too: on a large machine it may be far below the cores one sees.
    """
    from loky import cpu_count

    cores = int(cpu_count())
    return cores if cores > 1 else 0


def start(count: int, *modules: str) -> list[Future[Any]]:
    """Starts the processes, and lets them import what they will need while the caller goes on.

    Args:
        count: How many; 0 starts none.
        modules: What to import besides parsing and joining.

    Returns:
        What is done when they are ready.
    """
    started = [_submit(count, (_import, modules)) for _ in range(count)]
    return [future for future in started if future is not None]


def _import(*modules: str) -> None:
    import pandas  # noqa: F401  pyarrow imports it with the first array that is made from a list

    import pipelines.parsing
    import pipelines.shards  # noqa: F401

    for name in modules:
        importlib.import_module(name)
    time.sleep(_SPREAD_S)  # or the first process would take the call that is meant for the second


class Ahead:
    """Calls that run while the caller goes on, and whose results come out in the order they were given.

    With no processes each call is made when it is given. A process that dies (out of memory, killed) costs
    only time: its call is made again here, so a call must leave what it was given as it is.
    """

    def __init__(self, count: int, *, ahead: int = 0):
        """Holds up to `ahead` groups of calls back; `count` processes work them."""
        self._count, self._ahead = count, ahead if count else 0
        self._waiting: deque[tuple[Any, list[tuple[Call, Future[Any] | None]]]] = deque()

    def add(self, key: Any, calls: Sequence[Call]) -> Iterator[tuple[Any, list[Any]]]:
        """Starts calls; yields key and results of the groups that are due by now."""
        self._waiting.append((key, [(call, self._begin(call)) for call in calls]))
        while len(self._waiting) > self._ahead:
            yield self._next()

    def rest(self) -> Iterator[tuple[Any, list[Any]]]:
        """Key and results of all that is left."""
        while self._waiting:
            yield self._next()

    def _begin(self, call: Call) -> Future[Any] | None:
        return _submit(self._count, call) if self._count else None

    def _next(self) -> tuple[Any, list[Any]]:
        key, running = self._waiting.popleft()
        return key, [_result(call, future) for call, future in running]


def _result(call: Call, future: Future[Any] | None) -> Any:
    function, arguments = call
    if future is None:
        return function(*arguments)
    from loky.process_executor import ShutdownExecutorError

    try:
        return future.result()
    except (BrokenProcessPool, ShutdownExecutorError):
        return function(*arguments)


def _submit(count: int, call: Call) -> Future[Any] | None:
    """Hands a call to the pool; None when it cannot take it, so that it is made here."""
    global _pool
    if current_process().daemon:  # may have no children; where, say, a cluster's worker calls us
        return None
    from loky.process_executor import ProcessPoolExecutor

    function, arguments = call
    with _lock:
        try:
            if _pool is None or _pool[0] != count:
                if _pool is not None:
                    _pool[1].shutdown(wait=False)
                    _pool = None
                pool = ProcessPoolExecutor(
                    count,
                    timeout=IDLE_S,
                    initializer=_begin_worker,
                    initargs=(os.getpid(),),
                    env=_ENVIRONMENT,
                )
                _pool = (count, pool)
                Finalize(None, _end, exitpriority=0)
            future: Future[Any] = _pool[1].submit(function, *arguments)
        # It is broken, or this process ends, or no process or semaphore is to be had.
        except (BrokenProcessPool, RuntimeError, OSError, ImportError):
            if _pool is not None:
                _pool[1].shutdown(wait=False, kill_workers=True)
            _pool = None
            return None
        return future


def _end() -> None:
    """When this one is a child of `multiprocessing`: it would wait for the processes until they are idle."""
    with _lock:
        if _pool is not None:
            _pool[1].shutdown(wait=False, kill_workers=True)


def _after_fork() -> None:
    """In a fork: the pool's threads are not here, so it would take calls and never answer."""
    global _lock, _pool
    _of_parent.append(_pool)
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _begin_worker(parent: int) -> None:
    """In a worker: ends it soon after its parent, which may be killed without a word; and only then.

    Ctrl-C reaches all processes of a terminal. What becomes of the work is for the parent to decide.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
