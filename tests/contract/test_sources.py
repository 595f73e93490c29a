"""What every source promises, checked on each one found. A new source adds a maker of samples here."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from feedback.events import Feedback, Interaction, canonical
from feedback.sources import Partition, Record, SourceError, load, names
from feedback.validation import REASONS, Limits, Rejected, parse
from tests.unit.feedback.made import NOON, feedback, interaction


def _palate_jsonl(folder: Path) -> Path:
    events = [interaction(f"i{n}") for n in range(5)] + [
        feedback(f"f{n}", f"i{n}", "thumb", 1) for n in range(5)
    ]
    path = folder / "events.jsonl"
    path.write_bytes(b"".join(canonical(event) + b"\n" for event in events) + b"broken\n")
    return path


def _oasst(folder: Path) -> Path:
    trees = []
    for n in range(3):
        replies = [
            {
                "message_id": f"{n}{r}",
                "role": "assistant",
                "text": f"{r}",
                "rank": r,
                "emojis": {"+1": r},
                "replies": [],
            }
            for r in range(3)
        ]
        prompt = {"message_id": f"{n}", "role": "prompter", "text": f"Why {n}?", "replies": replies}
        trees.append(json.dumps({"message_tree_id": f"{n}", "prompt": prompt}))
    path = folder / "trees.jsonl"
    path.write_text("\n".join([*trees, "broken"]) + "\n")
    return path


def _llmfao(folder: Path) -> Path:
    pair = {"prompt": 1, "text": "Why?", "model_x": 1, "result_x": "x", "model_y": 2, "result_y": "y"}
    (folder / "pairs-crowd.jsonl").write_text(json.dumps(pair) + "\nbroken\n")
    rows = [f"0,1,1,2,{n},{winner},X,Y" for n, winner in enumerate(["left", "right", "tie"])]
    header = "id,prompt,model_x,model_y,worker,winner,left,right"
    (folder / "crowd-comparisons.csv").write_text("\n".join([header, *rows, "broken"]) + "\n")
    return folder


SAMPLES: dict[str, Callable[[Path], Path]] = {
    "palate_jsonl": _palate_jsonl,
    "oasst": _oasst,
    "llmfao": _llmfao,
}


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
    with pytest.raises(SourceError, match="llmfao, oasst, palate_jsonl"):
        load(name)


def test_a_source_of_your_own_is_module_and_object():
    assert load("feedback.sources:oasst") is load("oasst")
    for name in ("no.such:thing", "json:no_such", ":"):
        with pytest.raises(SourceError, match="could not be imported"):
            load(name)
