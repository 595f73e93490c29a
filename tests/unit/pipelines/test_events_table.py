"""Rows and offsets appear together, once, whoever else writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from feedback.tables import EVENTS, to_table
from feedback.validation import Rejected
from pipelines import events_table
from pipelines.events_table import EventFile, Position
from pipelines.workspace import Layout

from .made import NOW


def _staged(folder: Path, name: str, rows: int) -> EventFile:
    table = to_table(
        [Rejected("not_json", "x", b"x", None)] * rows,
        source="test",
        partition=name,
        offsets=list(range(rows)),
        ingest_time=NOW,
    )
    path = folder / f"{name}.parquet"
    pq.write_table(table.drop_columns(["kind"]), path)
    return EventFile(path, "dead_letter", rows)


def test_rows_and_positions_come_back(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "w")
    table = events_table.open_table(layout)
    assert events_table.position(table, "p") == Position(0, -1, 0)
    assert events_table.append(layout, table, [_staged(tmp_path, "a", 3)], {"p": Position(30, 20, 2**63 - 1)})
    table = events_table.open_table(layout)
    assert events_table.position(table, "p") == Position(30, 20, 2**63 - 1)
    assert [(file.kind, file.rows) for file in events_table.files(table)] == [("dead_letter", 3)]
    read = table.to_pyarrow_table()
    assert read.num_rows == 3 and set(read.schema.names) == set(EVENTS.names)
    assert read["raw"].to_pylist() == [b"x"] * 3


def test_positions_move_without_rows(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert events_table.append(layout, events_table.open_table(layout), [], {"p": Position(7, -1, 0)})
    assert events_table.position(events_table.open_table(layout), "p").offset == 7


def test_a_stale_writer_changes_nothing(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "w")
    first, second = events_table.open_table(layout), events_table.open_table(layout)
    assert events_table.append(layout, first, [_staged(tmp_path, "a", 1)], {"p": Position(1, 0, 0)})
    assert not events_table.append(layout, second, [_staged(tmp_path, "b", 1)], {"p": Position(1, 0, 0)})
    assert len(list(layout.events.rglob("*.parquet"))) == 1
    assert events_table.open_table(layout).to_pyarrow_table()["partition"].to_pylist() == ["a"]


def test_writers_of_different_partitions_do_not_disturb_each_other(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "w")
    first, second = events_table.open_table(layout), events_table.open_table(layout)
    assert events_table.append(layout, first, [_staged(tmp_path, "a", 1)], {"p": Position(1, 0, 0)})
    assert events_table.append(layout, second, [_staged(tmp_path, "b", 1)], {"q": Position(1, 0, 0)})
    table = events_table.open_table(layout)
    assert events_table.position(table, "p").offset == events_table.position(table, "q").offset == 1
    assert sorted(table.to_pyarrow_table()["partition"].to_pylist()) == ["a", "b"]


def test_a_failed_commit_leaves_no_files(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "w")
    table = events_table.open_table(layout)
    good, gone = _staged(tmp_path, "a", 1), EventFile(tmp_path / "gone.parquet", "dead_letter", 1)
    with pytest.raises(FileNotFoundError):
        events_table.append(layout, table, [good, gone], {"p": Position(1, 0, 0)})
    assert list(layout.events.rglob("*.parquet")) == []
    assert events_table.position(events_table.open_table(layout), "p").offset == 0


def test_positions_survive_a_checkpoint(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for offset in range(1, 4):
        assert events_table.append(
            layout, events_table.open_table(layout), [], {"p": Position(offset, 0, offset)}
        )
    events_table.open_table(layout).create_checkpoint()
    assert events_table.position(events_table.open_table(layout), "p") == Position(3, 0, 3)


def test_an_error_after_the_commit_and_a_compaction_removes_nothing(tmp_path: Path, monkeypatch) -> None:
    """As when writing a checkpoint fails, and maintenance is quick to rewrite what was committed."""
    layout = Layout(tmp_path / "w")
    assert events_table.append(layout, events_table.open_table(layout), [_staged(tmp_path, "a", 2)], {})
    before = events_table.open_table(layout).version()
    commit = DeltaTable.create_write_transaction

    def late(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        commit(table, *arguments, **named)
        monkeypatch.undo()
        events_table.open_table(layout).optimize.compact()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
    with pytest.raises(OSError, match="No space"):
        events_table.append(layout, events_table.open_table(layout), [_staged(tmp_path, "b", 3)], {})
    table = events_table.open_table(layout)
    assert table.to_pyarrow_table().num_rows == 5
    new = events_table.added_since(layout, table, before)
    assert new is not None and [file.rows for file in new] == [3]
