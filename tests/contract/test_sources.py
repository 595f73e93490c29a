"""What every source promises, checked on each one found. A new source adds a maker of samples here."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from feedback.events import Feedback, Interaction
from feedback.sources import Partition, Record, SourceError, load, names, recognise
from feedback.validation import REASONS, Limits, Rejected, parse
from tests.contract import samples
from tests.contract.samples import SAMPLES
from tests.unit.feedback.made import NOON


@pytest.fixture(params=names())
def sample(request, tmp_path):
    """(source, its configuration, path of a small sample with one broken part)"""
    source = load(request.param)
    return source, source.Config(), SAMPLES[request.param](tmp_path)


def read_all(source, config, path) -> list[Record]:
    return [r for p in source.partitions(path, config) for r in source.read(p, 0, p.end, config)]


def test_each_source_has_a_sample():
    assert set(SAMPLES) == set(names())


def test_config_is_frozen_closed_and_documented(sample):
    source, config, _ = sample
    assert isinstance(config, BaseModel)
    assert source.Config.model_config["frozen"]
    with pytest.raises(ValidationError):
        source.Config(no_such_option=1)
    assert all(field.description for field in source.Config.model_fields.values())


def test_the_module_shows_a_payload(sample):
    source, _, _ = sample
    assert "{" in source.__doc__


def test_partitions_are_stable_and_named_by_the_source(sample):
    source, config, path = sample
    first, second = source.partitions(path, config), source.partitions(path, config)
    assert first == second
    assert all(
        isinstance(p, Partition) and p.id.startswith(source.__name__.rpartition(".")[2] + ":") for p in first
    )
    assert len({p.id for p in first}) == len(first)


def test_a_copy_elsewhere_has_the_same_partitions(sample, tmp_path):
    source, config, path = sample
    copy = tmp_path / "elsewhere"
    if path.is_dir():
        copy.mkdir()
        for file in path.iterdir():
            if file.is_file():
                (copy / file.name).write_bytes(file.read_bytes())
        target = copy
    else:
        copy.mkdir()
        target = copy / path.name
        target.write_bytes(path.read_bytes())
    assert [p.id for p in source.partitions(target, config)] == [
        p.id for p in source.partitions(path, config)
    ]


def test_any_ranges_give_every_record_once(sample):
    source, config, path = sample
    whole = read_all(source, config, path)
    assert whole
    for partition in source.partitions(path, config):
        for step in (1, 2, 3, max(1, partition.end // 2), partition.end):
            cuts = [*range(0, partition.end, step), partition.end]
            pieces = [
                record for lo, hi in pairwise(cuts) for record in source.read(partition, lo, hi, config)
            ]
            assert pieces == list(source.read(partition, 0, partition.end, config))
            assert all(a.next_offset <= b.offset for a, b in pairwise(pieces))
            assert all(0 <= r.offset < r.next_offset <= partition.end for r in pieces)


def test_reading_on_from_a_next_offset_repeats_and_loses_nothing(sample):
    source, config, path = sample
    for partition in source.partitions(path, config):
        records = list(source.read(partition, 0, partition.end, config))
        for n, record in enumerate(records):
            assert list(source.read(partition, record.next_offset, partition.end, config)) == records[n + 1 :]


def test_records_are_events_or_are_refused_with_their_bytes(sample):
    source, config, path = sample
    parsed = [parse(record.raw, now=NOON, limits=Limits()) for record in read_all(source, config, path)]
    assert any(isinstance(event, Interaction) for event in parsed)
    assert any(isinstance(event, Feedback) for event in parsed)
    refused = [event for event in parsed if isinstance(event, Rejected)]
    assert refused
    assert all(event.raw == b"broken" and event.reason in REASONS for event in refused)


def test_reading_twice_gives_the_same_bytes(sample):
    source, config, path = sample
    assert read_all(source, config, path) == read_all(source, config, path)


def test_a_missing_path_is_said(sample, tmp_path):
    source, config, _ = sample
    with pytest.raises(SourceError):
        source.partitions(tmp_path / "missing", config)


@pytest.mark.parametrize("name", ["kafka", "", "../oasst", "oasst.Config", "os"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(SourceError, match="argilla, label_studio, langfuse"):
        load(name)


def test_a_source_of_your_own_is_module_and_object():
    assert load("feedback.sources:oasst") is load("oasst")
    for name in ("no.such:thing", "json:no_such", ":"):
        with pytest.raises(SourceError, match="could not be imported"):
            load(name)


def test_the_format_is_recognised(sample):
    source, _, path = sample
    name = source.__name__.rpartition(".")[2]
    assert recognise(path) == name
    assert recognise(path if path.is_dir() else path.parent) == name


def test_a_format_that_is_none_lists_the_known_ones(tmp_path):
    for content in (b"", b"\x00\xff", b"[]", b'{"a": 1}', b"id,text\n1,a\n"):
        path = tmp_path / "file.json"
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"palate ingest .* --source"):
            recognise(path)


def test_a_format_that_could_be_several_lists_those(tmp_path):
    (tmp_path / "both.json").write_text(json.dumps({**samples.langsmith_run(), **samples.openai_pair()}))
    with pytest.raises(SourceError, match="langsmith, openai_preference"):
        recognise(tmp_path / "both.json")
    (tmp_path / "a.jsonl").write_text(json.dumps(samples.langsmith_run()))
    (tmp_path / "both.json").write_text(json.dumps(samples.openai_pair()))
    with pytest.raises(SourceError, match="langsmith, openai_preference"):
        recognise(tmp_path)


@pytest.mark.parametrize("name", sorted(set(names()) - {"llmfao"}))
def test_a_grown_export_gives_the_same_events_again(name, tmp_path):
    """So the build finds copies of what it has. LLMFAO is a finished data set that nobody exports again."""
    source = load(name)
    config, path = source.Config(), SAMPLES[name](tmp_path)
    before = [record.raw for record in read_all(source, config, path) if record.raw != b"broken"]
    content = path.read_bytes().removesuffix(b"broken\n")
    lines = content.splitlines(keepends=True)
    path.write_bytes(lines[-1] + content + lines[0])  # more in front and behind
    after = [record.raw for record in read_all(source, config, path)]
    assert len(after) > len(before)
    assert set(after) == set(before)


def test_an_empty_file_beside_others_says_nothing_of_the_format(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").touch()
    event = {"type": "feedback", "feedback_id": "f", "interaction_id": "i", "kind": "copy"}
    (tmp_path / "1.jsonl").write_text(json.dumps(event | {"event_time": "2026-03-01T12:00:00Z"}) + "\n")
    assert recognise(tmp_path) == "palate_jsonl"
