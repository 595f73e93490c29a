"""The quick way gives the rows that the slow way gives, for every byte string."""

from __future__ import annotations

import gc
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedback import fast_parse
from feedback.tables import Row, row
from feedback.validation import Limits, parse
from tests.unit.pipelines.made import feedback, history, interaction

NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)
LIMITS = Limits(max_event_bytes=20_000)
MANY = settings(derandomize=True, deadline=None, max_examples=400, database=None)

QUICK = fast_parse.reader(now=NOW, limits=LIMITS)


def slow(raw: bytes) -> Row:
    return row(parse(raw, now=NOW, limits=LIMITS))


def agree(raw: bytes) -> None:
    assert fast_parse.rows([raw], now=NOW, limits=LIMITS) == [slow(raw)]


FULL = interaction(
    1,
    session_id="s",
    agent="researcher",
    parent_id="i0",
    model={"name": "m", "version": "2", "adapter_digest": "ab"},
    sampling={"temperature": 0.7, "top_p": 0.9, "seed": 3},
    logprob=-12.5,
    tokens=9,
    propensity=0.25,
    arm="a",
    latency_ms=321.5,
    uses=["train", "evaluate"],
    metadata={"lang": "en", "n": [1, 2.5, None, {"deep": True}]},
) | {"prompt": [{"role": "tool", "content": "é", "name": "t", "tool_calls": [{"a": {"b": [1]}}]}]}
VALUES: dict[str, Any] = {
    "thumb": 1,
    "rating": {"value": 4, "lo": 1, "hi": 5.0},
    "vote": {"among": ["i1", "i2"], "winner": "i2"},
    "edit": {"text": "better"},
    "next_message": {"text": ""},
    "comment": {"text": "né"},
    "outcome": {"metric": "passed", "value": 1},
    "retry": None,
    "copy": None,
    "accept": None,
    "reject": None,
    "share": None,
}
SIGNALS = [feedback(1, 1, kind, value) for kind, value in VALUES.items()]
SIGNALS.append(feedback(2, 1, "vote", {"ranking": ["i3", "i1"]}, retracts="f0"))
SIGNALS.append(feedback(3, 1, "comment", {"text": "x"}, interaction_id=None, session_id="s", actor="rater"))
GOOD = [FULL, interaction(2), *SIGNALS]


@pytest.mark.parametrize("event", GOOD, ids=lambda event: event.get("kind", "interaction"))
def test_plain_events_take_the_quick_way(event):
    raw = json.dumps(event).encode()
    assert QUICK(raw) == slow(raw)
    assert QUICK(json.dumps(event | {"metadata": {"a": 1}, "user_id": None}, indent=2).encode()) is not None
    spelled = json.dumps(event | {"event_time": "2026-03-01T13:30:00.5+01:00"}).encode()
    assert QUICK(spelled) == slow(spelled)


def test_whole_histories_agree():
    raws = [json.dumps(event, ensure_ascii=bool(n % 2)).encode() for n, event in enumerate(history(400))]
    assert fast_parse.rows(raws, now=NOW, limits=LIMITS) == [slow(raw) for raw in raws]


# What the two decoders, encoders or checks might see differently, each as JSON text.
NUMBERS = [
    "0", "-0", "-0.0", "1.0", "1e0", "1E5", "0.1e1", "1e15", "1e16", "123456789012345678", "1e22", "1e-7", "1e-400",
    "1e400", "-1e400", "5e-324", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "1" * 400,
    "0.30000000000000004", "2.2250738585072011e-308", "NaN", "Infinity", "01", "1.", ".5", "+1", "true", "null",
]  # fmt: skip
TEXTS = [
    '""', '" "', '"\\u0000"', '"\\\\u0000"', '"\\u0007"', '"\\u007f"', '"\\u0085"', '"\\ud83d\\ude00"',
    '"\\ud800"', '"\\udc00"', '"e\\u0301"', '"\\u0301e"', '"\\n\\u0301"', '"\u00e9"', '"\u2028"', '"\\/"',
    '"\uac00\u11a8"',
    '"\\u00a0"', '"a b"', '"' + "x" * 256 + '"', '"' + "x" * 257 + '"', '"' + "\u0958" * 200 + '"', '"\\x41"', '"a',
    '"i1"', '"assistant"', '"user"', '"interaction"', '"feedback"', '"vote"', '"train"',
]  # fmt: skip
TIMES = [
    "2026-03-01T12:00:00Z", "2026-03-01t12:00:00z", "2026-03-01 12:00:00Z", "2026-03-01T12:00Z",
    "2026-03-01T12:00:00", "2026-03-01T12:00:00.1Z", "2026-03-01T12:00:00.000000Z", "2026-03-01T12:00:00.9999999Z",
    "2026-03-01T12:00:00.123456789Z", "2026-03-01T12:00:00.1234567890123Z", "2026-03-01T12:00:00,5Z",
    "2026-03-01T12:00:00.Z", "2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00-00:00", "2026-03-01T12:00:00+0000",
    "2026-03-01T12:00:00+00", "2026-03-01T12:00:00+05:30", "2026-03-01T12:00:00.250-08:00",
    "2026-03-01T12:00:00+05:30:15", "2026-03-01T12:00:00+24:00", "2026-03-01T12:00:00+23:59", "2026-03-01T24:00:00Z",
    "2026-03-01T23:59:60Z", "2026-02-30T00:00:00Z", "2024-02-29T00:00:00Z", "2026-W09-7T12:00:00Z",
    "20260301T120000Z", "2026-03-01T120000.12345Z", "2026-060T12:00:00.5Z", "0001-01-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "2026-01-01T00:00:00+14:60", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+14:00",
    "2026-03-02T13:00:00Z", "2026-03-02T13:00:00.000001Z", "1700000000", "yesterday", "２０２６-03-01T12:00:00Z",
    "2026-03-01T12:00:00Z ", " 2026-03-01T12:00:00Z", "2026-03-01T12:00:00+01:0a", "2026-03-01T-1:00:00Z",
]  # fmt: skip
DEEP = ["[" * n + "]" * n for n in (60, 63, 64, 65, 66, 300)]
OTHERS = [
    "{}", "[]", "[[]]", '{"a":null}', '{"text":"x","html":"y"}', '{"text":1}', '{"role":"assistant","content":""}',
    '{"role":"user","content":"x","tool_calls":[{"a":1e300}]}', '[{"role":"user","content":"x"}]',
    '[{"role":"user","content":null}]', '["train"]', '["train","evaluate","train"]', '["sell"]',
    '{"among":["i1","i2"],"winner":null}', '{"among":["i1","i2"]}', '{"among":["i1","i1"],"winner":"i1"}',
    '{"among":["i1","i2"],"winner":"i3"}', '{"among":["i1"],"winner":null}', '{"ranking":["i1"," "]}',
    '{"ranking":["i2","i1"],"winner":"i1"}', '{"ranking":["i2","i\\u00e9","i1"]}', '{"value":1,"lo":1,"hi":1}',
    '{"value":5.5,"lo":1,"hi":5}', '{"value":1,"lo":-1e308,"hi":1e308}', '{"value":true,"lo":0,"hi":1}',
    '{"value":3,"lo":1,"hi":1e17}', '{"metric":"","value":1}', '{"metric":"m","value":1e17}', '{"b":1,"a":2,"b":3}',
    '{"\\u00e9":1,"e\\u0301":2}', '{"z":1,"\U00010000":2,"\uffff":3,"\u00e9":4}', '{"a":18446744073709551616}',
    '{"a":[1.5e16]}', '{"name":"m"}', '{"name":"m","size":1}', '{"temperature":1,"top_p":1,"seed":1}',
    '{"temperature":-0.0}', '{"temperature":-1}', '{"top_p":0}', '{"seed":1.0}', '{"seed":9223372036854775808}',
    *DEEP, *('{"a":' + deep + "}" for deep in DEEP),
]  # fmt: skip
FRAGMENTS = [*NUMBERS, *TEXTS, *(f'"{time}"' for time in TIMES), *OTHERS]
FIELDS = sorted({name for event in GOOD for name in event} | {"mood"})


@pytest.mark.parametrize("field", FIELDS)
def test_odd_values_of_each_field_agree(field):
    """Every fragment in every field of every kind of event."""
    events = [FULL] if field in FULL and field not in SIGNALS[0] else GOOD
    if field in ("value", "kind", "retracts", "actor", "feedback_id"):
        events = SIGNALS
    elif field in FULL and field in SIGNALS[0]:
        events = [FULL, SIGNALS[0], SIGNALS[2]]
    for event in events:
        rest = json.dumps({name: value for name, value in event.items() if name != field})[1:]
        for fragment in FRAGMENTS:
            agree(f'{{"{field}":{fragment},{rest}'.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("event", [FULL, SIGNALS[1], SIGNALS[2]], ids=["interaction", "rating", "vote"])
def test_repeated_keys_agree(event):
    """The last one of equal keys counts, also where the first is of the wrong type, and for `type` itself."""
    text = json.dumps(event)
    for name, value in event.items():
        for other in ("1", "null", '"i1"', '"feedback"', '"interaction"', json.dumps(value)):
            agree(f'{{"{name}":{other},{text[1:]}'.encode())
            agree(f'{text[:-1]},"{name}":{other}}}'.encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{}", b"[]", b"null", b"\xff", b"\xef\xbb\xbf" + json.dumps(FULL).encode(), b"{}{}",
        json.dumps(FULL).encode() + b" x", b" \t\r\n" + json.dumps(FULL).encode() + b" \n",
        json.dumps(FULL).encode("utf-16"), json.dumps(FULL).encode()[:-1], b"[" * 5000, b"\0",
        json.dumps(FULL | {"metadata": {"x": "y" * 20_000}}).encode(),
        json.dumps(FULL).replace('"type"', '"typ\\u0065"').encode(),
        json.dumps(FULL, ensure_ascii=False).encode("latin-1"),
    ],
)  # fmt: skip
def test_whole_bytes_agree(raw):
    agree(raw)


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["a\0", "e\u0301", "", "i1", "assistant"])
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def _events(draw: st.DrawFn) -> bytes:
    """A good event in any order and spelling, most with something replaced, removed, added or broken."""
    event = dict(draw(st.sampled_from(GOOD)))
    for field in draw(st.lists(st.sampled_from(FIELDS), max_size=3)):
        event[field] = draw(_JSON)
    for field in draw(st.lists(st.sampled_from(["metadata", "user_id", "event_time"]), max_size=2)):
        event[field] = draw(st.dictionaries(st.text(max_size=4), _JSON, max_size=4) | st.sampled_from(TIMES))
    names = draw(st.permutations(list(event)))
    text = json.dumps(
        {name: event[name] for name in names[draw(st.integers(0, 1)) :]},
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
    )
    raw = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 5)) == 0:
        cut = draw(st.integers(0, len(raw)))
        raw = raw[:cut] + draw(st.binary(max_size=3)) + raw[cut + draw(st.integers(0, 2)) :]
    return raw


@given(_events() | st.binary(max_size=60))
@example(b'{"type":"feedback","value":' + b"[" * 500)
@MANY
def test_random_events_agree(raw):
    agree(raw)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70), st.datetimes())
@MANY
def test_random_numbers_and_times_agree(number, moment):
    time = moment.replace(tzinfo=UTC).isoformat()
    agree(json.dumps(FULL | {"logprob": number, "metadata": {"x": [number]}}).encode())
    agree(
        json.dumps(
            SIGNALS[0] | {"event_time": time, "kind": "outcome", "value": {"metric": "m", "value": number}}
        ).encode()
    )


def test_the_collector_runs_again_afterwards():
    assert gc.isenabled()
    assert fast_parse.rows([b"{"], now=datetime.now(UTC), limits=LIMITS)[0][0] == "dead_letter"
    assert gc.isenabled()
