"""What a person sees of a running ingest: one live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

from palate.console import Out, escape

if TYPE_CHECKING:
    from pipelines.follow import Status

LINE_EVERY_S = 10.0
_SHOWN_PARTITIONS = 8


class FollowView:
    """Shows every `Status` it is given; a context that ends the live part."""

    def __init__(self, out: Out):
        self._out = out
        self._status: Status | None = None
        self._gaps = 0
        self._said = ("", 0.0)
        terminal = out.console.is_terminal
        self._live = Live(
            console=out.console, get_renderable=self._table, refresh_per_second=2, transient=True
        )
        self._live_or_none = self._live if terminal else None

    def __enter__(self) -> FollowView:
        if self._live_or_none is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live_or_none is not None:
            self._live.stop()

    def show(self, status: Status) -> None:
        """Called after every round and whenever the state changes."""
        self._status = status
        for gap in status.summary.gaps[self._gaps :]:
            self._out.say(f"Warning: records had expired before they were read. {gap}")
        self._gaps = len(status.summary.gaps)
        state, at = self._said
        now = time.monotonic()
        if self._live_or_none is None and (status.state != state or now - at >= LINE_EVERY_S):
            # Reading and idling take turns all the time; only the other changes are news.
            if {state, status.state} <= {"reading", "idle"} and now - at < LINE_EVERY_S:
                return
            self._said = (status.state, now)
            (word, problem), *facts = _facts(status)
            first = f"{word}: {' '.join(problem.split())}" if problem else word
            self._out.say(" · ".join([first, *(f"{name} {value}" for name, value in facts)]))

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        if self._status is not None:
            for name, value in _facts(self._status):
                table.add_row(escape(name), escape(value))
            behind = sorted(self._status.lag.items(), key=lambda item: -item[1])
            for name, left in [item for item in behind if item[1]][:_SHOWN_PARTITIONS]:
                table.add_row(escape(f"  {name}"), f"{left:,}")
        return table


def _facts(status: Status) -> Iterator[tuple[str, str]]:
    """What is worth a place in one line."""
    total = status.summary
    yield (
        {"away": "broker away", "idle": "waiting for events"}.get(status.state, status.state),
        status.problem,
    )
    yield "events", f"{total.received:,}"
    yield "rate", f"{status.events_per_s:,.0f}/s"
    yield "lag", f"{status.behind:,}"
    worst = max(total.dead_letters.items(), key=lambda item: item[1], default=("", 0))[0]
    yield "dead letters", f"{status.bad_share:.2%}" + (f" (most: {worst})" if worst else "")
    if total.gaps:
        yield "gaps", f"{len(total.gaps)} ({total.lost:,} offsets)"
    if status.committed_at is not None:
        age = (datetime.now(UTC) - status.committed_at).total_seconds()
        yield "last commit", f"{age:.0f} s ago"
