"""A full disk stops an update cleanly: what was whole stays, what was half written goes, and the error says what to do.

Each library says it in its own way: Python and Arrow raise OSError, safetensors an error of its own with the number in
its text, and torch's writer only notices that fewer bytes arrived than it wrote.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import TrainingError
from training.result import last_complete_checkpoint

_NUMBERS = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "the limit of a file's size is reached",
}
_IN_TEXT = re.compile(r"\(os error (\d+)\)")
_TORCH = re.compile(
    r"inline_container\.cc.*(unexpected pos|file write failed|failed writing)|^basic_ios::clear: iostream error",
    re.DOTALL,
)


@contextmanager
def stops_when_full(output: Path) -> Iterator[None]:
    """Within the block a file that finds no room is a TrainingError; any other error stays as it is.

    Args:
        output: directory of the update's checkpoints; the newest whole one is kept, and what is not whole is removed.

    Raises:
        TrainingError: no room.
    """
    try:
        yield
    except Exception as error:
        found = no_room(error)
        if found is None or isinstance(error, TrainingError):
            raise
        raise _full(found, output) from error


def no_room(error: BaseException) -> str | None:
    """Which limit a failed write met; None where the error is about something else."""
    if isinstance(error, OSError):
        return _NUMBERS.get(error.errno or 0)
    if number := _IN_TEXT.search(str(error)):
        return _NUMBERS.get(int(number[1]))
    return "fewer bytes arrived than were written" if _TORCH.search(str(error)) else None


def _full(found: str, output: Path) -> TrainingError:
    for partial in output.glob("*.partial"):
        partial.unlink(missing_ok=True)
    kept = last_complete_checkpoint(output)
    return TrainingError(
        "The disk is full, or a limit on it is reached: a file could not be written.",
        got=f"{found}; {shutil.disk_usage(output).free >> 20} MiB free at {output}",
        allowed="room for three checkpoints",
        next_step=f"free some space and run again; it goes on from {Path(kept).name if kept else 'the start'}",
    )
