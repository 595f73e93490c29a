"""A disk that is nearly full."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = 4096


def fill(disk: Path, *, leave: int) -> Path:
    """A file that takes all room but so many pages."""
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail - leave
    ballast.write_bytes(b"x" * (free * PAGE))
    return ballast
