"""One event's story, from the tables alone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pipelines.build import BuildConfig, build
from pipelines.ingest import ingest
from pipelines.story import Story, story
from tests.unit.feedback.made import EVERYTHING_TRAINS
from tests.unit.pipelines.made import NOW, feedback, interaction, lines

CONFIG = BuildConfig.model_validate({"prefer": {"split": EVERYTHING_TRAINS}})


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replies, a vote, a thumb that is taken back, an orphan, a copy, a letter; built, then one more signal."""
    folder = tmp_path_factory.mktemp("story")
    events = [
        interaction(0, prompt="tea?"),
        interaction(1, prompt="tea?", session_id="s"),
        feedback(0, 0, "vote", {"among": ["i0", "i1"], "winner": "i0"}),
        feedback(1, 1, value=-1),
        feedback(2, 1, value=-1, retracts="f1"),
        feedback(3, "i404"),
        interaction(0, prompt="tea?"),
    ]
    file = folder / "events.jsonl"
    bad = b'{"type":"feedback","feedback_id":"f9","interaction_id":"i0","kind":"thumb","value":7}\n'
    file.write_bytes(lines(events) + bad)
    ingest(file, source="palate_jsonl", workspace=folder / "w", now=NOW)
    build(workspace=folder / "w", config=CONFIG)
    with file.open("ab") as stream:
        stream.write(lines([feedback(4, 1, "comment", {"text": "hm"})]))
    ingest(file, source="palate_jsonl", workspace=folder / "w", now=NOW + timedelta(days=1))
    return folder / "w"


def said(found: Story) -> list[tuple[str, str, bool]]:
    return [(related.relation, related.event_id, related.arrived) for related in found.related]


def test_an_interaction(workspace: Path) -> None:
    found = story(workspace, "i0")
    first, copy = found.arrivals
    assert {first.fate, copy.fate} == {"ready", "duplicate"}
    assert first.ingest_time == NOW and first.said == "tea? → answer 0"
    assert ("feedback", "f0", True) in said(found)
    (row,) = [row for row in found.rows if row.rule == "vote"]
    assert (row.chosen, row.rejected, row.split) == ("answer 0", "answer 1", "train")
    (use,) = found.datasets
    assert use.newest and sum(use.rows.values()) == len(found.rows)
    assert row.versions == (use.version,)


def test_a_signal_and_what_takes_it_back(workspace: Path) -> None:
    thumb = story(workspace, "f1")
    assert thumb.arrivals[0].fate_reason == "retracted"
    assert ("about", "i1", True) in said(thumb) and ("taken back by", "f2", True) in said(thumb)
    assert thumb.rows == () and thumb.datasets == ()
    assert ("takes back", "f1", True) in said(story(workspace, "f2"))


def test_an_orphan_says_what_it_waits_for(workspace: Path) -> None:
    found = story(workspace, "f3")
    assert (found.arrivals[0].fate, found.arrivals[0].fate_reason) == ("waiting", "orphan")
    assert said(found) == [("about", "i404", False)]


def test_what_came_after_the_build(workspace: Path) -> None:
    found = story(workspace, "f4").arrivals[0]
    assert (found.fate, found.fate_reason) == ("waiting", "not_built")


def test_a_dead_letter_by_id_and_by_place(workspace: Path) -> None:
    (letter,) = story(workspace, "f9").arrivals
    assert (letter.kind, letter.fate, letter.fate_reason) == ("dead_letter", "dead_letter", "missing_field")
    assert letter.detail and letter.said.startswith('{"type":"feedback"')
    assert story(workspace, str(letter.place)).arrivals == (letter,)


@pytest.mark.parametrize("name", ["nobody", "", "x@y", "palate_jsonl@99", "i0' OR 1=1"])
def test_nothing_is_known(workspace: Path, name: str) -> None:
    assert story(workspace, name) == Story(name)


def test_an_empty_workspace(tmp_path: Path) -> None:
    assert story(tmp_path, "i0") == Story("i0")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_dataset_is_named(workspace: Path) -> None:
    (use,) = story(workspace, "i0").datasets
    manifest = workspace / "datasets" / use.version / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    try:
        found = story(workspace, "i0")
        assert found.damaged == (use.version,) and found.arrivals[0].fate
    finally:
        manifest.write_bytes(whole)
