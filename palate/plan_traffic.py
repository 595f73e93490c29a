"""The newest traffic: who is there, whom an update concerns, and what people say outright."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from palate.context import Context
from palate.plan_canary import Verdicts

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_KINDS = ("thumb", "rating", "accept", "reject")
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Traffic:
    """People in the newest days of event time."""

    until: datetime | None
    """Time of the newest event; None without any."""
    days: float
    """How far it reaches back, at most the window of the settings and at least one day."""
    people: int
    """Distinct users with an interaction."""
    affected: int
    """Of them, those whom an agent served that the update learns from."""
    nameless: int
    """Interactions without a user."""
    verdicts: Verdicts


def traffic(context: Context, agents: Collection[str | None], window_days: float) -> Traffic:
    """What the events table holds of the newest days.

    Args:
        context: the project.
        agents: that the update learns from; None stands for rows without one.
        window_days: how far to look back from the newest event.
    """
    from pipelines import events_table
    from pipelines.workspace import Layout

    layout = Layout(context.project.dir)
    nothing = Traffic(None, 1.0, 0, 0, 0, Verdicts(np.zeros(0, dtype=bool), [], 1.0))
    if not events_table.exists(layout):
        return nothing
    table = events_table.open_table(layout)
    times = [column for _, column in _columns(table, ("interaction", "feedback"), ["event_time"])]
    bounds = [_bounds(each) for each in times if each.num_rows]
    if not bounds:
        return nothing
    until = max(last for _, last in bounds)
    since = until - window_days * _DAY
    oldest = max(since, min(first for first, _ in bounds))
    days = max(1.0, (until - oldest) / _DAY)
    people, affected, nameless = _people(table, since, set(agents))
    return Traffic(until, days, people, affected, nameless, _verdicts(context, table, since, days))


def _columns(table: DeltaTable, kinds: Collection[str], columns: list[str]) -> Iterator[tuple[str, pa.Table]]:
    """Some columns of each file of these kinds, with the kind."""
    import pyarrow.parquet as pq

    from pipelines import events_table

    for file in events_table.files(table):
        if file.kind in kinds:
            # As one file: a dataset would add a column of the folder's name.
            yield file.kind, pq.ParquetFile(file.path).read(columns)


def _bounds(times: pa.Table) -> tuple[datetime, datetime]:
    import pyarrow.compute as pc

    found = pc.min_max(times["event_time"]).as_py()
    return found["min"], found["max"]


def _people(table: DeltaTable, since: datetime, agents: set[str | None]) -> tuple[int, int, int]:
    """Distinct users, those of some agents, and interactions without a user."""
    import pyarrow as pa
    import pyarrow.compute as pc

    everybody: set[str] = set()
    affected: set[str] = set()
    nameless = 0
    named = pa.array([agent for agent in agents if agent is not None], pa.string())
    for _, rows in _columns(table, ("interaction",), ["event_time", "user_id", "agent"]):
        recent = rows.filter(pc.greater_equal(rows["event_time"], pa.scalar(since, rows["event_time"].type)))
        theirs = pc.is_in(recent["agent"], value_set=named)
        if None in agents:
            theirs = pc.or_(theirs, pc.is_null(recent["agent"]))
        nameless += recent["user_id"].null_count
        everybody |= set(pc.drop_null(recent["user_id"].unique()).to_pylist())
        affected |= set(pc.drop_null(recent.filter(theirs)["user_id"].unique()).to_pylist())
    return len(everybody), len(affected), nameless


def _verdicts(context: Context, table: DeltaTable, since: datetime, days: float) -> Verdicts:
    """The last that each user said outright of each reply; what was taken back is not heard."""
    import orjson
    import pyarrow as pa
    import pyarrow.compute as pc

    from feedback.joining import rank_copies
    from pipelines import lookup
    from pipelines.workspace import Layout

    def recent(rows: pa.Table) -> pa.Array:
        return pc.greater_equal(rows["event_time"], pa.scalar(since, rows["event_time"].type))

    layout = Layout(context.project.dir)
    ranked = rank_copies(lookup.find(layout, recent, columns=["event_time"], kinds={"feedback"}, table=table))
    standing = ranked.events.filter(pa.array(ranked.stands)).sort_by(
        [("event_time", "ascending"), ("digest", "ascending")]
    )
    signals = [orjson.loads(body) for body in standing["body"].to_pylist()]
    taken_back = {signal["retracts"] for signal in signals if signal.get("retracts") is not None}
    newest: dict[tuple[str, str], bool] = {}
    for signal in signals:
        said = _satisfied(signal)
        if said is None or signal["feedback_id"] in taken_back:
            continue
        # Somebody without a name is taken for as many people as there are signals.
        who = f"user {signal['user_id']}" if signal.get("user_id") else f"signal {signal['feedback_id']}"
        newest[who, signal["interaction_id"]] = said
    return Verdicts(np.array(list(newest.values()), dtype=bool), [who for who, _ in newest], days)


def _satisfied(signal: dict[str, Any]) -> bool | None:
    """Whether a signal of a user says that one reply was good; None where it says neither."""
    kind = signal["kind"]
    if kind not in _KINDS or signal["actor"] != "user" or signal.get("retracts") is not None:
        return None
    if signal.get("interaction_id") is None:
        return None
    if kind == "rating":
        rating: dict[str, float] = signal["value"]
        above = rating["value"] - (rating["lo"] + rating["hi"]) / 2
        return above > 0 if above else None
    return kind == "accept" or (kind == "thumb" and signal["value"] > 0)
