"""One event's story: when it came and from where, what became of it, and which datasets rest on it.

Everything is looked up in the tables as they are; nothing is written. What training made of the datasets is
not known here: the command line adds runs and models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from feedback.events import compared

from . import fates, replay_batches
from .damage import table_damage_told
from .ledger import NOT_BUILT
from .lookup import find
from .story_datasets import DatasetUse, PreferenceRow, resting_on
from .workspace import Layout

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_CHARS = 200
_SIGNALS = 50
_AT = ["partition", "offset"]
_OFFSET_DIGITS = 18
"""More is no offset: they are numbers of 64 bits."""


@dataclass(frozen=True)
class Place:
    """Where a row of the events table was read from."""

    partition: str
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


@dataclass(frozen=True)
class Arrival:
    """One row of the events table: an event arrives once for each time it was sent."""

    kind: str
    event_id: str | None
    source: str
    place: Place
    ingest_time: datetime
    event_time: datetime | None
    digest: str
    fate: str
    fate_reason: str | None
    preference_ids: tuple[str, ...]
    """Rows of the newest dataset that rest on it."""
    detail: str | None
    """Why it was refused, exactly."""
    said: str
    """The beginning of its text, or of its bytes; data of users."""
    replay_of: Place | None
    """The dead letter that this row was made of."""
    replayed_as: tuple[Place, ...]
    """The rows that were made of this dead letter."""


@dataclass(frozen=True)
class Related:
    """An event that this one is joined with, or waits for."""

    relation: str
    kind: str
    event_id: str
    arrived: bool
    said: str


@dataclass(frozen=True)
class Story:
    """What is known of an event. Nothing is known when `arrivals` is empty."""

    event_id: str
    arrivals: tuple[Arrival, ...] = ()
    related: tuple[Related, ...] = ()
    rows: tuple[PreferenceRow, ...] = ()
    datasets: tuple[DatasetUse, ...] = ()
    damaged: tuple[str, ...] = ()
    """Dataset versions that could not be looked into."""


@table_damage_told()
def story(workspace: Path, event_id: str) -> Story:
    """Collects what became of an event.

    Args:
        workspace: the workspace directory.
        event_id: id of an interaction or a feedback, or `partition@offset` of any row; dead letters without a
            readable id are found only so.
    """
    layout = Layout(Path(workspace).resolve())
    if not _is_text(event_id):
        return Story(event_id)
    rows = _rows(layout, event_id)
    if rows.num_rows == 0:
        return Story(event_id)
    arrivals = tuple(_arrivals(layout, rows.to_pylist()))
    ids = sorted({arrival.event_id for arrival in arrivals if arrival.event_id is not None})
    related = tuple(_related(layout, rows.to_pylist()))
    found, uses, damaged = resting_on(layout, ids)
    return Story(event_id, arrivals, related, found, uses, damaged)


def _rows(layout: Layout, event_id: str) -> pa.Table:
    """The rows under an id, and the dead letters and replays that belong to them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    place = _place(event_id)

    def wanted(rows: pa.Table) -> pa.Array:
        mask = pc.fill_null(pc.equal(rows["event_id"], event_id), False)
        if place is not None:
            at = pc.and_(pc.equal(rows["partition"], place.partition), pc.equal(rows["offset"], place.offset))
            mask = pc.or_(mask, pc.fill_null(at, False))
        return mask

    rows = find(layout, wanted, columns=["event_id", *_AT])
    linked = _linked(layout, rows)
    if linked:
        more = find(layout, lambda part: _at(part, linked), columns=_AT)
        rows = pa.concat_tables([rows, more])
    return rows.sort_by([("ingest_time", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


def _linked(layout: Layout, rows: pa.Table) -> list[Place]:
    """Where the dead letters of these replays, and the replays of these dead letters, lie."""
    known = {Place(row["partition"], row["offset"]) for row in rows.select(_AT).to_pylist()}
    found: set[Place] = set()
    for place in known:
        origin = replay_batches.origin(layout, place.partition, place.offset)
        if origin is not None:
            found.add(Place(*origin))
    letters = [place for place in known | found if not place.partition.startswith(replay_batches.PREFIX)]
    for again in replay_batches.replays(layout, [(p.partition, p.offset) for p in letters]).values():
        found |= {Place(*where) for where in again}
    return sorted(found - known, key=str)


def _at(rows: pa.Table, places: Sequence[Place]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.array([False] * rows.num_rows)
    for place in places:
        here = pc.and_(pc.equal(rows["partition"], place.partition), pc.equal(rows["offset"], place.offset))
        mask = pc.or_(mask, here.combine_chunks() if isinstance(here, pa.ChunkedArray) else here)
    return mask


def _is_text(text: str) -> bool:
    """Whether an event can have it as its id; a shell may hand over bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _place(text: str) -> Place | None:
    partition, at, offset = text.rpartition("@")
    if not at or not (offset.isascii() and offset.isdigit()) or len(offset) > _OFFSET_DIGITS:
        return None
    return Place(partition, int(offset))


def _arrivals(layout: Layout, rows: Sequence[Mapping[str, Any]]) -> Iterator[Arrival]:
    ids = sorted({row["event_id"] for row in rows if row["event_id"] is not None})
    found = fates.read(layout, event_ids=ids).to_pylist() if ids else []
    ends = {(fate["partition"], fate["offset"]): fate for fate in found}
    letters = [(row["partition"], row["offset"]) for row in rows if row["kind"] == "dead_letter"]
    again = replay_batches.replays(layout, letters)
    for row in rows:
        place = Place(row["partition"], row["offset"])
        end = ends.get((row["partition"], row["offset"])) or _unbuilt(row)
        origin = replay_batches.origin(layout, place.partition, place.offset)
        yield Arrival(
            kind=row["kind"],
            event_id=row["event_id"],
            source=row["source"],
            place=place,
            ingest_time=row["ingest_time"],
            event_time=row["event_time"],
            digest=row["digest"],
            fate=end["fate"],
            fate_reason=end["reason"],
            preference_ids=tuple(end["preference_ids"]),
            detail=row["detail"],
            said=_said(row),
            replay_of=Place(*origin) if origin else None,
            replayed_as=tuple(Place(*where) for where in again.get((place.partition, place.offset), ())),
        )


def _unbuilt(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fate of what came after the newest build; a dead letter's was settled when it came."""
    if row["kind"] == "dead_letter":
        return {"fate": "dead_letter", "reason": row["reason"], "preference_ids": ()}
    return {"fate": "waiting", "reason": NOT_BUILT, "preference_ids": ()}


def _said(row: Mapping[str, Any]) -> str:
    """What a person would recognise the event by."""
    if row["kind"] == "dead_letter":
        return (row["raw"] or b"")[: 4 * _SHOWN_CHARS].decode("utf-8", errors="replace")[:_SHOWN_CHARS]
    if not row["body"]:
        return str(row["detail"] or "")[:_SHOWN_CHARS]
    body = orjson.loads(row["body"])
    if row["kind"] == "interaction":
        asked = next((m["content"] for m in reversed(body["prompt"]) if m["role"] == "user"), "")
        return f"{asked[: _SHOWN_CHARS // 2]} → {body['completion']['content'][: _SHOWN_CHARS // 2]}"
    value = "" if body.get("value") is None else f" {orjson.dumps(body['value']).decode()}"
    return f"{body['kind']}{value}"[:_SHOWN_CHARS]


def _related(layout: Layout, rows: Sequence[Mapping[str, Any]]) -> Iterator[Related]:
    """What the event is about, what is about it, and what takes it back."""
    import pyarrow as pa
    import pyarrow.compute as pc

    interactions = {row["event_id"] for row in rows if row["kind"] == "interaction"}
    signals = {row["event_id"]: orjson.loads(row["body"]) for row in rows if row["kind"] == "feedback"}
    targets = {target for body in signals.values() for target in _targets(body)}
    sessions = {
        body["session_id"]
        for body in signals.values()
        if body.get("interaction_id") is None and body.get("session_id") is not None
    }
    about = pa.array(sorted(interactions | targets), pa.string())
    of_session = pa.array(sorted(sessions), pa.string())

    def wanted(part: pa.Table) -> pa.Array:
        near = pc.is_in(part["interaction_id"], value_set=about)
        return pc.or_(near, pc.is_in(part["session_id"], value_set=of_session))

    columns, kinds = ["interaction_id", "session_id"], ("interaction", "feedback")
    near = find(layout, wanted, columns=columns, kinds=kinds).to_pylist()
    arrived = {row["event_id"]: row for row in near if row["kind"] == "interaction"}
    others = {
        row["event_id"]: row for row in near if row["kind"] == "feedback" and row["event_id"] not in signals
    }
    for target in sorted(targets):
        row = arrived.get(target)
        yield Related("about", "interaction", target, row is not None, _said(row) if row else "")
    for name in sorted(n for n, row in arrived.items() if row["session_id"] in sessions)[:_SIGNALS]:
        yield Related("about its session", "interaction", name, True, _said(arrived[name]))
    for _, body in sorted(signals.items()):
        if back := body.get("retracts"):
            yield Related(
                "takes back", "feedback", back, back in others, _said(others[back]) if back in others else ""
            )
    yield from list(_signals(interactions, signals, others))[:_SIGNALS]


def _signals(
    interactions: set[str], signals: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
) -> Iterator[Related]:
    """Feedback about these interactions, and feedback that takes these signals back."""
    for name, row in sorted(others.items()):
        body = orjson.loads(row["body"])
        if body.get("retracts") in signals:
            yield Related("taken back by", "feedback", name, True, _said(row))
        elif interactions & set(_targets(body)):
            yield Related("feedback", "feedback", name, True, _said(row))


def _targets(body: Mapping[str, Any]) -> list[str]:
    """The interactions that a feedback is about."""
    named = compared(body["value"]) if body["kind"] == "vote" else []
    own = body.get("interaction_id")
    return sorted({*named, *([own] if own is not None else [])})
