"""Replay: dead letters go through validation once more, and those that pass become events.

Delivery guarantee: exactly once for each dead letter. Which letters were replayed is read from the events table
itself, under a lock; the batch that is then read is named by its content and its rows become visible in the same
commit as its position. Killed anywhere, the next replay takes what is missing and nothing twice. The row of the
dead letter stays as it is, with its reason: the event that came of it is a row of its own, with a fate of its own.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedback.tables import to_table
from feedback.validation import Rejected, parse

from . import replay_batches, sources
from .damage import table_damage_told
from .errors import InputError
from .ingest import IngestConfig, IngestSummary, Progress, ingest
from .lookup import find
from .replay_batches import Key
from .workspace import Layout, locked

if TYPE_CHECKING:
    import pyarrow as pa

Edit = Callable[[bytes, str, str], bytes | None]
"""From a letter's bytes, reason and detail to the bytes to read in their place; None leaves it as it is."""

_EXAMPLES = 5


@dataclass(frozen=True)
class Letters:
    """Which dead letters are meant: those that arrived in `[since, until)` for one of these reasons."""

    since: datetime | None = None
    until: datetime | None = None
    reasons: tuple[str, ...] = ()
    """Exact reasons; all when empty."""


@dataclass(frozen=True)
class Refused:
    """A letter that does not pass yet."""

    partition: str
    offset: int
    reason: str
    detail: str


@dataclass(frozen=True)
class ReplaySummary:
    """What a replay did, or would do."""

    letters: int = 0
    """Dead letters that were meant."""
    replayed_before: int = 0
    """Of these, letters that had become events before; they were left alone."""
    edited: int = 0
    """Letters whose bytes were changed first."""
    passing: int = 0
    """Letters that pass now: rows of the events table unless it was a dry run."""
    refused: dict[str, int] = field(default_factory=dict)
    """Reason to number of letters that still do not pass."""
    examples: tuple[Refused, ...] = ()
    """A few of them."""
    ingested: IngestSummary | None = None
    """None in a dry run, or when nothing passes."""


@table_damage_told()
def replay(
    workspace: Path,
    letters: Letters,
    *,
    config: IngestConfig,
    now: datetime,
    edit: Edit | None = None,
    repaired: Mapping[Key, bytes] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ReplaySummary:
    """Validates dead letters with today's code and limits; those that pass become events, each once.

    Args:
        workspace: the workspace directory.
        letters: which ones.
        config: limits and expectations to hold them to.
        now: the clock, aware; also the ingest time of the new rows.
        edit: changes the bytes of a letter first.
        repaired: bytes to read in the place of a letter's own, by where the letter lies; only these letters are
            meant then.
        dry_run: only tell what would become of them.
        progress: as of `ingest`.

    Raises:
        InputError: `edit` failed on a letter, or a repaired letter does not exist; nothing was changed.
        DiskFullError: no space; nothing was replayed.
    """
    layout = Layout(Path(workspace).resolve())
    with locked(layout.staging / ".replay"):  # two at once would both find a letter not yet replayed
        rows = meant(layout, letters, repaired)
        done = replay_batches.replays(layout)
        todo = [row for row in rows if (row["partition"], row["offset"]) not in done]
        mended = [(row, _mended(row, edit, repaired)) for row in todo]
        passing, refused = _judge(mended, config, now)
        summary = ReplaySummary(
            letters=len(rows),
            replayed_before=len(rows) - len(todo),
            edited=sum(raw != row["raw"] for row, raw in mended),
            passing=len(passing),
            refused=dict(sorted(Counter(item.reason for item in refused).items())),
            examples=tuple(refused[:_EXAMPLES]),
        )
        if dry_run or not passing:
            return summary
        batch = replay_batches.write(layout, passing)
        ingested = ingest(
            batch,
            source=sources.REPLAY,
            workspace=layout.root,
            config=config,
            now=now,
            progress=progress,
        )
        return ReplaySummary(**{**vars(summary), "ingested": ingested})


def load_edit(name: str) -> Edit:
    """The function of that name, as `module:function`.

    Raises:
        InputError: it cannot be imported or called.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's own module, which may raise anything while it is imported
        raise InputError(
            "The function that edits dead letters could not be imported.",
            got=f"{name} ({type(error).__name__}: {error})",
            allowed="module:function, taking (raw, reason, detail) and giving bytes or None",
        ) from error
    if not callable(function):
        raise InputError("What is to edit dead letters is no function.", got=name)
    edit: Edit = function
    return edit


def meant(
    layout: Layout, letters: Letters, repaired: Mapping[Key, bytes] | None = None
) -> list[dict[str, Any]]:
    """The rows of the dead letters that are meant, by place."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # A shell may hand over bytes that are no text; no letter has such a reason.
    reasons = pa.array([reason.encode(errors="replace").decode() for reason in letters.reasons], pa.string())

    def wanted(rows: pa.Table) -> pa.Array:
        mask: Any = pa.array([True] * rows.num_rows)
        if letters.since is not None:
            mask = pc.and_(mask, pc.greater_equal(rows["ingest_time"], _moment(letters.since)))
        if letters.until is not None:
            mask = pc.and_(mask, pc.less(rows["ingest_time"], _moment(letters.until)))
        if letters.reasons:
            mask = pc.and_(mask, pc.is_in(rows["reason"], value_set=reasons))
        return mask

    found = find(layout, wanted, columns=["ingest_time", "reason"], kinds=("dead_letter",))
    rows = found.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    if repaired is None:
        return rows
    rows = [row for row in rows if (row["partition"], row["offset"]) in repaired]
    unknown = set(repaired) - {(row["partition"], row["offset"]) for row in rows}
    if unknown:
        raise InputError(
            "The repaired file names dead letters that are not meant or do not exist.",
            got=f"{len(unknown)}, the first {min(unknown)}",
            allowed="partition and offset as `palate replay --export` writes them",
        )
    return rows


def _moment(time: datetime) -> Any:
    import pyarrow as pa

    return pa.scalar(time, pa.timestamp("us", tz="UTC"))


def _mended(row: Mapping[str, Any], edit: Edit | None, repaired: Mapping[Key, bytes] | None) -> bytes:
    """The bytes to read in a letter's place."""
    raw: bytes = row["raw"] or b""
    if repaired is not None:
        raw = repaired[(row["partition"], row["offset"])]
    if edit is None:
        return raw
    where = f"{row['partition']}@{row['offset']}"
    try:
        changed = edit(raw, row["reason"], row["detail"] or "")
    except Exception as error:  # a user's own code, which may raise anything
        raise InputError(
            f"The function that edits dead letters failed on {where}; nothing was replayed.",
            got=f"{type(error).__name__}: {error}",
            next_step="mend the function; it may give None for a letter it cannot mend",
        ) from error
    if changed is None:
        return raw
    if not isinstance(changed, bytes):
        raise InputError(
            f"The function that edits dead letters gave no bytes for {where}.",
            got=type(changed).__name__,
            allowed="bytes, or None to leave the letter as it is",
        )
    return changed


def _judge(
    mended: Sequence[tuple[Mapping[str, Any], bytes]], config: IngestConfig, now: datetime
) -> tuple[list[tuple[Key, bytes]], list[Refused]]:
    """Divides letters into those that pass validation and expectations now, and those that do not."""
    accepted: list[tuple[Key, bytes]] = []
    events = []
    refused: list[Refused] = []
    for row, raw in mended:
        key = (row["partition"], row["offset"])
        parsed = parse(raw, now=now, limits=config.limits)
        if isinstance(parsed, Rejected):
            refused.append(Refused(*key, parsed.reason, parsed.detail))
        else:
            accepted.append((key, raw))
            events.append(parsed)
    failures: Mapping[int, str] = {}
    if events:
        from .expectations import Expectations

        table = to_table(events, source="", partition="", offsets=list(range(len(events))), ingest_time=now)
        failures = Expectations(config.expectations, now=now).failures(table)
    for number, name in sorted(failures.items()):
        refused.append(Refused(*accepted[number][0], f"expectation:{name}", "the expectation does not hold"))
    return [item for number, item in enumerate(accepted) if number not in failures], refused
