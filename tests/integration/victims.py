"""Runs ingest and build in processes that are killed. Started by `test_exactly_once.py` as its own program.

Importing Beam and Great Expectations takes most of a run's time, so this program imports them once and forks
a process for each run; it never runs a pipeline itself, so it has no threads that a fork would lose.

Reads one run per line from its input, as JSON: `workspace` and `folder`, and what happens to it: "at" and
"nth": it kills itself with SIGKILL the n-th time it comes to that point; "after_s": it is killed from
outside; "together": that many undisturbed runs at once; nothing: one undisturbed run. Answers each line with
the exit codes of its processes.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import great_expectations.expectations  # noqa: F401

from pipelines import build as build_module
from pipelines import build_work, dataset, events_table, ingest_transforms, runner
from pipelines.groups_store import store, write
from pipelines.ingest import IngestConfig, ingest
from tests.unit.pipelines.made import NOW

POINTS: dict[str, tuple[Any, str, bool]] = {
    # name: (module or class, function, whether to die before it or after it)
    "after reading a batch": (ingest_transforms.Check, "process", False),
    "before the first file": (ingest_transforms.WriteBatch, "_write", False),
    "before a commit": (events_table, "append", False),
    "between moving files and committing": (events_table, "fsync_path", True),
    "after a commit": (events_table, "append", True),
    "while a segment is written": (write.SegmentWriter, "add", True),
    "before the dataset": (dataset, "content_version", True),
    "while the dataset is written": (dataset, "fsync_path", True),
    "between dataset and segment": (build_work, "keep", False),
    "between segment and state": (store, "write_state", False),
    "between state and newest": (store, "write_state", True),
}


def _die_at(name: str, nth: int) -> None:
    """Replaces a function by one that kills this process at its n-th call."""
    owner, attribute, afterwards = POINTS[name]
    real: Callable[..., Any] = getattr(owner, attribute)
    calls = 0

    @functools.wraps(real)
    def deadly(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not afterwards:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if calls == nth and afterwards:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, deadly)


def _work(workspace: Path, folder: Path) -> None:
    """What a user does: ingest a folder in small commits, build."""
    small = IngestConfig(batch_records=40, commit_records=40)
    ingest(folder, source="palate_jsonl", workspace=workspace, now=NOW, config=small)
    build_module.build(workspace=workspace)


def _forked(job: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        job()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _run(step: dict[str, Any]) -> list[int]:
    def job() -> None:
        if "at" in step:
            _die_at(step["at"], step.get("nth", 1))
        _work(Path(step["workspace"]), Path(step["folder"]))

    pids = [_forked(job) for _ in range(step.get("together", 1))]
    if "after_s" in step:
        time.sleep(step["after_s"])
        os.kill(pids[0], signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def main() -> None:
    """Works through the runs asked for."""
    runner.import_beam()
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
