"""Where in the project's files a row of the events table stands, for a person who wants to look."""

from __future__ import annotations

from pathlib import Path

from feedback.errors import PalateError
from palate import config as config_module
from palate.config import Project

_BLOCK_BYTES = 1 << 20


def in_file(project: Project, source: str, partition: str, offset: int) -> str | None:
    """`path:line` (or `path, record n`) of a row whose file the project's `[source] path` still names.

    Returns:
        None when the source is not the project's, or the file is no longer there.
    """
    path = config_module.source_path(project, None)
    if path is None or not path.exists():
        return None
    file = _file(project, source, path, partition)
    if file is None:
        return None
    if source != "palate_jsonl":
        return f"{file}, record {offset}"
    return f"{file}:{_line(file, offset)}"


def _file(project: Project, source: str, path: Path, partition: str) -> Path | None:
    """The file of a partition: the one to which the source gives the same id."""
    from pydantic import ValidationError

    from pipelines.sources import partitions

    options = project.source.options if source == project.source.name else {}
    try:
        found = partitions(path, source, options)
    except (PalateError, ValidationError, OSError):
        return None
    return next((part.path for part in found if part.id == partition and part.path.is_file()), None)


def _line(file: Path, offset: int) -> int:
    """Number of the line that begins at a byte, counted from 1."""
    line, left = 1, offset
    with file.open("rb") as stream:
        while left > 0 and (block := stream.read(min(left, _BLOCK_BYTES))):
            line, left = line + block.count(b"\n"), left - len(block)
    return line
