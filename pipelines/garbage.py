"""Work that makes very many small objects and no cycles of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector, which looks through all objects for cycles again and again: a quarter of the time.

    Objects are freed all the same, by their counts; only cycles stay until the collector runs again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
