"""Every record becomes one row, once, whatever it holds and however often it is read."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from feedback.errors import PalateError
from feedback.sources import Partition, SourceError
from pipelines import events_table, ingest_transforms
from pipelines.build import build
from pipelines.continuity import advance
from pipelines.errors import InputError, PipelineError
from pipelines.events_table import Position
from pipelines.expectations import ExpectationsConfig
from pipelines.ingest import IngestConfig, IngestSummary, ingest
from pipelines.ledger import balance
from pipelines.ranges import Range
from pipelines.receipts import Receipt
from pipelines.workspace import Layout

from .made import NOW, feedback, history, interaction, lines, write


def run(path: Path, workspace: Path, **more: Any) -> IngestSummary:
    return ingest(path, source="palate_jsonl", workspace=workspace, now=NOW, **more)


def rows(workspace: Path) -> list[dict[str, Any]]:
    return events_table.open_table(Layout(workspace)).to_pyarrow_table().to_pylist()


def test_events_become_rows_and_are_not_read_twice(tmp_path: Path) -> None:
    events = history(60)
    path = write(tmp_path / "in.jsonl", events)
    first = run(path, tmp_path / "w")
    assert (first.received, first.interactions, first.feedback, first.dead_letters) == (60, 30, 30, {})
    again = run(path, tmp_path / "w")
    assert (again.received, again.partitions, again.already_read) == (0, 1, 1)
    found = rows(tmp_path / "w")
    assert Counter(row["kind"] for row in found) == {"interaction": 30, "feedback": 30}
    assert {row["event_id"] for row in found} == {
        event.get("feedback_id") or event["interaction_id"] for event in events
    }


def test_only_what_was_appended_is_read_and_small_commits_change_nothing(tmp_path: Path) -> None:
    events = history(60)
    path = write(tmp_path / "in.jsonl", events[:25])
    small = IngestConfig(batch_records=4, commit_records=10)
    assert run(path, tmp_path / "w", config=small).received == 25
    write(path, events)
    assert run(path, tmp_path / "w", config=small).received == 35
    table = events_table.open_table(Layout(tmp_path / "w"))
    # 25 records in commits of 12, 12 and 1; 35 in commits of 12, 12 and 11.
    assert table.version() == 6
    run(path, tmp_path / "other")
    assert sorted(row["digest"] for row in rows(tmp_path / "w")) == sorted(
        row["digest"] for row in rows(tmp_path / "other")
    )


def test_a_folder_is_read_as_its_files(tmp_path: Path) -> None:
    events = history(40)
    for piece in range(4):
        write(tmp_path / "in" / f"{piece}.jsonl", events[piece::4])
    summary = run(tmp_path / "in", tmp_path / "w")
    assert (summary.received, summary.partitions) == (40, 4)


def test_an_unfinished_line_waits_when_the_file_is_being_written(tmp_path: Path) -> None:
    whole = lines(history(4))
    path = tmp_path / "in.jsonl"
    path.write_bytes(whole[:-10])
    growing = {"source_config": {"final": False}}
    first = run(path, tmp_path / "w", **growing)
    assert first.received == 3 and first.pending_bytes > 0
    path.write_bytes(whole)
    assert run(path, tmp_path / "w", **growing).received == 1
    assert all(row["kind"] != "dead_letter" for row in rows(tmp_path / "w"))


def test_a_last_line_that_was_read_too_early_is_read_again_whole(tmp_path: Path) -> None:
    whole = lines(history(4))
    path = tmp_path / "in.jsonl"
    path.write_bytes(whole[:-10])
    assert run(path, tmp_path / "w").dead_letters == {"not_json": 1}
    path.write_bytes(whole)
    assert run(path, tmp_path / "w").feedback == 1


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_nothing_in_a_file_is_no_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    for _ in range(2):
        summary = run(path, tmp_path / "w")
        assert (summary.received, summary.dead_letters) == (0, {})
    assert rows(tmp_path / "w") == []


def test_what_is_not_there_or_not_known_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no file"):
        run(tmp_path / "absent.jsonl", tmp_path / "w")
    path = write(tmp_path / "in.jsonl", history(2))
    with pytest.raises(SourceError, match="palate_jsonl"):
        ingest(path, source="csv", workspace=tmp_path / "w")
    with pytest.raises(InputError, match="final"):
        run(path, tmp_path / "w", source_config={"fnial": True})
    assert not (tmp_path / "w").exists()


def test_a_file_that_shrank_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", history(10))
    run(path, tmp_path / "w")
    write(path, history(10)[:5])
    with pytest.raises(InputError, match="shorter"):
        run(path, tmp_path / "w")
    assert len(rows(tmp_path / "w")) == 10


def test_a_file_that_was_rewritten_is_refused(tmp_path: Path) -> None:
    events = history(10)
    path = write(tmp_path / "in.jsonl", events)
    run(path, tmp_path / "w")
    write(path, [events[0], *reversed(events[1:]), *events])
    with pytest.raises(InputError, match="changed"):
        run(path, tmp_path / "w")
    assert len(rows(tmp_path / "w")) == 10


def test_rows_that_fail_an_expectation_are_dead_letters_with_their_bytes(tmp_path: Path) -> None:
    old = interaction(1, event_time="1970-01-21T00:00:00Z")
    path = write(tmp_path / "in.jsonl", [interaction(0), old, feedback(0, 0)])
    summary = run(path, tmp_path / "w")
    assert summary.dead_letters == {"expectation:event_time_plausible": 1}
    assert (summary.received, summary.interactions, summary.feedback) == (3, 1, 1)
    (dead,) = [row for row in rows(tmp_path / "w") if row["kind"] == "dead_letter"]
    assert json.loads(dead["raw"]) == old and dead["event_id"] == "i1"
    start = len(lines([interaction(0)]))
    assert dead["offset"] == start
    lenient = IngestConfig(expectations=ExpectationsConfig(earliest_event_time=NOW - timedelta(days=36_500)))
    assert run(path, tmp_path / "v", config=lenient).dead_letters == {}


def _range(hi: int) -> Range:
    part = Partition("p", Path("p"), hi)
    return Range("palate_jsonl", {}, part, 0, hi)


def _receipt(lo: int, hi: int, *, more: bool = False, rows: int = 1, received: int = 1) -> Receipt:
    return Receipt("p", lo, hi, more, received, {"interaction": rows}, {}, lo, 9)


START = {"p": Position(0, -1, 0)}


def test_receipts_that_join_up_move_the_position() -> None:
    assert advance([_range(20)], [_receipt(0, 8), _receipt(8, 20)], START) == {"p": Position(20, 8, 9)}
    assert advance([_range(20)], [_receipt(0, 8, more=True)], START) == {"p": Position(8, 0, 9)}


@pytest.mark.parametrize(
    "receipts",
    [
        [],
        [_receipt(0, 8)],
        [_receipt(8, 20)],
        [_receipt(0, 8), _receipt(9, 20)],
        [_receipt(0, 8), _receipt(0, 8), _receipt(8, 20)],
        [_receipt(0, 20, rows=1, received=2)],
    ],
    ids=["none", "no end", "no start", "gap", "twice", "row lost"],
)
def test_receipts_that_do_not_join_up_are_refused(receipts: list[Receipt]) -> None:
    with pytest.raises(PipelineError, match="exactly once"):
        advance([_range(20)], receipts, START)


def test_a_writer_that_was_first_makes_the_other_read_again(tmp_path: Path, monkeypatch) -> None:
    """Another ingest of the same file commits while this one is between reading and committing."""
    path = write(tmp_path / "in.jsonl", history(20))
    commit = events_table.append
    calls: list[bool] = []

    def late(*arguments: Any) -> bool:
        if not calls:
            calls.append(True)  # before the nested ingest, which commits through here as well
            assert run(path, tmp_path / "w").received == 20
        calls.append(commit(*arguments))
        return calls[-1]

    monkeypatch.setattr(events_table, "append", late)
    summary = run(path, tmp_path / "w")
    assert calls == [True, True, False]
    assert (summary.received, summary.already_read) == (0, 1)
    assert len(rows(tmp_path / "w")) == 20
    assert len(list((tmp_path / "w" / "tables" / "events").rglob("part-*"))) == 2


def test_a_failure_inside_beam_is_told_in_one_line_and_commits_nothing(tmp_path: Path, monkeypatch) -> None:
    path = write(tmp_path / "in.jsonl", history(4))

    def broken(self: Any, element: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(ingest_transforms.WriteBatch, "_write", broken)
    with pytest.raises(PipelineError, match="Input/output error") as caught:
        run(path, tmp_path / "w")
    assert isinstance(caught.value, PalateError) and len(str(caught.value).splitlines()) == 3
    monkeypatch.undo()
    assert run(path, tmp_path / "w").received == 4


def test_a_last_line_without_its_end_is_one_row_also_when_the_file_goes_on(tmp_path: Path) -> None:
    one, two, three = (json.dumps(interaction(n)).encode() for n in range(3))
    path, workspace = tmp_path / "in.jsonl", tmp_path / "w"
    path.write_bytes(one + b"\n" + two)
    assert run(path, workspace).received == 2
    path.write_bytes(one + b"\n" + two + b"\n")
    assert run(path, workspace).received == 0
    path.write_bytes(one + b"\n" + two + b"\n" + three + b"\n")
    assert run(path, workspace).received == 1
    assert balance(workspace).balanced
    assert sorted(row["event_id"] for row in rows(workspace)) == ["i0", "i1", "i2"]


def test_a_line_that_was_read_half_is_read_again_at_a_place_of_its_own(tmp_path: Path) -> None:
    one, two = (json.dumps(interaction(n)).encode() for n in range(2))
    path, workspace = tmp_path / "in.jsonl", tmp_path / "w"
    path.write_bytes(one + b"\n" + two[:40])
    assert run(path, workspace).dead_letters == {"not_json": 1}
    path.write_bytes(one + b"\n" + two + b"\n")
    assert run(path, workspace).interactions == 1
    assert run(path, workspace).received == 0
    build(workspace=workspace)
    ledger = balance(workspace)
    assert ledger.balanced and ledger.received == 3
    assert len({row["offset"] for row in rows(workspace)}) == 3
