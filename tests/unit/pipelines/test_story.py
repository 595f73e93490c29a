"""One event's story, from the tables alone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import dataset
from pipelines.build import BuildConfig, build
from pipelines.ingest import ingest
from pipelines.story import Story, story
from pipelines.story_datasets import resting_on
from pipelines.workspace import Layout
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


@pytest.mark.parametrize(
    "name", ["nobody", "", "x@y", "palate_jsonl@99", "i0' OR 1=1", f"x@{2**64}", "x@³", "\udcff"]
)
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


def test_damage_is_noticed_in_what_is_read(workspace: Path) -> None:
    (use,) = story(workspace, "i0").datasets
    file = workspace / "datasets" / use.version / dataset.ROWS
    whole = file.read_bytes()
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    (column,) = [column for column in columns if column.path_in_schema == "chosen"]
    damaged = bytearray(whole)
    start = column.dictionary_page_offset or column.data_page_offset
    damaged[start + column.total_compressed_size - 1] ^= 1
    file.write_bytes(damaged)
    try:
        found = story(workspace, "i0")
        assert (found.damaged, found.rows, found.datasets) == ((use.version,), (), ())
    finally:
        file.write_bytes(whole)


def test_texts_are_read_only_where_a_row_is_and_once(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = dataset.load(workspace).rows()
    other = rows.set_column(0, rows.schema.field(0), pa.array(["0" * 64])).set_column(
        rows.column_names.index("evidence"), rows.schema.field("evidence"), pa.array([["f99"]])
    )
    pq.write_table(pa.concat_tables([rows, other.cast(rows.schema)]), tmp_path / "rows.parquet")
    piece = dataset.Piece(tmp_path / "rows.parquet", "", np.ones(2, dtype=bool))
    monkeypatch.setattr(dataset, "_GROUP_ROWS", 1)
    for number in range(4):  # versions of the same rows, each row in a group of its own
        dataset.write(Layout(tmp_path), f"{number:016}", [piece], {"created": str(number)})
    texts = []
    plain = pq.ParquetFile.read_row_group

    def counted(self: pq.ParquetFile, group: int, columns: list[str]) -> Any:
        texts.extend([group] if "chosen" in columns else [])
        return plain(self, group, columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    (row,), uses, damaged = resting_on(Layout(tmp_path), ["f0"])
    assert row.chosen == "answer 0" and len(row.versions) == len(uses) == 4 and damaged == ()
    assert len(texts) == 1
