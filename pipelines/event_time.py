"""Event time: sessions, feedback that waits for its interaction, and events that come too late, as PTransforms.

Meant for a streaming runner (Flink, Dataflow) where people want to see sessions or joined feedback within seconds:
a monitor, an alert, a counter. What is trained on never comes from here. That is the batch build, which joins
feedback however late it comes and does not depend on a runner's state; what these transforms give up on
(`too_late`, `waiting`) is in its tables and joined there.

Delivery is the runner's; nothing is dropped silently: every input element is in exactly one output. Lateness is
measured against the watermark, so it is the source that decides what is late.

    keyed = events | EventTime() | KeyBy("session_id")
    split = keyed | SplitTooLate(gap_s + allowed_lateness_s)
    panes = split[IN_TIME] | Sessions(gap_s, allowed_lateness_s)       # split[TOO_LATE] goes to the tables only

Tested with TestStream on `BundleBasedDirectRunner`, the one runner in Beam's Python package that has a watermark
and timers for it; on `FnApiRunner` timers fire at the end of each bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindows,
    TimestampedValue,
)
from apache_beam.transforms.window import (
    Sessions as SessionWindows,
)
from apache_beam.utils.windowed_value import PaneInfoTiming

Event = Mapping[str, Any]

IN_TIME, TOO_LATE = "in_time", "too_late"
JOINED, WAITING = "joined", "waiting"
TIMINGS = {PaneInfoTiming.EARLY: "early", PaneInfoTiming.ON_TIME: "on_time", PaneInfoTiming.LATE: "late"}
_FOR_EVER_S = 10 * 365 * 86_400


class Session(NamedTuple):
    """One pane of one session.

    Attributes:
        start_s: Event time of its first event, Unix seconds.
        end_s: Event time of its last event plus the gap.
        events: All events so far, by event time and id.
        timing: `on_time` when the watermark passed the end; `late` for each correction after that.
    """

    key: str
    start_s: float
    end_s: float
    events: list[Event]
    timing: str


class Joined(NamedTuple):
    """A feedback with the interaction it is about."""

    interaction: Event
    feedback: Event


def seconds(event: Event) -> float:
    """Event time of a wire event, Unix seconds."""
    return datetime.fromisoformat(event["event_time"]).timestamp()


class EventTime(beam.PTransform):
    """Wire events → the same, stamped with their own event time."""

    def expand(self, events: Any) -> Any:
        """The source's watermark must allow for how late events come."""
        return events | beam.Map(lambda event: TimestampedValue(event, seconds(event)))


class KeyBy(beam.PTransform):
    """Events → `(key, event)` by a field, for instance `session_id` or `user_id`; events without it are left out."""

    def __init__(self, field: str):
        super().__init__()
        self.field = field

    def expand(self, events: Any) -> Any:
        """Events without the field belong to no session, and cannot be asked for by it."""
        field = self.field
        return (
            events
            | "HasKey" >> beam.Filter(lambda event: event.get(field) is not None)
            | "Key" >> beam.Map(lambda event: (event[field], event))
        )


class SplitTooLate(beam.PTransform):
    """`(key, event)` → those that windows of this horizon still take, and those that they would silently drop.

    A runner does not show its watermark to a function, but says of every pane whether it is late. So each element is
    put `horizon_s` (less a second for rounding) ahead of its time, and is too late where its pane is.

    Args:
        horizon_s: How far the watermark may be past an element: gap plus allowed lateness, for sessions.
    """

    def __init__(self, horizon_s: float):
        super().__init__()
        if horizon_s <= 1:
            raise ValueError(f"horizon_s must exceed 1 second, got {horizon_s}")
        self.ahead_s = horizon_s - 1

    def expand(self, keyed: Any) -> Any:
        """Gives a dictionary of collections: `IN_TIME` and `TOO_LATE`."""
        ahead_s = self.ahead_s

        def ahead(element: Any, at: Any = beam.DoFn.TimestampParam) -> Any:
            return TimestampedValue((element[0], (element[1], float(at))), at + ahead_s)

        marked = (
            keyed
            | "Ahead" >> beam.Map(ahead)
            | "Seconds"
            >> beam.WindowInto(
                FixedWindows(1),
                trigger=AfterWatermark(early=AfterCount(1), late=AfterCount(1)),
                accumulation_mode=AccumulationMode.DISCARDING,
                allowed_lateness=_FOR_EVER_S,
            )
            | "Panes" >> beam.GroupByKey()
            | "Split" >> beam.ParDo(_ByPane()).with_outputs(TOO_LATE, main=IN_TIME)
        )
        return {
            name: marked[name] | f"Restore_{name}" >> beam.WindowInto(GlobalWindows())
            for name in (IN_TIME, TOO_LATE)
        }


class _ByPane(beam.DoFn):
    def process(self, element: Any, pane: Any = beam.DoFn.PaneInfoParam) -> Iterator[Any]:
        key, stamped = element
        for event, at in stamped:
            back = TimestampedValue((key, event), at)
            yield beam.pvalue.TaggedOutput(TOO_LATE, back) if pane.timing == PaneInfoTiming.LATE else back


class Sessions(beam.PTransform):
    """`(key, event)` → `Session`: events of one key with no longer pause than the gap.

    Each pane holds the whole session so far and replaces the one before it.

    Args:
        gap_s: The pause that ends a session.
        allowed_lateness_s: How long after its end a session still takes events.
    """

    def __init__(self, gap_s: float, allowed_lateness_s: float):
        super().__init__()
        self.gap_s, self.allowed_lateness_s = gap_s, allowed_lateness_s

    def expand(self, keyed: Any) -> Any:
        """One pane when the watermark passes the end, and one for each late event."""
        return (
            keyed
            | "SessionWindows"
            >> beam.WindowInto(
                SessionWindows(self.gap_s),
                trigger=AfterWatermark(late=AfterCount(1)),
                accumulation_mode=AccumulationMode.ACCUMULATING,
                allowed_lateness=self.allowed_lateness_s,
            )
            | "BySession" >> beam.GroupByKey()
            | "Session" >> beam.ParDo(_MakeSession())
        )


class _MakeSession(beam.DoFn):
    def process(
        self,
        element: tuple[str, Iterable[Event]],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[Session]:
        key, events = element
        ordered = sorted(events, key=lambda event: (seconds(event), str(event)))
        yield Session(key, float(window.start), float(window.end), ordered, TIMINGS[pane.timing])


class JoinFeedback(beam.PTransform):
    """`(interaction_id, event)` → `Joined`, whichever of the two comes first.

    Args:
        wait_s: How far the watermark may pass a feedback while its interaction is awaited; and how long an
            interaction is kept for feedback. What finds no partner in that time is in the output `WAITING`.
    """

    def __init__(self, wait_s: float):
        super().__init__()
        self.wait_s = wait_s

    def expand(self, keyed: Any) -> Any:
        """Gives the outputs `JOINED` and `WAITING`; the input is in the global window."""
        return keyed | "Match" >> beam.ParDo(_Match(self.wait_s)).with_outputs(WAITING, main=JOINED)


_INTERACTION = beam.DoFn.StateParam(ReadModifyWriteStateSpec("interaction", FastPrimitivesCoder()))
_FEEDBACK = beam.DoFn.StateParam(BagStateSpec("feedback", FastPrimitivesCoder()))
_UNTIL = beam.DoFn.StateParam(ReadModifyWriteStateSpec("until", FastPrimitivesCoder()))
_GIVE_UP = TimerSpec("give_up", TimeDomain.WATERMARK)
_GIVE_UP_AT = beam.DoFn.TimerParam(_GIVE_UP)


class _Match(beam.DoFn):
    def __init__(self, wait_s: float):
        self.wait_s = wait_s

    def process(
        self,
        element: tuple[str, Event],
        at: Any = beam.DoFn.TimestampParam,
        interaction: Any = _INTERACTION,
        feedback: Any = _FEEDBACK,
        until: Any = _UNTIL,
        give_up: Any = _GIVE_UP_AT,
    ) -> Iterator[Any]:
        """One timer for each key, at the latest time that any of its events waits for."""
        event = element[1]
        latest_s = max(float(at) + self.wait_s, until.read() or 0.0)
        until.write(latest_s)
        give_up.set(latest_s)
        if event["type"] == "interaction":
            if interaction.read() is None:  # a copy changes nothing
                interaction.write(dict(event))
            for waiting in feedback.read():
                yield Joined(interaction.read(), waiting)
            feedback.clear()
        elif (known := interaction.read()) is not None:
            yield Joined(known, event)
        else:
            feedback.add(dict(event))

    @on_timer(_GIVE_UP)
    def gave_up(
        self,
        interaction: Any = _INTERACTION,
        feedback: Any = _FEEDBACK,
        until: Any = _UNTIL,
    ) -> Iterator[Any]:
        """The watermark passed: what still waits is told, and the state is freed."""
        for waiting in feedback.read():
            yield beam.pvalue.TaggedOutput(WAITING, waiting)
        feedback.clear()
        interaction.clear()
        until.clear()
