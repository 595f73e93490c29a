"""Feedback at -10 s, +1 s, +1 day and +30 days around its interaction, with crashes between: joined exactly once."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pipelines import dataset
from pipelines.build import build
from pipelines.follow import follow
from pipelines.ledger import balance
from tests.broker import Broker
from tests.unit.pipelines.made import START, feedback, interaction

DELAYS = {
    "-10 s": timedelta(seconds=-10),
    "+1 s": timedelta(seconds=1),
    "+1 d": timedelta(days=1),
    "+30 d": timedelta(days=30),
}


# Where a process dies: module, class in it, function, and whether before the call or after it.
BEFORE_COMMIT = ("pipelines.events_table", "", "append", False)
AFTER_COMMIT = ("pipelines.events_table", "", "append", True)
BETWEEN = ("pipelines.events_table", "", "fsync_path", True)
AFTER_FILES = ("pipelines.ingest_transforms", "WriteBatch", "_write", True)
IN_BUILD = ("pipelines.dataset", "", "fsync_path", False)
Point = tuple[str, str, str, bool]


def take(workspace: Path, url: str) -> None:
    follow(url, workspace=workspace, once=True)


def make(workspace: Path, _url: str) -> None:
    build(workspace=workspace)


def work(job: Callable[[Path, str], None], workspace: Path, url: str, point: Point | None) -> None:
    """What a process does; it dies at its point."""
    if point is not None:
        module, inner, attribute, afterwards = point
        owner: Any = importlib.import_module(module)
        owner = getattr(owner, inner) if inner else owner
        real = getattr(owner, attribute)

        def deadly(*arguments: Any, **named: Any) -> Any:
            if afterwards:
                real(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, attribute, deadly)
    try:
        job(workspace, url)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Processes:
    """Jobs in processes of their own, forked from one that has imported everything."""

    def __init__(self, workspace: Path, url: str):
        self.workspace, self.url = workspace, url
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(
            [
                __name__,
                "great_expectations.expectations",
                "pipelines.ingest_transforms",
                "pipelines.build_transforms",
            ]
        )

    def run(self, job: Callable[[Path, str], None], point: Point | None = None) -> None:
        """To its end, or to its death at the point."""
        process = self.context.Process(target=work, args=(job, self.workspace, self.url, point))
        process.start()
        process.join()
        assert process.exitcode == (0 if point is None else -signal.SIGKILL)


def test_early_and_late_feedback_joins_once(broker: Broker, tmp_path: Path) -> None:
    topic, workspace = broker.topic(3), tmp_path / "w"

    def send(events: list[dict[str, Any]]) -> None:
        broker.send(topic, [json.dumps(event).encode() for event in events])

    processes = Processes(workspace, broker.url(topic))
    replies = [interaction(n, prompt=f"q{n}", user_id=None) for n in range(len(DELAYS))]
    signals = {
        name: feedback(
            n, n, value=1, user_id=None, event_time=(START + timedelta(minutes=n) + delay).isoformat()
        )
        for n, (name, delay) in enumerate(DELAYS.items())
    }
    send([signals["-10 s"]])
    processes.run(take, BEFORE_COMMIT)
    processes.run(take, AFTER_COMMIT)
    processes.run(make)
    assert fates(workspace) == {"waiting": 1}
    send(replies)
    processes.run(take, BETWEEN)
    processes.run(take)
    processes.run(make, IN_BUILD)
    send([signals["+1 s"], signals["+1 s"]])  # the producer was not sure
    processes.run(take, AFTER_FILES)
    processes.run(take)
    processes.run(make)
    for late in ("+1 d", "+30 d"):
        send([signals[late]])
        processes.run(take, AFTER_COMMIT)
        processes.run(take)
        processes.run(make)
    found = dataset.load(workspace).rows().to_pylist()
    joined = sorted(name for row in found for name in row["evidence"] if name.startswith("f"))
    assert joined == [f"f{n}" for n in range(len(DELAYS))]
    assert len(found) == len(DELAYS)
    assert fates(workspace) == {"duplicate": 1, "ready": 8}


def fates(workspace: Path) -> dict[str, int]:
    ledger = balance(workspace)
    assert ledger.balanced
    return ledger.fates
