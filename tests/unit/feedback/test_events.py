from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta, timezone

import jsonschema
import pytest
from pydantic import ValidationError

from feedback.events import Interaction, Message, canonical, digest, prompt_key, render, wire_schema
from tests.unit.feedback.made import NOON, feedback, interaction

VALUES = [
    ("thumb", 1),
    ("thumb", -1),
    ("rating", {"value": 3, "lo": 1, "hi": 5}),
    ("vote", {"among": ["i", "j"], "winner": "j"}),
    ("vote", {"among": ["i", "j"], "winner": None}),
    ("vote", {"ranking": ["j", "i", "k"]}),
    ("edit", {"text": "better"}),
    ("next_message", {"text": "thanks"}),
    ("comment", {"text": ""}),
    ("outcome", {"metric": "tests_passed", "value": 0}),
    ("retry", None),
    ("copy", None),
    ("accept", None),
    ("reject", None),
    ("share", None),
]
BAD_VALUES = [
    ("thumb", 0),
    ("thumb", True),
    ("thumb", "1"),
    ("thumb", None),
    ("rating", {"value": 6, "lo": 1, "hi": 5}),
    ("rating", {"value": 1, "lo": 1, "hi": 1}),
    ("rating", {"value": 1, "lo": -1.7e308, "hi": 1.7e308}),
    ("rating", {"value": float("nan"), "lo": 1, "hi": 5}),
    ("rating", 3),
    ("vote", {"among": ["i"], "winner": "i"}),
    ("vote", {"among": ["i", "i"], "winner": "i"}),
    ("vote", {"among": ["i", "j"], "winner": "k"}),
    ("vote", {"among": ["j", "k"], "winner": "k"}),
    ("vote", {"ranking": ["i", "j"], "winner": "i"}),
    ("vote", {"ranking": ["i", *map(str, range(64))]}),
    ("edit", "better"),
    ("edit", {"text": "nul \0"}),
    ("outcome", {"metric": "", "value": 1}),
    ("retry", 1),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_every_kind_has_its_value(kind, value):
    event = feedback("f", "i", kind, value)
    assert json.loads(canonical(event)).get("value") == value


@pytest.mark.parametrize(("kind", "value"), BAD_VALUES)
def test_another_value_is_refused(kind, value):
    with pytest.raises(ValidationError):
        feedback("f", "i", kind, value)


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_published_schema_accepts_what_the_code_accepts(kind, value):
    validator = jsonschema.Draft202012Validator(wire_schema())
    wire = json.loads(canonical(feedback("f", "i", kind, value)))
    validator.validate(wire)
    wire["value"] = {"surprise": 1}
    assert not validator.is_valid(wire)


def test_published_schema_is_valid_and_refuses_unknown_fields():
    schema = wire_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    wire = json.loads(canonical(interaction("i", user_id="u")))
    validator.validate(wire)
    assert not validator.is_valid(wire | {"extra": 1})
    assert not validator.is_valid({k: v for k, v in wire.items() if k != "interaction_id"})
    assert schema["$defs"]["Interaction"]["properties"]["propensity"]["description"].startswith("Probability")


def test_canonical_is_independent_of_key_order_zone_and_composition():
    decomposed = interaction("i", reply="Cafe\u0301", metadata={"b": {"y": 1, "x": "e\u0301"}, "a": 2})
    composed = interaction("i", reply="Caf\u00e9", metadata={"a": 2, "b": {"x": "\u00e9", "y": 1}})
    elsewhere = composed.model_copy(update={"event_time": NOON.astimezone(timezone(timedelta(hours=9)))})
    assert canonical(decomposed) == canonical(composed)
    again = Interaction.model_validate(elsewhere.model_dump())
    assert again.event_time.tzinfo == UTC
    assert digest(again) == digest(composed)


def test_canonical_leaves_out_what_is_absent():
    event = interaction("i", metadata={"kept": None})
    assert json.loads(canonical(event)) == {
        "agent": "assistant",
        "completion": {"content": "reply i", "role": "assistant"},
        "event_time": "2026-03-01T12:00:00Z",
        "interaction_id": "i",
        "metadata": {"kept": None},
        "prompt": [{"content": "Why?", "role": "user"}],
        "schema_version": 1,
        "type": "interaction",
        "uses": ["evaluate", "train"],
    }


def test_consent_is_a_set():
    assert digest(interaction("i", uses=["train", "evaluate"])) == digest(
        interaction("i", uses=["evaluate", "train", "train"])
    )
    assert interaction("i", uses=[]).uses == []


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0", "x" * 257, "\x7f", "\x85"])
def test_ids_are_short_and_printable(name):
    with pytest.raises(ValidationError):
        interaction(name)


def test_an_id_of_any_script_is_kept_in_nfc():
    assert interaction("ключ-e\u0301").interaction_id == "ключ-\u00e9"


@pytest.mark.parametrize(
    "fields",
    [
        {"event_time": datetime(2026, 1, 1)},  # naive
        {"event_time": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))},
        {"propensity": 0},
        {"propensity": 1.1},
        {"tokens": -1},
        {"logprob": float("inf")},
        {"prompt": []},
        {"prompt": [Message(role="assistant", content="I said")]},
        {"completion": Message(role="user", content="You said")},
        {"metadata": {"x": float("nan")}},
        {"metadata": {"x": 2**64}},
        {"metadata": {"\u00e9": 1, "e\u0301": 2}},
        {"uses": ["sell"]},
    ],
)
def test_an_interaction_out_of_bounds_is_refused(fields):
    wire = interaction("i").model_dump() | fields
    with pytest.raises(ValidationError):
        Interaction.model_validate(wire)


def test_deeply_nested_metadata_is_refused_and_does_not_overflow():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValidationError):
        interaction("i", metadata={"deep": deep})


def test_feedback_is_about_something():
    with pytest.raises(ValidationError, match="interaction_id and session_id"):
        feedback("f", None, "copy")
    assert feedback("f", None, "copy", session_id="s").session_id == "s"


def test_events_are_frozen():
    with pytest.raises(ValidationError):
        interaction("i").agent = "other"


def test_prompt_key_folds_rewrites_and_later_turns():
    first = Message(role="user", content="How do  I\nbake Bread?")
    base = prompt_key([first])
    assert prompt_key([Message(role="system", content="Be kind."), first]) == base
    assert prompt_key([{"role": "user", "content": " how do i bake bread? "}]) == base
    assert prompt_key([{"role": "user", "content": "ｈｏｗ do i bake ＢＲＥＡＤ?"}]) == base
    later = [first, Message(role="assistant", content="Knead."), Message(role="user", content="And then?")]
    assert prompt_key(later) == base
    assert prompt_key([{"role": "user", "content": "How do I bake bread"}]) != base
    assert prompt_key([{"role": "system", "content": "a"}]) != prompt_key(
        [{"role": "system", "content": "b"}]
    )


def test_render_is_plain_text_and_formats_nothing():
    text = render([Message(role="user", content="{role} %s <b>"), {"role": "assistant", "content": "ok"}])
    assert text == "user: {role} %s <b>\n\nassistant: ok"


def test_digest_separates_events():
    events = [interaction(f"i{n}", at_s=n) for n in range(50)] + [
        feedback(f"i{n}", "i", "copy") for n in range(50)
    ]
    random.Random(0).shuffle(events)
    assert len({digest(event) for event in events}) == 100
