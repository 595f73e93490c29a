"""The Arrow schemas that the stages hand each other, and the one way from parsed events to a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from feedback.events import SCHEMA_VERSION, Event, Interaction, canonical
from feedback.validation import Rejected

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
    ]
)


def fate_row(
    event_id: str | None,
    kind: str,
    digest: str,
    fate: Fate,
    reason: str | None = None,
    preference_ids: Sequence[str] = (),
) -> dict[str, Any]:
    """One row of `FATES`."""
    return {
        "event_id": event_id,
        "kind": kind,
        "fate": fate,
        "reason": reason,
        "preference_ids": sorted(preference_ids),
        "digest": digest,
    }


def fates_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows of `fate_row` as a table in an order that depends on nothing but the rows."""
    table = pa.Table.from_pylist(list(rows), schema=FATES)
    keys = [(name, "ascending") for name in ("kind", "event_id", "digest", "fate", "reason")]
    return table.sort_by(keys)


def to_table(
    parsed: Iterable[Event | Rejected],
    *,
    source: str,
    partition: str,
    offsets: Sequence[int],
    ingest_time: datetime,
) -> pa.Table:
    """Parsed events and refusals as one table in `EVENTS`, one row each, in their order.

    Give a generator where speed counts: each event is then freed as soon as it is a row. A list of ten
    thousand events keeps the garbage collector so busy that the whole takes about twice as long.

    Args:
        parsed: What `validation.parse` gave.
        source: Name of the source they came from.
        partition: Id of the partition they came from.
        offsets: Where in the partition each one starts.
        ingest_time: When they were read, aware.

    Raises:
        ValueError: There is not one offset per event.
    """
    columns: list[list[Any]] = [[] for _ in range(12)]
    kind, ids, digests, interactions, sessions, users, agents, times, bodies, reasons, details, raws = columns
    for item in parsed:
        row = _rejected_row(item) if isinstance(item, Rejected) else _event_row(item)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    count = len(kind)
    if count != len(offsets):
        raise ValueError(f"{count} events but {len(offsets)} offsets")
    arrays = [
        kind, ids, digests, interactions, sessions, users, agents, times, [ingest_time] * count, bodies,
        reasons, details, raws, [source] * count, [partition] * count, list(offsets),
        [SCHEMA_VERSION] * count,
    ]  # fmt: skip
    return pa.table(
        [pa.array(values, type=field.type) for values, field in zip(arrays, EVENTS, strict=True)],
        schema=EVENTS,
    )


def _event_row(event: Event) -> tuple[Any, ...]:
    body = canonical(event)
    if isinstance(event, Interaction):
        kind, own_id, agent = "interaction", event.interaction_id, event.agent
    else:
        kind, own_id, agent = "feedback", event.feedback_id, None
    digest = hashlib.sha256(body).hexdigest()
    return (
        kind, own_id, digest, event.interaction_id, event.session_id, event.user_id, agent, event.event_time,
        body.decode(), None, None, None,
    )  # fmt: skip


def _rejected_row(item: Rejected) -> tuple[Any, ...]:
    digest = hashlib.sha256(item.raw).hexdigest()
    return (
        "dead_letter", item.event_id, digest, None, None, None, None, None, None, item.reason, item.detail,
        item.raw,
    )  # fmt: skip
