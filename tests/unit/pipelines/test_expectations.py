"""Great Expectations on real batches, one wrong column at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from feedback.tables import EVENTS, to_table
from feedback.validation import Limits, Rejected, parse
from pipelines.expectations import Expectations, ExpectationsConfig

from .made import NOW, feedback, interaction, lines


@pytest.fixture(scope="module")
def suite() -> Expectations:
    return Expectations(ExpectationsConfig(), now=NOW)


def _batch() -> pa.Table:
    events = [
        parse(lines([event]).strip(), now=NOW, limits=Limits()) for event in (interaction(0), feedback(0, 0))
    ]
    assert not [event for event in events if isinstance(event, Rejected)]
    return to_table(events, source="test", partition="p", offsets=[0, 1], ingest_time=NOW)


def _with(column: str, value: Any) -> pa.Table:
    rows = _batch().to_pylist()
    rows[1][column] = value
    if column == "interaction_id":
        rows[1]["session_id"] = None
    return pa.Table.from_pylist(rows, schema=EVENTS)


def test_good_rows_pass(suite: Expectations) -> None:
    assert suite.failures(_batch()) == {}
    assert suite.failures(_batch().slice(0, 0)) == {}


@pytest.mark.parametrize(
    ("column", "value", "name"),
    [
        ("event_id", None, "event_id_present"),
        ("event_id", "", "event_id_length"),
        ("event_id", "x" * 257, "event_id_length"),
        ("digest", None, "digest_present"),
        ("digest", "A" * 64, "digest_is_sha256"),
        ("kind", "reaction", "kind_known"),
        ("schema_version", 2, "schema_version_known"),
        ("event_time", None, "event_time_present"),
        ("event_time", datetime(1970, 1, 21, tzinfo=UTC), "event_time_plausible"),
        ("event_time", NOW + timedelta(days=1, seconds=1), "event_time_plausible"),
        ("interaction_id", None, "joinable"),
        ("body", "x" * 2_000_001, "body_size"),
    ],
)
def test_each_expectation_finds_its_row(suite: Expectations, column: str, value: Any, name: str) -> None:
    assert suite.failures(_with(column, value)) == {1: name}


def test_thresholds_are_the_configs() -> None:
    strict = Expectations(ExpectationsConfig(max_id_chars=1), now=NOW)
    assert strict.failures(_batch()) == {0: "event_id_length", 1: "event_id_length"}
