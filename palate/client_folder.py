"""The folder in which a client's events wait: which one it is, and whether this user may write to it."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from feedback.errors import PalateError


class SpillError(PalateError, OSError):
    """Events cannot be kept in this folder, and the client was told that they must be."""


def spill_folder(url: str) -> Path:
    """One folder for each address, so that events never go to another topic than they were emitted to."""
    root = os.environ.get("PALATE_SPILL_DIR")
    if root is None:
        state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")  # noqa: PTH111, PTH118
        root = os.path.join(state, "palate", "spill")  # noqa: PTH118
    return Path(root).absolute() / hashlib.sha256(url.encode()).hexdigest()[:16]


def unusable(folder: Path) -> SpillError | None:
    """Why nothing can be kept in a folder as things stand, found without making it; None where that is possible."""
    place, reason = folder, ""
    try:
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        needed = os.W_OK | os.X_OK | (os.R_OK if place == folder else 0)
        if not place.is_dir():
            reason = f"{place} is not a directory"
        elif not os.access(place, needed, effective_ids=os.access in os.supports_effective_ids):
            reason = (
                f"user {os.geteuid()} may not write to {place}, which belongs to user {place.stat().st_uid}"
            )
    except OSError as problem:
        reason = str(problem)
    if not reason:
        return None
    return SpillError(
        f"Events cannot be kept in the spill folder {folder}.",
        got=reason,
        allowed="a folder that this user may write to",
        next_step="name one as spill_dir=… or PALATE_SPILL_DIR",
    )


def left_behind(folder: Path) -> bool:
    """Whether there may be something that an earlier process left."""
    with suppress(OSError):
        return folder.is_dir() and any(folder.iterdir())
    return False


def set_aside(folder: Path, line: bytes) -> None:
    """Keeps what the receiver will never take, in `refused.jsonl`, for a person to look at.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / "refused.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line + b"\n")
    finally:
        os.close(descriptor)
