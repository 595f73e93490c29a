"""Dead letters as JSON lines, to be mended by hand and replayed."""

from __future__ import annotations

import base64
from pathlib import Path

import orjson

from . import replay_batches
from .errors import InputError, disk_full, full_disk_error
from .replay import Letters, meant
from .replay_batches import Key
from .workspace import Layout

_NAMED = ("partition", "offset", "reason", "detail", "event_id", "ingest_time")


def export(workspace: Path, letters: Letters, path: Path) -> int:
    """Writes dead letters that were not replayed as JSON lines, to be mended and given to `repaired_letters`.

    Returns:
        How many were written: all, or none and no file, so that nothing is mended that is not whole.

    Raises:
        FileExistsError: there is something at `path`; it was not touched.
        DiskFullError: no space.
    """
    layout = Layout(Path(workspace).resolve())
    done = replay_batches.replays(layout)
    rows = [row for row in meant(layout, letters) if (row["partition"], row["offset"]) not in done]
    try:
        with path.open("xb") as stream:
            for row in rows:
                named = {name: row[name] for name in _NAMED}
                stream.write(orjson.dumps({**named, **_text(row["raw"])}) + b"\n")
    except FileExistsError:
        raise
    except BaseException as error:
        path.unlink(missing_ok=True)
        if disk_full(error):
            raise full_disk_error(path.parent, "free some space and export again") from error
        raise
    return len(rows)


def repaired_letters(path: Path) -> dict[Key, bytes]:
    """The mended letters of a file that `export` wrote: `raw` (or `raw_base64`) by partition and offset.

    Raises:
        InputError: a line is not as `export` writes it, or a letter is there twice.
    """
    found: dict[Key, bytes] = {}
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            key, raw = _repaired_line(path, number, line)
            if key in found:
                raise InputError(f"{path}, line {number}: this dead letter was named before.", got=key)
            found[key] = raw
    return found


def _text(raw: bytes | None) -> dict[str, str]:
    """The bytes as JSON can hold them."""
    try:
        return {"raw": (raw or b"").decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw or b"").decode()}


def _repaired_line(path: Path, number: int, line: bytes) -> tuple[Key, bytes]:
    try:
        value = orjson.loads(line)
        key = (value["partition"], value["offset"])
        if not isinstance(key[0], str) or type(key[1]) is not int:
            raise TypeError("partition or offset of the wrong type")
        if "raw" in value:
            raw = value["raw"]
            # An event written as an object instead of as text is meant just the same.
            return key, raw.encode() if isinstance(raw, str) else orjson.dumps(raw)
        return key, base64.b64decode(value["raw_base64"], validate=True)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}, line {number} is no repaired dead letter.",
            got=f"{type(error).__name__}: {error}",
            allowed="lines as `palate replay --export` writes them, with `raw` mended",
        ) from error
