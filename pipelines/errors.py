"""Errors of the pipelines: what a person can act on, each also a stdlib type."""

from __future__ import annotations

import errno
from pathlib import Path

from feedback.errors import PalateError


class PipelineError(PalateError, RuntimeError):
    """A pipeline could not do its work; the tables are as they were before it started."""


class BrokerError(PipelineError):
    """The brokers are away or answer wrongly; trying again later is the remedy."""


class OutrunError(PipelineError):
    """Other writers of the same partitions were first every time; they have done the work."""


class InputError(PalateError, ValueError):
    """The input cannot be read: wrong settings, or it shrank or was rewritten after it had been read."""


class DatasetError(PalateError, ValueError):
    """A dataset version is missing, incomplete or damaged, and was therefore not loaded."""


class DiskFullError(PalateError, OSError):
    """The disk (or a quota, or a file-size limit) refused a write; nothing was committed."""


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Rust's object store and Arrow report the operating system's error only as text.
_FULL_TEXTS = (
    "No space left on device",
    "File too large",
    "Disk quota exceeded",
    "os error 28",
    "os error 27",
)


def disk_full(error: BaseException) -> bool:
    """Whether this error, or one that caused it, says that the disk is full.

    Beam re-raises a worker's exception as another one whose text holds the first, so causes, contexts and
    texts are all looked at.
    """
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        current = queue.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, OSError) and current.errno in _FULL:
            return True
        if any(text in str(current) for text in _FULL_TEXTS):
            return True
        queue += [current.__cause__, current.__context__]
    return False


def full_disk_error(where: Path, next_step: str) -> DiskFullError:
    """The message for a full disk: where, how much is free, what to do."""
    import shutil

    try:
        free_mb: float | str = round(shutil.disk_usage(where).free / 2**20, 1)
    except OSError:
        free_mb = "unknown"
    return DiskFullError(
        f"No space left to write below {where}. Nothing was committed.",
        got=f"{free_mb} MiB free",
        next_step=next_step,
    )


def last_line(error: BaseException) -> str:
    """The end of a message: where Beam puts what really happened, after the traceback of its worker."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
