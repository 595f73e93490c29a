"""What a person is told when the events table itself cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from feedback.errors import PalateError

from .errors import PipelineError, disk_full

_STYLED = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def table_damage_told() -> Iterator[None]:
    """Turns what libraries say of a log or a file that is missing, cut off or changed into our error.

    Used as a decorator of what reads the whole table for a person. A full disk and what the system refuses
    (permissions, a read-only disk) are no damage and pass.

    Raises:
        PipelineError: names the file, where it is known.
    """
    try:
        yield
    except PalateError:
        raise
    except Exception as error:
        if disk_full(error) or not _is_damage(error):
            raise
        raise PipelineError(
            "A part of the events table is missing or damaged.",
            got=_first_line(error),
            next_step="run it again, as maintenance may just have removed an old file; if it stays, restore "
            "tables/events from a copy",
        ) from error


def _first_line(error: Exception) -> str:
    """What is wrong and where; after it libraries add their stack."""
    lines = [line.strip() for line in _STYLED.sub("", str(error)).splitlines() if line.strip()]
    return lines[0][:400] if lines else type(error).__name__


def _is_damage(error: Exception) -> bool:
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    # Arrow reports pages that cannot be read as an OSError without a number.
    unreadable = isinstance(error, OSError) and error.errno is None
    return unreadable or isinstance(error, (DeltaError, pa.ArrowException, FileNotFoundError))
