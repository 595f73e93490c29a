"""Reading exported files piece by piece, and what is told about their parts."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedback import documents as reader
from feedback import exports
from feedback.documents import UNREADABLE, documents
from feedback.exports import Drop, partitions, read, revised, shape, time_of
from feedback.sources import SourceError

MEMBERS = [{"id": 1, "text": "é\n{[\"'"}, {"id": [1, 2, {"a": {}}]}, 12, "x", None, {}]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_an_array_is_read_the_same_in_blocks_of_any_size(block, indent, bom, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_BLOCK_BYTES", block)
    path = tmp_path / "array.json"
    path.write_bytes(bom + json.dumps(MEMBERS, indent=indent, ensure_ascii=False).encode() + b"\n")
    found = list(documents(path, 2**20))
    assert [document.value for document in found] == MEMBERS
    assert [json.loads(document.raw) for document in found] == MEMBERS


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.text('[]{},:" \n1a\\é', max_size=40), block=st.sampled_from([1, 3, 1 << 20]))
def test_no_byte_is_lost(content, block, tmp_path, monkeypatch):
    """Whatever is not white space, commas or the array's brackets is in one of the documents."""
    monkeypatch.setattr(reader, "_BLOCK_BYTES", block)
    path = tmp_path / "any.json"
    path.write_bytes(content.encode())
    found = b"".join(document.raw for document in documents(path, 2**20)).decode()
    ignored = str.maketrans("", "", "[], \n")
    assert found.translate(ignored) == content.translate(ignored)


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ('{\n "a": 1\n}\n', [{"a": 1}]),
        ('{"a": 1}{"a": 2}', [UNREADABLE]),  # one line, which is no JSON
        ('{"a": 1}\nbroken {\n{"a": 2}', [{"a": 1}, UNREADABLE, {"a": 2}]),
        ('broken\n{"a": 2}', [UNREADABLE, {"a": 2}]),
        ('[{"a": 1}, broken, {"a": 2}]', [{"a": 1}, UNREADABLE]),
        ('[{"a": 1}] more', [{"a": 1}, UNREADABLE]),
        ('{"a": NaN}\n', [{"a": pytest.approx(float("nan"), nan_ok=True)}]),
        ("", []),
        (" \n\n", []),
        ("[]", []),
    ],
)
def test_lines_arrays_and_documents(content, values, tmp_path):
    path = tmp_path / "export.json"
    path.write_text(content)
    assert [document.value for document in documents(path, 2**20)] == values


def test_a_first_line_that_was_cut_does_not_take_the_rest_with_it(tmp_path):
    path = tmp_path / "export.jsonl"
    path.write_text('{"a": {"b":\n{"a": 2}\n')
    assert [document.value for document in documents(path, 2**20)] == [UNREADABLE, {"a": 2}]


def test_a_document_that_is_too_large_is_said_and_a_line_is_cut(tmp_path):
    path = tmp_path / "export.json"
    path.write_text('{\n"a": "' + "x" * 3_000_000 + '"}')
    with pytest.raises(SourceError, match="JSON lines"):
        list(documents(path, 1_000_000))
    path.write_text('{"a": "' + "x" * 3_000_000 + '"}\n{"a": 2}\n')
    cut, whole = documents(path, 1_000)
    assert (len(cut.raw), cut.value, whole.value) == (1_001, UNREADABLE, {"a": 2})


def test_a_large_array_is_read_in_little_memory(tmp_path):
    path = tmp_path / "array.json"
    with path.open("w") as file:
        file.write("[" + ",".join(json.dumps({"n": n, "text": "x" * 5_000}) for n in range(6_000)) + "]")
    tracemalloc.start()
    assert sum(1 for _ in documents(path, 2**20)) == 6_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 3


def test_a_document_that_fails_half_way_is_handed_on_whole(tmp_path):
    def convert(value):
        yield {"type": "feedback", "n": value["n"]}
        yield Drop("part")
        yield value["more"]

    path = tmp_path / "export.jsonl"
    path.write_text('{"n": 1}\n{"n": 2, "more": {"n": 3}}\n')
    (partition,) = partitions("made", path, convert)
    assert partition.dropped == {"part": 1}
    raws = [record.raw for record in read(partition, 0, partition.end, convert)]
    assert raws == [b'{"n": 1}', b'{"type":"feedback","n":2}', b'{"n":3}']


@pytest.mark.parametrize(
    ("head", "keys"),
    [
        (b'{"a": {"b": 1, "c": {"d": 2}}, "e": [{"f": 1}]}', {"a", "a.b", "a.c", "e"}),
        (b'[{"a": 1}, {"b": 2}]', {"a"}),
        (b'{"a": "\\"b\\": {", "c', {"a"}),
        (b'\n{"a": {"b": "cut he', {"a", "a.b"}),
        (b"", set()),
        (b'"a": 1}', set()),
    ],
)
def test_the_shape_of_a_beginning(head, keys):
    assert shape(head) == keys


def test_times():
    assert time_of("2026-03-01T12:00:00") == "2026-03-01T12:00:00+00:00"
    assert time_of("2026-03-01T12:00:00+02:00") == "2026-03-01T12:00:00+02:00"
    assert time_of("yesterday") == "yesterday"
    assert time_of(None) is time_of("") is None
    assert exports.time_of_nanoseconds("1772366400000000001") == "2026-03-01T12:00:00+00:00"


def test_a_signal_changed_within_a_minute_is_the_same_one():
    noon, soon, late = (f"2026-03-01T12:0{n}Z" for n in ("0:00", "0:59", "1:01"))
    assert revised("f", noon, soon) == ("f", noon)
    assert revised("f", noon, late) == (f"f@{late}", late)
    assert revised("f", None, late) == ("f", late)
    assert revised("f", "odd", late) == ("f", "odd")
