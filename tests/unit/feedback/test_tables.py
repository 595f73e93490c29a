from __future__ import annotations

import hashlib
import json

import pyarrow as pa
import pytest

from feedback.events import canonical, digest
from feedback.tables import EVENTS, FATES, fates_table, to_table
from feedback.validation import Rejected
from tests.unit.feedback.made import NOON, feedback, interaction, table

WHERE = {"source": "s", "partition": "p", "ingest_time": NOON}


def test_an_interaction_a_feedback_and_a_dead_letter():
    asked = interaction("i", user_id="u", session_id="s", reply="né")
    whole = feedback("f", None, "comment", {"text": "good"}, session_id="s")
    bad = Rejected("wrong_encoding", "byte 0 is not UTF-8", b"\xff\0", "maybe")
    rows = to_table([asked, whole, bad], offsets=[0, 7, 9], **WHERE)
    assert rows.schema.equals(EVENTS)
    first, second, third = rows.to_pylist()
    assert (first["kind"], first["event_id"], first["interaction_id"]) == ("interaction", "i", "i")
    assert (first["agent"], first["event_time"], first["digest"]) == ("assistant", NOON, digest(asked))
    assert first["body"] == canonical(asked).decode()
    assert json.loads(first["body"])["completion"]["content"] == "né"
    assert (second["kind"], second["event_id"], second["interaction_id"]) == ("feedback", "f", None)
    assert (second["session_id"], second["offset"], second["raw"]) == ("s", 7, None)
    assert (third["kind"], third["event_id"], third["body"]) == ("dead_letter", "maybe", None)
    assert (third["reason"], third["raw"], third["event_time"]) == ("wrong_encoding", b"\xff\0", None)
    assert third["digest"] == hashlib.sha256(b"\xff\0").hexdigest()
    assert {row["ingest_time"] for row in (first, second, third)} == {NOON}


def test_events_may_come_from_a_generator():
    events = [interaction(f"i{n}") for n in range(3)]
    assert to_table(iter(events), offsets=range(3), **WHERE).equals(
        to_table(events, offsets=range(3), **WHERE)
    )


def test_each_event_has_an_offset():
    with pytest.raises(ValueError, match="1 events but 2 offsets"):
        to_table([interaction("i")], offsets=[0, 1], **WHERE)


def test_no_events_are_an_empty_table():
    assert table([]).schema.equals(EVENTS)
    assert fates_table(table([]), "ready").schema.equals(FATES)


def test_the_order_of_fates_depends_on_the_events_only():
    events = table([interaction(name) for name in ("b", "a", "c")])
    mixed = fates_table(events.take(pa.array([2, 0, 1])), "waiting", "orphan")
    assert fates_table(events, "waiting", "orphan").equals(mixed)
    assert mixed["event_id"].to_pylist() == ["a", "b", "c"] and mixed["offset"].to_pylist() == [1, 0, 2]
    assert mixed["fate"].to_pylist() == ["waiting"] * 3 and mixed["preference_ids"].to_pylist() == [[]] * 3
