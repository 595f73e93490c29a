"""Maintenance changes how tables lie on disk, never what they say; killed anywhere it does no harm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines import dataset, events_table, fates
from pipelines.account import account
from pipelines.build import build
from pipelines.errors import PipelineError
from pipelines.events_table import EventFile, Position
from pipelines.groups_store import store
from pipelines.ingest import IngestConfig, ingest
from pipelines.ledger import balance
from pipelines.maintain import MaintainConfig, Step, _older, maintain
from pipelines.replay import Letters, replay
from pipelines.story import story
from pipelines.workspace import Layout, locked
from tests.unit.pipelines.made import NOW, history, write

ROOT = Path(__file__).parents[3]
EVENTS = history(160)
EAGER = MaintainConfig(min_small_files=2, retention_hours=0, keep_validations=1)
AFTER = datetime.now(UTC) + timedelta(days=400)
KILLED = """
import os, signal, sys, threading
from datetime import UTC, datetime
from pathlib import Path
from pipelines.maintain import MaintainConfig, maintain
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
when = sys.argv[2]
def progress(_what, done, _total):
    if when == f"step {done}":
        die()
if when == "while compacting":
    from deltalake.table import TableOptimizer
    plain = TableOptimizer.compact
    def compact(self, *args, **kwargs):
        threading.Timer(0.002, die).start()
        return plain(self, *args, **kwargs)
    TableOptimizer.compact = compact
config = MaintainConfig(min_small_files=2, retention_hours=0)
maintain(Path(sys.argv[1]), config, now=datetime.now(UTC), progress=progress)
"""


def fill(workspace: Path, upto: int, step: int, start: int = 0) -> None:
    """Ingests a growing file again and again, so that many small files come of it."""
    for end in range(start + step, upto + 1, step):
        file = write(workspace.parent / "events.jsonl", EVENTS[:end])
        ingest(file, source="palate_jsonl", workspace=workspace, now=NOW)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four commits, then a build."""
    folder = tmp_path_factory.mktemp("maintained") / "w"
    fill(folder, 128, step=32)
    build(workspace=folder)
    return folder


@pytest.fixture
def workspace(template: Path, tmp_path: Path) -> Path:
    """A copy to be worked on."""
    return Path(shutil.copytree(template, tmp_path / "w"))


def facts(workspace: Path) -> dict[str, Any]:
    """What tables say, without how they lie on disk."""
    layout = Layout(workspace)
    rows = events_table.open_table(layout).to_pyarrow_table()
    names = ["kind", "partition", "offset", "digest", "body", "ingest_time", "source"]
    return {
        "events": sorted(map(str, rows.select(names).to_pylist())),
        "fates": sorted(map(str, fates.read(layout).to_pylist())),
        "rows": dataset.load(workspace).rows().to_pylist(),
        "ledger": balance(workspace),
    }


def by_name(steps: list[Step]) -> dict[str, Step]:
    return {step.what: step for step in steps}


def test_tables_say_the_same_afterwards(workspace: Path) -> None:
    layout, before = Layout(workspace), facts(workspace)
    table = events_table.open_table(layout)
    partition = table.to_pyarrow_table(columns=["partition"])["partition"][0].as_py()
    at, count = events_table.position(table, partition), len(events_table.files(table))
    dry = by_name(maintain(workspace, EAGER, now=AFTER, dry_run=True))
    assert dry["compact small files of events"].items == count
    assert len(events_table.files(events_table.open_table(layout))) == count
    done = by_name(maintain(workspace, EAGER, now=AFTER))
    assert done["compact small files of events"].note == "into 2 files"
    assert done["vacuum events"].items == count and done["vacuum events"].freed_bytes > 0
    table = events_table.open_table(layout)
    assert len(events_table.files(table)) == 2 and events_table.position(table, partition) == at
    assert facts(workspace) == before
    assert [step for step in maintain(workspace, EAGER, now=AFTER) if step.items] == []


def test_the_next_build_is_incremental_and_the_same(workspace: Path, tmp_path: Path) -> None:
    # What came after the build is compacted together with what it saw, and is still found to be new.
    fill(workspace, 144, step=16, start=128)
    maintain(workspace, MaintainConfig(min_small_files=2), now=AFTER)
    before = store.read_state(Layout(workspace))
    made = build(workspace=workspace)
    after = store.read_state(Layout(workspace))
    assert before is not None and after is not None
    assert set(before.segments) < set(after.segments)
    other = tmp_path / "scratch" / "w"
    fill(other, 144, step=144)
    assert build(workspace=other).version == made.version
    assert balance(workspace).balanced
    maintain(workspace, EAGER, now=AFTER)
    assert build(workspace=workspace).reused


def test_a_writer_that_started_before_still_commits(workspace: Path) -> None:
    import pyarrow.parquet as pq

    layout = Layout(workspace)
    stale = events_table.open_table(layout)
    maintain(workspace, EAGER, now=AFTER)
    file = events_table.files(events_table.open_table(layout))[0]
    staged = layout.staging / "row.parquet"
    pq.write_table(pq.ParquetFile(file.path).read().slice(0, 1), staged)
    new = [EventFile(staged, file.kind, 1)]
    assert events_table.append(layout, stale, new, {"another": Position(1, 0, 0)})


def test_only_what_nothing_names_is_removed(workspace: Path) -> None:
    layout, before = Layout(workspace), facts(workspace)
    garbage = [
        layout.events / "kind=feedback" / "part-orphan.parquet",
        layout.root / "groups" / "dead" / "rows.parquet",
        layout.datasets / ".newest.0123",
        layout.staging / "ingest-dead" / "x.parquet",
        layout.root / "replays" / "0123456789abcdef.arrow",
    ]
    for file in garbage:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 1000)
    import pyarrow as pa

    with pa.OSFile(str(garbage[-1]), "wb") as sink:
        schema = pa.schema([("partition", pa.string()), ("offset", pa.int64()), ("raw", pa.large_binary())])
        with pa.ipc.new_file(sink, schema):
            pass
    pages = [layout.root / "validation" / f"{n}.html" for n in range(3)]
    for number, page in enumerate(pages):
        page.parent.mkdir(exist_ok=True)
        page.write_text("x")
        page.with_suffix(".json").write_text("{}")
        os.utime(page, (number, number))
    fresh = maintain(workspace, MaintainConfig(min_small_files=99), now=datetime.now(UTC))
    assert sum(step.items for step in fresh) == 1  # of what is young only what a dead process left
    assert not garbage[3].exists()
    for path in (garbage[0], garbage[1].parent):
        os.utime(path, (1e9, 1e9))
    maintain(workspace, EAGER, now=AFTER)
    assert [file for file in garbage if file.exists()] == []
    assert [page.name for page in pages if page.exists()] == ["2.html"]
    assert facts(workspace) == before


def test_one_at_a_time(workspace: Path) -> None:
    with locked(Layout(workspace).staging / ".maintain"), pytest.raises(PipelineError, match="Another"):
        maintain(workspace, now=AFTER)


@pytest.mark.parametrize("damage", ["gone", "cut", "log"])
def test_a_damaged_table_is_named_to_whoever_asks(workspace: Path, damage: str) -> None:
    layout = Layout(workspace)
    file = events_table.files(events_table.open_table(layout))[0].path
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:300])
    else:
        sorted((layout.events / "_delta_log").glob("*.json"))[-1].write_bytes(b"{bad\n")
    letters = Letters()
    asked: list[Callable[[], Any]] = [
        lambda: story(workspace, "i0"),
        lambda: account(workspace),
        lambda: maintain(workspace, EAGER, now=AFTER),
    ]
    if damage == "log":
        asked.append(lambda: replay(workspace, letters, config=IngestConfig(), now=NOW))
    for ask in asked:
        with pytest.raises(PipelineError, match="missing or damaged"):
            ask()


def test_what_vanishes_meanwhile_is_not_old(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.touch()
    assert _older([tmp_path / "renamed by its owner", here], AFTER, EAGER) == [here]


@pytest.mark.parametrize("setting", ["retention_hours", "target_file_mb"])
def test_settings_beyond_all_bounds(setting: str) -> None:
    with pytest.raises(ValidationError):
        MaintainConfig.model_validate({setting: 10**20})


def test_an_empty_workspace(tmp_path: Path) -> None:
    assert all(step.items == 0 for step in maintain(tmp_path, now=AFTER))


@pytest.mark.parametrize("when", ["while compacting", "step 1", "step 2", "step 4"])
def test_killed(workspace: Path, when: str) -> None:
    before = facts(workspace)
    done = subprocess.run([sys.executable, "-c", KILLED, str(workspace), when], cwd=ROOT, check=False)
    assert done.returncode in (-signal.SIGKILL, 0)
    assert facts(workspace) == before
    maintain(workspace, EAGER, now=AFTER)
    assert facts(workspace) == before
    assert len(events_table.files(events_table.open_table(Layout(workspace)))) == 2
