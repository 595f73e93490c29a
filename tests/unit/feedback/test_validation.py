from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedback.events import Interaction, canonical, digest
from feedback.tables import to_table
from feedback.validation import REASONS, Limits, Rejected, parse
from tests.unit.feedback.made import NOON, feedback, interaction

GOOD_F = json.loads(canonical(feedback("f", "i", "thumb", 1, user_id="u")))
GOOD_I = json.loads(canonical(interaction("i", user_id="u")))
DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=200, database=None)


def read(raw: bytes, limits: Limits | None = None):
    return parse(raw, now=NOON + timedelta(hours=1), limits=limits or Limits())


def changed(wire: dict, **fields: object) -> bytes:
    return json.dumps(wire | fields).encode()


def without(wire: dict, field: str) -> bytes:
    return json.dumps({k: v for k, v in wire.items() if k != field}).encode()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not_json"),
        (b"hello", "not_json"),
        (b'{"type": "feedback"', "not_json"),
        (b"{}{}", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not_json"),
        (changed(GOOD_F).replace(b'"f"', b'"\\ud800"'), "not_json"),
        (b"[]", "not_an_object"),
        (b"null", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"3", "not_an_object"),
        (b"NaN", "not_an_object"),
        ('{"type": "feedback", "ä": 1}'.encode("latin-1"), "wrong_encoding"),
        (changed(GOOD_F).decode().encode("utf-16"), "wrong_encoding"),
        (b'{"type": "feedb\0ack"}', "nul_byte"),
        (changed(GOOD_F).decode().encode("utf-16-le"), "nul_byte"),
        (changed(GOOD_I, completion={"role": "assistant", "content": "a\0b"}), "nul_byte"),
        (changed(GOOD_I, metadata={"deep": [{"k\0": 1}]}), "nul_byte"),
        (b"{}", "unknown_type"),
        (changed(GOOD_F, type="opinion"), "unknown_type"),
        (changed(GOOD_F, type=None), "unknown_type"),
        (changed(GOOD_F, schema_version=2), "unknown_version"),
        (changed(GOOD_F, kind="wink"), "unknown_kind"),
        (changed(GOOD_F, kind=["thumb"]), "unknown_kind"),
        (changed(GOOD_F, mood="good"), "unknown_field"),
        (changed(GOOD_F, kind="edit", value={"text": "x", "html": "y"}), "unknown_field"),
        (without(GOOD_F, "feedback_id"), "missing_id"),
        (without(GOOD_F, "interaction_id"), "missing_id"),
        (without(GOOD_I, "interaction_id"), "missing_id"),
        (changed(GOOD_F, feedback_id=""), "bad_id"),
        (changed(GOOD_F, feedback_id="a\tb"), "bad_id"),
        (changed(GOOD_F, user_id="u" * 257), "bad_id"),
        (without(GOOD_I, "completion"), "missing_field"),
        (without(GOOD_F, "event_time"), "missing_field"),
        (changed(GOOD_F, kind="rating", value={"value": 1, "lo": 0}), "missing_field"),
        (changed(GOOD_F, feedback_id=7), "wrong_type"),
        (changed(GOOD_F, value="1"), "wrong_type"),
        (changed(GOOD_I, prompt="Why?"), "wrong_type"),
        (changed(GOOD_I, propensity="0.5"), "wrong_type"),
        (changed(GOOD_F, event_time=1_700_000_000), "wrong_type"),
        (changed(GOOD_F, event_time="yesterday"), "bad_time"),
        (changed(GOOD_F, event_time="2026-03-01T12:00:00"), "bad_time"),
        (changed(GOOD_F, event_time="2026-13-01T12:00:00Z"), "bad_time"),
        (changed(GOOD_F, event_time="2026-03-03T12:00:00Z"), "future_time"),
        (changed(GOOD_F, event_time="0001-01-01T00:00:00+14:00"), "bad_value"),
        (changed(GOOD_I, metadata={"x": float("nan")}), "not_finite"),
        (changed(GOOD_I, logprob=float("-inf")), "not_finite"),
        (changed(GOOD_I).replace(b'"u"', b'"u", "logprob": 1e999'), "not_finite"),
        (changed(GOOD_F, kind="outcome", value={"metric": "m", "value": float("inf")}), "not_finite"),
        (changed(GOOD_F, value=2), "bad_value"),
        (changed(GOOD_I, metadata={"x": 10**30}), "bad_value"),
        (changed(GOOD_I, propensity=0), "bad_value"),
        (changed(GOOD_I, prompt=[]), "bad_value"),
        (changed(GOOD_F, kind="retry", value=1), "bad_value"),
        (changed(GOOD_F, metadata={"x": "y" * 1_000_000}), "too_large"),
    ],
)
def test_each_fault_has_its_reason(raw, reason):
    result = read(raw)
    assert isinstance(result, Rejected)
    assert result.reason == reason
    assert result.reason in REASONS
    assert result.raw == raw


def test_a_refusal_names_the_event_when_it_can():
    assert read(changed(GOOD_F, value=2)).event_id == "f"
    assert read(changed(GOOD_I, propensity=0)).event_id == "i"
    assert read(changed(GOOD_F, event_time="2026-03-03T12:00:00Z")).event_id == "f"
    assert read(changed(GOOD_F, feedback_id=7)).event_id is None


def test_text_of_the_sender_in_a_detail_is_cut_and_formats_nothing():
    result = read(changed(GOOD_F, **{"{0.__class__}%s" * 200: 1}))
    assert result.reason == "unknown_field"
    assert result.detail.startswith("{0.__class__}%s")
    assert len(result.detail) <= 500


def test_good_events_come_through():
    assert digest(read(changed(GOOD_I))) == digest(interaction("i", user_id="u"))
    assert read(b"\xef\xbb\xbf" + changed(GOOD_F)) == feedback("f", "i", "thumb", 1, user_id="u")
    escaped_backslash = changed(GOOD_I, metadata={"x": "\\u0000 in a text about C"})
    assert isinstance(read(escaped_backslash), Interaction)


def test_limits_decide():
    raw = changed(GOOD_F)
    assert read(raw, Limits(max_event_bytes=len(raw))) == feedback("f", "i", "thumb", 1, user_id="u")
    assert read(raw, Limits(max_event_bytes=len(raw) - 1)).reason == "too_large"
    ahead = changed(GOOD_F, event_time="2026-03-01T13:00:01Z")
    assert read(ahead, Limits(max_future_s=1)) == feedback("f", "i", "thumb", 1, user_id="u", at_s=3601)
    assert read(ahead, Limits(max_future_s=0)).reason == "future_time"


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["a\0", "e\u0301", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def _almost_events(draw: st.DrawFn) -> bytes:
    """A good event with some fields, at any depth, replaced, removed or added; at times bytes flipped."""
    wire = dict(draw(st.sampled_from([GOOD_F, GOOD_I])))
    for field in draw(st.lists(st.sampled_from([*GOOD_F, *GOOD_I, "model", "sampling", "uses"]), max_size=3)):
        wire[field] = draw(_JSON)
    raw = json.dumps(wire).encode()
    if draw(st.integers(0, 3)) == 0:
        cut = draw(st.integers(0, len(raw)))
        raw = raw[:cut] + draw(st.binary(max_size=3)) + raw[cut + draw(st.integers(0, 2)) :]
    return raw


@given(st.one_of(st.binary(), st.binary().map(lambda b: b'{"type":"feedback",' + b), _almost_events()))
@example(b'{"type":"feedback","value":' + b"[" * 500)
@DETERMINISTIC
def test_no_bytes_raise_and_all_go_into_a_table(raw):
    result = read(raw)
    if isinstance(result, Rejected):
        assert result.reason in REASONS
        assert result.raw == raw
    else:
        assert read(canonical(result)) == result
    table = to_table([result], source="s", partition="p", offsets=[0], ingest_time=NOON)
    table.validate(full=True)
    kind = table.column("kind")[0].as_py()
    assert (kind == "dead_letter") == isinstance(result, Rejected)


@given(st.dictionaries(st.text(), _JSON, max_size=4), st.text(), st.randoms(use_true_random=False))
@DETERMINISTIC
def test_digest_survives_the_wire_in_any_key_order(metadata, reply, order):
    raw = changed(GOOD_I, metadata=metadata, completion={"role": "assistant", "content": reply})
    event = read(raw)
    if isinstance(event, Rejected):
        assert event.reason in {"nul_byte", "not_finite", "bad_value", "not_json"}
        return
    keys = list(json.loads(raw))
    order.shuffle(keys)
    shuffled = json.dumps({key: json.loads(raw)[key] for key in keys}, indent=1, ensure_ascii=False)
    assert digest(read(shuffled.encode())) == digest(event)
