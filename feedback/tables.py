"""The Arrow schemas that the stages hand each other, and the one way from parsed events to a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from feedback.events import SCHEMA_VERSION, Event, Interaction, canonical
from feedback.validation import Rejected

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", tz="UTC")

EVENTS: pa.Schema = pa.schema(
    [
        ("kind", pa.string()),  # interaction | feedback | dead_letter
        ("event_id", pa.string()),
        ("digest", pa.string()),  # sha256 of the canonical body; of the raw bytes for a dead letter
        ("interaction_id", pa.string()),
        ("session_id", pa.string()),
        ("user_id", pa.string()),
        ("agent", pa.string()),
        ("event_time", _TIME),
        ("ingest_time", _TIME),
        ("body", pa.string()),  # canonical wire JSON
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("raw", pa.binary()),  # dead letters only: the bytes as they came
        ("source", pa.string()),
        ("partition", pa.string()),
        ("offset", pa.int64()),
        ("schema_version", pa.int32()),
    ]
)

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))

PREFERENCES: pa.Schema = pa.schema(
    [
        ("preference_id", pa.string()),  # sha256 of everything else in the row
        ("prompt", _MESSAGES),
        ("prompt_key", pa.string()),
        ("chosen", pa.string()),  # the only completion, for unpaired rows
        ("rejected", pa.string()),  # null: unpaired
        ("label", pa.bool_()),  # unpaired only
        ("margin", pa.float64()),  # in [0, 1]; 0 is a tie between chosen and rejected
        ("weight", pa.float64()),
        ("propensity", pa.float64()),
        ("user_id", pa.string()),
        ("agent", pa.string()),
        ("rule", pa.string()),
        ("evidence", pa.list_(pa.string())),  # sorted event ids
        ("event_time", _TIME),  # of the newest signal in the evidence
        ("split", pa.string()),  # train | evaluation | test
        ("scrubbed", pa.list_(pa.string())),  # sorted kinds of personal data, one for each replacement
        ("schema_version", pa.int32()),
    ]
)

Fate = Literal["ready", "waiting", "dead_letter", "duplicate", "no_preference", "withheld"]

FATES: pa.Schema = pa.schema(
    [
        ("event_id", pa.string()),
        ("kind", pa.string()),
        ("fate", pa.string()),
        ("reason", pa.string()),
        ("preference_ids", pa.list_(pa.string())),  # sorted
        ("digest", pa.string()),
        ("ingest_time", _TIME),
        ("partition", pa.string()),
        ("offset", pa.int64()),  # with the partition: which row of the events table this is the fate of
    ]
)


def fates_table(
    events: pa.Table,
    fates: pa.Array | Fate,
    reasons: pa.Array | str | None = None,
    preference_ids: pa.Array | None = None,
) -> pa.Table:
    """Fates of some rows of the events table, in an order that depends on nothing but the rows.

    Args:
        events: Rows with at least id, kind, digest, ingest time, partition and offset.
        fates: One for each row, or one for all.
        reasons: Likewise; None where there is none.
        preference_ids: Lists of ids, one list for each row; None when no row has any.

    Returns:
        In `FATES`, one row for each event.
    """
    count = events.num_rows
    nothing = pa.array([[]] * count, FATES.field("preference_ids").type)
    decided = {
        "fate": pa.repeat(fates, count) if isinstance(fates, str) else fates,
        "reason": pa.repeat(pa.scalar(reasons, pa.string()), count)
        if reasons is None or isinstance(reasons, str)
        else reasons,
        "preference_ids": nothing if preference_ids is None else preference_ids,
    }
    columns = [decided[name] if name in decided else events.column(name) for name in FATES.names]
    keys = ("kind", "event_id", "digest", "fate", "reason", "partition", "offset")
    return pa.table(columns, names=FATES.names).cast(FATES).sort_by([(name, "ascending") for name in keys])


Row = tuple[
    str, str | None, str, str | None, str | None, str | None, str | None, str | None, bytes | None,
    str | None, str | None, bytes | None,
]  # fmt: skip
"""What an event alone decides of its row in `EVENTS`, in the order of the columns: kind, event_id, digest,
interaction_id, session_id, user_id, agent, event_time (canonical, UTC), body, reason, detail, raw."""


def to_table(
    parsed: Iterable[Event | Rejected],
    *,
    source: str,
    partition: str,
    offsets: Sequence[int],
    ingest_time: datetime,
) -> pa.Table:
    """Parsed events and refusals as one table in `EVENTS`, one row each, in their order.

    Args:
        parsed: What `validation.parse` gave.
        source: Name of the source they came from.
        partition: Id of the partition they came from.
        offsets: Where in the partition each one starts.
        ingest_time: When they were read, aware.

    Raises:
        ValueError: There is not one offset per event.
    """
    return rows_to_table(
        [row(item) for item in parsed],
        source=source,
        partition=partition,
        offsets=offsets,
        ingest_time=ingest_time,
    )


def rows_to_table(
    rows: Sequence[Row], *, source: str, partition: str, offsets: Sequence[int], ingest_time: datetime
) -> pa.Table:
    """Rows as a table in `EVENTS`; see `to_table`.

    Raises:
        ValueError: There is not one offset per row.
    """
    count = len(rows)
    if count != len(offsets):
        raise ValueError(f"{count} events but {len(offsets)} offsets")
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * 12
    kind, ids, digests, interactions, sessions, users, agents, times, bodies, reasons, details, raws = columns
    arrays: list[Any] = [
        kind, ids, digests, interactions, sessions, users, agents,
        pa.array(times, pa.string()).cast(_TIME),  # ten times as fast as from as many datetime objects
        pa.repeat(pa.scalar(ingest_time, _TIME), count),
        bodies, reasons, details, raws,
        pa.repeat(pa.scalar(source, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.string()), count),
        offsets,
        pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int32()), count),
    ]  # fmt: skip
    return pa.table(
        [
            values if isinstance(values, pa.Array) else pa.array(values, type=field.type)
            for values, field in zip(arrays, EVENTS, strict=True)
        ],
        schema=EVENTS,
    )


def row(item: Event | Rejected) -> Row:
    """The part of an event's or a refusal's row that it decides alone."""
    return _rejected_row(item) if isinstance(item, Rejected) else _event_row(item)


def _event_row(event: Event) -> Row:
    body = canonical(event)
    if isinstance(event, Interaction):
        kind, own_id, agent = "interaction", event.interaction_id, event.agent
    else:
        kind, own_id, agent = "feedback", event.feedback_id, None
    digest = hashlib.sha256(body).hexdigest()
    time = event.event_time.isoformat()[:-6] + "Z"
    return (
        kind, own_id, digest, event.interaction_id, event.session_id, event.user_id, agent, time, body,
        None, None, None,
    )  # fmt: skip


def _rejected_row(item: Rejected) -> Row:
    digest = hashlib.sha256(item.raw).hexdigest()
    return (
        "dead_letter", item.event_id, digest, None, None, None, None, None, None, item.reason, item.detail,
        item.raw,
    )  # fmt: skip


def times_of(column: pa.ChunkedArray) -> list[datetime]:
    """The times of a column without nulls, several times as fast as Arrow, which makes a zone for each of them."""
    return [
        EPOCH + timedelta(0, 0, microseconds)
        for microseconds in column.cast(_TIME).cast(pa.int64()).to_pylist()
    ]
