"""Work beside this process gives what work in it gives, in order, and outlives a process that dies."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from operator import mul
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from loky.process_executor import ProcessPoolExecutor

from feedback.sources import Cut, Partition, palate_jsonl
from feedback.validation import Limits
from pipelines import events_table, parsing, processes, receipts, shards
from pipelines.build import BuildConfig, build
from pipelines.events_table import KINDS, EventFile
from pipelines.ingest import IngestConfig, ingest
from pipelines.processes import Ahead, start
from pipelines.ranges import Range, Sizes
from pipelines.runner import RunnerConfig
from pipelines.workspace import Layout

from .made import NOW, history, interaction, lines, write


def test_results_come_in_the_order_they_were_given() -> None:
    ahead, seen = Ahead(2, ahead=3), []
    for number in range(7):
        seen += list(ahead.add(number, [(mul, (number, 2)), (mul, (number, 3))]))
        assert len(seen) == max(0, number - 2)
    seen += list(ahead.rest())
    assert seen == [(number, [2 * number, 3 * number]) for number in range(7)]


def test_without_processes_nothing_waits() -> None:
    assert list(Ahead(0, ahead=3).add("a", [(mul, (6, 7))])) == [("a", [42])]


def test_what_a_call_raises_reaches_the_caller() -> None:
    ahead = Ahead(2)
    with pytest.raises(TypeError, match="unsupported operand"):
        list(ahead.add("a", [(mul, ({}, 1))]))


def kill_me(parent: int) -> str:
    """Dies where it can; the parent survives."""
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return "made here"


def test_the_call_of_a_process_that_dies_is_made_here() -> None:
    ahead = Ahead(2, ahead=1)
    assert list(ahead.add("a", [(kill_me, (os.getpid(),))])) == []
    assert list(ahead.rest()) == [("a", ["made here"])]
    assert list(Ahead(2).add("b", [(mul, (6, 7))])) == [("b", [42])]


def test_processes_end_when_their_parent_is_killed() -> None:
    code = (
        "import time; from concurrent.futures import wait; from pipelines.processes import start;"
        "wait(start(2)); print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        beside = psutil.Process(parent.pid).children(recursive=True)
        assert len(beside) >= 2
        parent.kill()
    psutil.wait_procs(beside, timeout=10)
    assert [process for process in beside if process.is_running()] == []


def test_the_runner_decides_who_works_beside_it() -> None:
    assert RunnerConfig().processes(10) == 0
    assert RunnerConfig(workers=3).processes(10**6) == 3
    assert RunnerConfig(workers=1).processes(10**6) == 0
    assert RunnerConfig(runner="dask", workers=3).processes(10**6) == 0


def test_large_work_is_the_same_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.runner._WORTH_PROCESSES", 1)
    raw = (lines(history(40, seed=3)) + b"{\n\xff\n") * 2
    path = tmp_path / "events.jsonl"
    path.write_bytes(raw)
    made = {}
    for workers in (1, 2):
        workspace, runner = tmp_path / f"w{workers}", RunnerConfig(workers=workers)
        config = IngestConfig(batch_records=7)
        ingest(path, source="palate_jsonl", workspace=workspace, config=config, runner=runner, now=NOW)
        dataset = build(
            workspace=workspace, config=BuildConfig(in_memory_rows=0, rows_per_shard=9), runner=runner
        )
        layout = Layout(workspace)
        rows = sum(file.rows for file in events_table.files(events_table.open_table(layout)))
        made[workers] = (dataset.version, rows, dataset.manifest["fates"])
    assert made[1] == made[2]
    assert made[1][1] == raw.count(b"\n")


def test_starting_takes_no_time_from_the_caller() -> None:
    started = time.monotonic()
    futures = start(2)
    assert time.monotonic() - started < 1
    for future in futures:
        future.result()


def test_a_range_that_is_cut_gives_the_rows_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.runner._WORTH_PROCESSES", 1)
    monkeypatch.setattr("feedback.sources.palate_jsonl._CUT_BYTES", 700)
    path = tmp_path / "events.jsonl"
    path.write_bytes(lines(history(60, seed=2)) + b"\n{\n\n" + json.dumps(interaction(99)).encode())
    tables = {}
    for workers, commit_records in ((1, 1000), (2, 1000), (2, 9)):
        workspace = tmp_path / f"w{workers}-{commit_records}"
        config, runner = IngestConfig(commit_records=commit_records), RunnerConfig(workers=workers)
        done = ingest(path, source="palate_jsonl", workspace=workspace, config=config, runner=runner, now=NOW)
        assert (done.received, done.dead_letters) == (62, {"not_json": 1})
        table = events_table.open_table(Layout(workspace))
        assert (table.version() > 3) == (commit_records == 9)
        tables[workers, commit_records] = table.to_pyarrow_table().sort_by("offset").to_pylist()
    first, *others = tables.values()
    assert all(other == first for other in others)


def unsized(partition: Partition, lo: int, hi: int, config: palate_jsonl.Config) -> Iterator[Cut]:
    """As a topic is cut: how large its records are is not known before they are read."""
    return (Cut(cut.offset, 0, 0) for cut in SIZED(partition, lo, hi, config))


SIZED = palate_jsonl.cuts


@pytest.mark.parametrize("batch_bytes", [1, 3_000, 1_000_000])
def test_a_commit_that_is_full_before_the_next_cut_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr("pipelines.runner._WORTH_PROCESSES", 1)
    monkeypatch.setattr(processes, "_submit", lambda *_: None)  # each call is made here
    monkeypatch.setattr(palate_jsonl, "_CUT_BYTES", 3_000)
    monkeypatch.setattr(palate_jsonl, "cuts", unsized)
    monkeypatch.setattr("pipelines.parsing.PIECE_BYTES", 1_000)
    path = write(tmp_path / "events.jsonl", history(60, seed=5))
    assert path.stat().st_size > 9_000
    left: list[int] = []

    def count(folder: Path) -> list[receipts.Receipt]:
        left[:] = [max([*left, len(list(folder.parent.glob("*.arrow")))])]
        return read_receipts(folder)

    read_receipts = receipts.read_receipts
    monkeypatch.setattr(receipts, "read_receipts", count)
    config = IngestConfig(commit_bytes=1_500, batch_bytes=batch_bytes)
    workspace, runner = tmp_path / "workspace", RunnerConfig(workers=2)
    done = ingest(path, source="palate_jsonl", workspace=workspace, config=config, runner=runner, now=NOW)
    assert (done.received, done.dead_letters) == (60, {})
    assert left == [0]  # of a commit's rows nothing stays for all of a long backlog


def test_what_was_written_can_be_written_again(tmp_path: Path) -> None:
    path = write(tmp_path / "events.jsonl", history(6))
    partition = palate_jsonl.partitions(path, palate_jsonl.Config())[0]
    asked = Range("palate_jsonl", {}, partition, 0, partition.end)
    (piece,) = parsing.parse(asked, Sizes(9, 9_000, 9, 9_000), NOW, Limits(), tmp_path)
    first, second = (parsing.write_kinds([piece.path], tmp_path) for _ in range(2))
    assert first.keys() == second.keys() == {"interaction", "feedback"}
    assert pq.read_table(first["feedback"]).equals(pq.read_table(second["feedback"]))


def interrupted(parent: int) -> bool:
    """Whether a process beside the parent goes on after Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT if os.getpid() != parent else 0)
    return os.getpid() != parent


def test_an_interrupt_is_for_the_parent_to_act_upon() -> None:
    assert list(Ahead(1).add("a", [(interrupted, (os.getpid(),))])) == [("a", [True])]


def test_without_a_process_to_be_had_calls_are_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: ProcessPoolExecutor) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(ProcessPoolExecutor, "_adjust_process_count", refuse)
        assert list(Ahead(3).add("a", [(os.getpid, ())])) == [("a", [os.getpid()])]
    assert list(Ahead(1).add("b", [(os.getpid, ())])) != [("b", [os.getpid()])]


FORKED = """
import multiprocessing, os, sys
from pipelines.processes import Ahead
here = lambda: next(Ahead(1).add("a", [(os.getpid, ())]))[1] == [os.getpid()]
assert not here()
for daemon in (False, True):
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(int(here())), daemon=daemon)
    child.start()
    child.join(30)
    print(child.exitcode)
"""


def test_a_fork_has_processes_of_its_own_and_a_daemon_none() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


def test_of_large_events_few_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "events.jsonl", history(60))
    ingest(path, source="palate_jsonl", workspace=tmp_path / "w", now=NOW)
    files = events_table.files(events_table.open_table(Layout(tmp_path / "w")))
    (replies,) = (file for file in files if file.kind == "interaction")
    assert [table.num_rows for table in shards.read_events(replies)] == [30]
    monkeypatch.setattr(shards, "_BATCH_BYTES", 1_000)
    few = [table.num_rows for table in shards.read_events(replies)]
    assert sum(few) == 30 and max(few) < 6


def test_small_files_are_read_together_and_large_ones_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "events.jsonl", history(60))
    ingest(
        path, source="palate_jsonl", workspace=tmp_path / "w", now=NOW, config=IngestConfig(batch_records=5)
    )
    files = [
        f for f in events_table.files(events_table.open_table(Layout(tmp_path / "w"))) if f.kind in KINDS
    ]
    kinds = Counter(file.kind for file in files)
    assert kinds["interaction"] > 3 and kinds["feedback"] > 3
    bundles = shards.bundled(files)
    assert [len(bundle) for bundle in bundles] == [kinds[kind] for kind in sorted(kinds)]
    for bundle in bundles:
        (table,) = shards.read_bundle(bundle)
        assert table.num_rows == sum(file.rows for file in bundle)
        assert set(table["kind"].to_pylist()) == {bundle[0].kind}
    large, small = (EventFile(Path("x"), "feedback", rows) for rows in (60_000, 5))
    assert [len(bundle) for bundle in shards.bundled([large, small, small, large])] == [1, 2, 1]
