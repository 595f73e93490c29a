"""No bytes make a source fail but with `SourceError`, and none make `sniff` fail at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedback.documents import documents
from feedback.sources import HEAD_BYTES, SourceError, load, names, recognise
from feedback.validation import Limits, parse
from tests.contract.samples import SAMPLES
from tests.unit.feedback.made import NOON

FEW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

ODD: list[Any] = [
    None, True, 0, -1, 2**63, 10**40, 0.5, -0.0, "", " ", "\0", "\ud800", "é" * 9, "x" * 300, [], {}, [[]],
    [None], {"": None}, [{"role": "user"}], {"messages": 3}, {"content": {"parts": [{}]}}, "{", '"', "[[1]]",
]  # fmt: skip


def survives(name: str, path: Path) -> int:
    """Reads everything there; the number of records."""
    source = load(name)
    config = source.Config()
    try:
        found = source.partitions(path, config)
        raws = [r.raw for p in found for r in source.read(p, 0, p.end, config)]
    except SourceError:
        return -1
    assert all(isinstance(raw, bytes) for raw in raws)
    assert sum(p.end for p in found) >= len(raws)
    for raw in raws:
        parse(raw, now=NOON, limits=Limits())
    if path.is_file():
        assert source.sniff(path.read_bytes()[:HEAD_BYTES], path) in (True, False)
    with contextlib.suppress(SourceError):
        recognise(path)
    return len(raws)


def target_of(name: str, folder: Path) -> tuple[Path, Path]:
    """What is ingested, and the file in it that is spoiled."""
    path = SAMPLES[name](folder)
    return path, path / "pairs-crowd.jsonl" if path.is_dir() else path


DEEP = 100_000
CONTENTS = {
    "empty": b"",
    "blank": b" \n\t\r\n",
    "nul": b"\0" * 100,
    "not utf-8": b"\xff\xfe{\x00\xc3(",
    "bom": b"\xef\xbb\xbf[]",
    "array that does not end": b'[{"id": 1}, {"id"',
    "array with something behind": b'[{"id": 1}] and more',
    "array without commas": b"[1 2\n3]",
    "commas only": b"[,,,]",
    "numbers": b"[1, 2e9999, -0.0, NaN, Infinity, 123456789012345678901234567890]",
    "lines of other things": b'3\nnull\n"text"\n[1]\n{}\n[]\ntrue\n',
    "deep array": b"[" * DEEP + b"]" * DEEP,
    "deep array in an array": b"[" + b"[" * DEEP + b"]" * DEEP + b', {"id": 1}]',
    "deep object": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep open": b'[{"a":' * DEEP,
    "one long line": b'{"text": "' + b"x" * 3_000_000 + b'"}',
    "long pretty": b'{\n "text": "' + b"x" * 3_000_000 + b'"\n}',
}


@pytest.mark.parametrize("what", CONTENTS)
@pytest.mark.parametrize("name", names())
def test_odd_files(name, what, tmp_path):
    path, spoiled = target_of(name, tmp_path)
    spoiled.write_bytes(CONTENTS[what])
    survives(name, path)


@pytest.mark.parametrize("name", names())
def test_odd_paths(name, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "inner" / "traces.json").mkdir(parents=True)
    assert survives(name, empty) <= 0
    assert survives(name, tmp_path / "inner") <= 0
    assert survives(name, Path("/dev/null")) <= 0
    assert survives(name, tmp_path / "missing") == -1


@pytest.mark.parametrize("name", names())
@FEW
@given(content=st.binary(max_size=400))
def test_random_bytes(name, content, tmp_path):
    path, spoiled = target_of(name, tmp_path)
    spoiled.write_bytes(content)
    survives(name, path)


@pytest.mark.parametrize("name", names())
@FEW
@given(seed=st.integers(0, 2**32))
def test_spoiled_samples(name, seed, tmp_path):
    """Bytes of a sample changed, cut out, doubled, or cut off."""
    draw = Random(seed)
    path, spoiled = target_of(name, tmp_path)
    content = bytearray(spoiled.read_bytes())
    for _ in range(draw.randint(1, 8)):
        at, length = draw.randrange(len(content)), draw.randint(1, 30)
        how = draw.randrange(4)
        if how == 0:
            content[at] = draw.randrange(256)
        elif how == 1:
            del content[at : at + length]
        elif how == 2:
            content[at:at] = content[at : at + length]
        else:
            content[at:at] = draw.choice(
                [b'"', b"{", b"]", b"\\", b"\n", b"\0", b"\xf0", b"1e999", b"\\ud800"]
            )
        content = content or bytearray(b"x")
    spoiled.write_bytes(bytes(content[: draw.randint(1, len(content))] if draw.random() < 0.2 else content))
    survives(name, path)


REAL = {
    "shape_langfuse/vercel-aisdk-2025-11-17.trace.json": "langfuse",
    "shape_langsmith/langsmith_py_wrap_openai_.json": "langsmith",
    "shape_mlflow/trace_with_assessments.json": "mlflow_traces",
    "shape_tensorzero/CommentFeedback.jsonl": "tensorzero",
    "shape_tensorzero/BooleanMetricFeedback.jsonl": "tensorzero",
}


@pytest.mark.parametrize("real", REAL)
def test_spoiled_real_exports(real, shared_data, tmp_path):
    """Every value in turn of another type, and every kind of damage to the bytes."""
    content = (shared_data / real).read_bytes()
    draw = Random(3)
    first = orjson.loads(content.splitlines()[0] if real.endswith("l") else content)
    path = tmp_path / "export.jsonl"
    places = list(nodes(first))
    made = [put(first, at, draw.choice(ODD)) for at in draw.sample(places, min(150, len(places)))]
    path.write_text("".join(json.dumps(document) + "\n" for document in made))
    assert survives(REAL[real], path) > 0
    path = tmp_path / "export.json"
    for _ in range(25):
        spoiled = bytearray(content)
        for _ in range(draw.randint(1, 20)):
            spoiled[draw.randrange(len(spoiled))] = draw.choice(b'{}[]":,\\\n\0x9')
        path.write_bytes(bytes(spoiled[: draw.randint(1, len(spoiled))] if draw.random() < 0.3 else spoiled))
        survives(REAL[real], path)


def nodes(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a JSON document."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from nodes(inner, (*at, key))


def put(value: Any, at: tuple[Any, ...], odd: Any) -> Any:
    """The document with another value at that place."""
    if not at:
        return odd
    changed = json.loads(json.dumps(value))
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = odd
    return changed


@pytest.mark.parametrize("name", sorted(set(names()) - {"palate_jsonl"}))
def test_wrong_types_everywhere(name, tmp_path):
    """Every value of every sample document in turn replaced by things of other types."""
    path, spoiled = target_of(name, tmp_path)
    draw = Random(7)
    made = []
    for line in spoiled.read_bytes().splitlines():
        if line == b"broken":
            continue
        document = orjson.loads(line)
        for at in nodes(document):
            made += [put(document, at, odd) for odd in draw.sample(ODD, 4)]
    spoiled.write_text("".join(json.dumps(document) + "\n" for document in made))
    assert survives(name, path) > 0


@FEW
@given(
    members=st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=8,
    ),
    indent=st.sampled_from([None, 1]),
)
def test_arrays_are_read_member_by_member(members, indent, tmp_path):
    path = tmp_path / "array.json"
    path.write_text(json.dumps(members, indent=indent))
    found = list(documents(path, 2**20))
    assert [document.value for document in found] == members
    assert [json.loads(document.raw) for document in found] == members
