"""Watermarks are moved by hand: TestStream on the one runner that has it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import TimestampedValue

from pipelines.event_time import (
    IN_TIME,
    JOINED,
    TOO_LATE,
    WAITING,
    EventTime,
    JoinFeedback,
    KeyBy,
    Sessions,
    SplitTooLate,
    seconds,
)


def event(
    at_s: float, name: str, kind: str = "interaction", about: str | None = None, **more: Any
) -> dict[str, Any]:
    time = datetime.fromtimestamp(at_s, UTC).isoformat()
    own = (
        {"interaction_id": name} if kind == "interaction" else {"feedback_id": name, "interaction_id": about}
    )
    return {"type": kind, "event_time": time, **own, **more}


def add(stream: TestStream, *events: dict[str, Any]) -> TestStream:
    return stream.add_elements([TimestampedValue(item, seconds(item)) for item in events])


def pipeline() -> beam.Pipeline:
    options = PipelineOptions([])
    options.view_as(StandardOptions).streaming = True
    return beam.Pipeline(runner=BundleBasedDirectRunner(), options=options)


def names(events: Any) -> tuple[str, ...]:
    return tuple(item.get("feedback_id") or item["interaction_id"] for item in events)


def test_sessions_close_at_the_watermark_and_are_corrected_by_late_events():
    stream = TestStream().advance_watermark_to(0)
    stream = add(
        stream, event(10, "a", session_id="s"), event(40, "b", session_id="s"), event(15, "x", session_id="t")
    )
    stream = stream.advance_watermark_to(101)  # past 40 + 60 and 15 + 60
    stream = add(stream, event(30, "late", session_id="s"))
    stream = add(stream, event(200, "next", session_id="s")).advance_watermark_to_infinity()
    with pipeline() as p:
        panes = p | stream | KeyBy("session_id") | Sessions(60, allowed_lateness_s=100)
        told = panes | beam.Map(lambda s: (s.key, s.start_s, s.end_s, names(s.events), s.timing))
        expected = [
            ("s", 10.0, 100.0, ("a", "b"), "on_time"),
            ("t", 15.0, 75.0, ("x",), "on_time"),
            ("s", 10.0, 100.0, ("a", "late", "b"), "late"),
            ("s", 200.0, 260.0, ("next",), "on_time"),
        ]
        assert_that(told, equal_to(expected))


def test_what_a_window_would_drop_is_told_and_the_rest_goes_on():
    stream = TestStream().advance_watermark_to(0)
    stream = add(stream, event(10, "a", session_id="s")).advance_watermark_to(150)
    # The horizon is 60 + 50: at 150 an event of 45 is in time and one of 20 is not.
    stream = add(stream, event(45, "late", session_id="u"), event(20, "lost", session_id="v"))
    stream = stream.advance_watermark_to_infinity()
    with pipeline() as p:
        split = p | stream | KeyBy("session_id") | SplitTooLate(60 + 50)
        panes = split[IN_TIME] | Sessions(60, allowed_lateness_s=50)
        told = panes | beam.Map(lambda s: (s.key, s.start_s, names(s.events), s.timing))
        assert_that(told, equal_to([("s", 10.0, ("a",), "on_time"), ("u", 45.0, ("late",), "late")]))
        lost = split[TOO_LATE] | "Names" >> beam.Map(lambda kv: (kv[0], names([kv[1]])))
        assert_that(lost, equal_to([("v", ("lost",))]), label="too late")


def test_feedback_meets_its_interaction_in_either_order_and_waits_for_the_watermark():
    stream = TestStream().advance_watermark_to(0)
    stream = add(
        stream, event(10, "i1"), event(11, "after", "feedback", "i1"),
        event(5, "before", "feedback", "i2"), event(6, "i2"), event(20, "orphan", "feedback", "i3"),
    )  # fmt: skip
    stream = stream.advance_watermark_to(70)
    stream = add(stream, event(30, "i4"), event(69, "much later", "feedback", "i4"))
    stream = stream.advance_watermark_to(121)  # 20 + 100 has passed: the orphan is told
    stream = add(stream, event(25, "i3")).advance_watermark_to_infinity()
    with pipeline() as p:
        keyed = p | stream | KeyBy("interaction_id")
        outputs = keyed | JoinFeedback(wait_s=100)
        pairs = outputs[JOINED] | "Pairs" >> beam.Map(
            lambda j: (names([j.interaction])[0], names([j.feedback])[0])
        )
        assert_that(pairs, equal_to([("i1", "after"), ("i2", "before"), ("i4", "much later")]))
        waiting = outputs[WAITING] | "Waiting" >> beam.Map(lambda item: names([item])[0])
        assert_that(waiting, equal_to(["orphan"]), label="waiting")


def test_a_copy_of_an_interaction_changes_nothing_and_events_are_stamped_with_their_time():
    stream = TestStream().advance_watermark_to(0)
    items = [event(10, "i"), event(12, "i"), event(11, "f", "feedback", "i"), event(1, "stray", "feedback")]
    stream = stream.add_elements(items).advance_watermark_to_infinity()
    with pipeline() as p:
        joined = (p | stream | EventTime() | KeyBy("interaction_id") | JoinFeedback(wait_s=5))[JOINED]
        assert_that(joined | beam.Map(lambda j: seconds(j.interaction)), equal_to([10.0]))


def test_a_horizon_below_the_rounding_is_refused():
    with pytest.raises(ValueError, match="horizon_s"):
        SplitTooLate(1)
