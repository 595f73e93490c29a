"""Kill -9 from Kafka to tables, again and again: nothing may be lost, nothing doubled, the books always balance.

    python benchmarks/streams_soak.py --kills 1000 --minutes 20

A producer writes all the time, with copies of events and with records that are no events. Several consumers
run at once: alone on all partitions, as members of a group that come and go, and now and then a slow one whose
snapshot is stale when it commits. Each dies by SIGKILL at a random moment or at a named point of its work, a
few leave politely, and another takes its place. After every death each new commit is checked: its rows are
exactly the offsets between the old position of a partition and the new one. In the end the table is compared
with what was written, and the dataset built from it with that of an undisturbed run.

Consumers are forked from a server process that has imported everything, as importing takes ten times as long
as dying. Nothing in palate knows of this script: it counts phases and dies by wrapping functions in the child.
"""

from __future__ import annotations

import argparse
import functools
import json
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.promises import Check, finish  # noqa: E402
from tests.broker import Broker, running  # noqa: E402
from tests.unit.pipelines.made import feedback, interaction  # noqa: E402

PARTITIONS = 2
_PAUSES = 3  # the ledger is read for a quarter of the time at most, the rest belongs to the killing
PHASES = ("starting", "waiting", "reading", "validating", "writing", "committing", "after the commit")
# Where a consumer may die by itself: module, attribute, before (False) or after (True) the call.
POINTS: dict[str, tuple[str, str, bool]] = {
    "after reading": ("pipelines.ingest_transforms:Check", "process", False),
    "before a file": ("pipelines.ingest_transforms:WriteBatch", "_write", False),
    "after the files": ("pipelines.receipts", "read_receipts", True),
    "before the commit": ("pipelines.events_table", "append", False),
    "between moving files and committing": ("pipelines.events_table", "fsync_path", True),
    "after the commit": ("pipelines.events_table", "append", True),
    "before the mirror": ("pipelines.kafka.connection", "mirror", False),
}
DEADLY, POLITE = -signal.SIGKILL, -signal.SIGTERM


# ── The producer ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Producer:
    """Writes records in a thread and keeps what was acknowledged: (partition, offset) → event id, or None."""

    broker: Broker
    topic: str
    per_second: float
    seed: int
    written: dict[tuple[int, int], str | None] = field(default_factory=dict)
    error: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins."""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends; everything written is acknowledged then."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        if self.error:
            raise RuntimeError(f"the producer failed: {self.error}")

    def _work(self) -> None:
        from kafka import KafkaProducer

        try:
            producer = KafkaProducer(bootstrap_servers=self.broker.address, linger_ms=5)
            records = _records(self.seed)
            while not self._stop.is_set():
                batch = [next(records) for _ in range(max(1, int(self.per_second / 5)))]
                futures = [
                    (
                        producer.send(
                            self.topic, value=value, key=b"k" if value is None else None, partition=p
                        ),
                        name,
                    )
                    for value, p, name in batch
                ]
                producer.flush(30)
                for future, name in futures:
                    done = future.get(30)
                    self.written[(done.partition, done.offset)] = name
                self._stop.wait(len(batch) / self.per_second)
            producer.close()
        except Exception as error:
            self.error = repr(error)


def _records(seed: int) -> Iterator[tuple[bytes | None, int, str | None]]:
    """Endless records: value, partition, event id (None where it is no event)."""
    draw = random.Random(seed)
    old: list[tuple[bytes, str]] = []
    number = 0
    while True:
        partition = draw.randrange(PARTITIONS)
        chance = draw.random()
        if chance < 0.02:
            yield draw.choice([None, b"", b"{broken", b"[]", b"\xff\xfe"]), partition, None
            continue
        if chance < 0.07 and old:  # the same event again: the producer was not sure
            value, name = draw.choice(old)
            yield value, partition, name
            continue
        if chance < 0.55:
            event = interaction(number)
            name = event["interaction_id"]
            number += 1
        else:  # about a reply long ago, or about one that is still to come
            about = max(0, number + draw.randint(-200, 10))
            name = f"f{draw.getrandbits(48)}"
            event = feedback(0, about, value=draw.choice([1, -1])) | {"feedback_id": name}
        value = json.dumps(event).encode()
        old.append((value, name))
        del old[:-500]
        yield value, partition, name


# ── A consumer, in a process of its own ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """What happens to one consumer."""

    share: bool
    """Member of the group, or alone on all partitions."""
    slow_s: float
    """Seconds between reading and committing."""
    dies_at: str | None
    nth: int


def consume(url: str, workspace: str, slot: int, phases: str, errors: str, plan: Plan) -> None:
    """Follows the topic until it is killed; on SIGTERM it leaves politely."""
    from pipelines.follow import FollowConfig, follow
    from pipelines.ingest import IngestConfig

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Path(phases).open("r+b") as file:
        phase = mmap.mmap(file.fileno(), 0)
    _watch(phase, slot, plan)
    try:
        follow(
            url,
            source_config={"share": plan.share, "group": "soak"},
            workspace=Path(workspace),
            config=IngestConfig(batch_records=60, commit_records=150),
            rounds=FollowConfig(round_records=400, idle_min_s=0.02, idle_max_s=0.1),
            stop=stop,
        )
    except BaseException:
        with Path(errors).open("a") as file:
            traceback.print_exc(file=file)
        os._exit(1)
    os._exit(0)  # quietly, also where a library would wait for its threads


def _watch(phase: mmap.mmap, slot: int, plan: Plan) -> None:
    """Wraps the functions of the work so that they tell the phase, dawdle, and die where planned."""
    from pipelines import events_table, follow, ingest_transforms
    from pipelines.kafka import source

    def tell(name: str) -> None:
        phase[slot] = PHASES.index(name)

    def around(owner: Any, attribute: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        real = getattr(owner, attribute)

        @functools.wraps(real)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            before()
            result = real(*arguments, **named)
            after()
            return result

        setattr(owner, attribute, wrapped)

    def nothing() -> None:
        return None

    def commit() -> None:
        time.sleep(plan.slow_s)
        tell("committing")

    around(source, "read", lambda: tell("reading"), nothing)
    around(ingest_transforms.Check, "process", lambda: tell("validating"), nothing)
    around(ingest_transforms.WriteBatch, "_write", lambda: tell("writing"), nothing)
    around(events_table, "append", commit, lambda: tell("after the commit"))
    around(follow.sources, "partitions", lambda: tell("waiting"), nothing)
    if plan.dies_at is not None:
        where, attribute, afterwards = POINTS[plan.dies_at]
        module, _, inner = where.partition(":")
        owner: Any = sys.modules[module]
        calls = 0

        def die() -> None:
            nonlocal calls
            calls += 1
            if calls == plan.nth:
                os.kill(os.getpid(), signal.SIGKILL)

        around(getattr(owner, inner) if inner else owner, attribute,
               nothing if afterwards else die, die if afterwards else nothing)  # fmt: skip


# ── The books ───────────────────────────────────────────────────────────────────────────────────────────────


class Books:
    """Checks every commit once, from the table's log: positions move on, rows are exactly the offsets between."""

    def __init__(self, workspace: Path):
        from pipelines.workspace import Layout

        self.workspace, self.layout = workspace, Layout(workspace)
        self.version = 0
        self.at: dict[str, int] = {}
        self.rows: dict[tuple[int, int], str | None] = {}
        self.lost = self.doubled = self.checked = self.balances = 0
        # Beside the killing: a ledger that is read while dead consumers wait for their successors slows the soak.
        self._beside = ThreadPoolExecutor(1, "ledger")
        self._balancing: Future[None] | None = None
        self._next_balance = 0.0

    def check(self) -> None:
        """Looks at the commits since the last time, then at the ledger, which may still be read afterwards."""
        log = self.layout.events / "_delta_log"
        while (path := log / f"{self.version:020}.json").exists():
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            self._commit(actions)
            self.version += 1
        if self.version and time.monotonic() >= self._next_balance:
            self.settle()
            self._next_balance = float("inf")
            self._balancing = self._beside.submit(self._balance, len(self.rows))

    def settle(self) -> None:
        """Waits for the ledger that is being read; raises what it found."""
        if self._balancing is not None:
            self._balancing.result()

    def _commit(self, actions: list[dict[str, Any]]) -> None:
        import pyarrow.parquet as pq

        columns = ["partition", "offset", "event_id", "reason"]
        found: dict[str, list[int]] = {}
        for action in actions:
            if "add" not in action:
                continue
            path = self.layout.events / action["add"]["path"]
            for row in pq.ParquetFile(path).read(columns=columns).to_pylist():
                found.setdefault(row["partition"], []).append(row["offset"])
                key = (int(row["partition"].rsplit("/", 1)[1]), row["offset"])
                self.doubled += key in self.rows
                self.rows[key] = row["event_id"] if row["reason"] is None else None
        moved = {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a}
        for name, to in moved.items():
            if "#" in name:
                continue
            since, self.at[name] = self.at.get(name, 0), to
            got = sorted(found.pop(name, []))
            self.lost += len(set(range(since, to)) - set(got))
            if got != list(range(since, to)):
                print(f"  {name}: the commit to {to} after {since} holds {got[:3]}…{got[-3:]}", flush=True)
        assert not found, f"rows of {sorted(found)} were committed without a position"
        self.checked += 1

    def _balance(self, at_least: int) -> None:
        """The ledger says: in = Σ fates, and in is what the commits held."""
        from pipelines.ledger import balance

        started = time.monotonic()
        try:
            ledger = balance(self.workspace)
            assert ledger.balanced and ledger.received >= at_least, ledger
            self.balances += 1
        finally:
            self._next_balance = time.monotonic() + _PAUSES * (time.monotonic() - started)


# ── The soak ────────────────────────────────────────────────────────────────────────────────────────────────


class Soak:
    """Consumers in slots; whoever ends is replaced."""

    def __init__(self, broker: Broker, topic: str, folder: Path, consumers: int, seed: int):
        self.url, self.folder = broker.url(topic), folder
        self.workspace = folder / "workspace"
        self.books = Books(self.workspace)
        self.draw = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.left = 0
        self.phases, self.errors = folder / "phases", folder / "errors"
        self.phases.write_bytes(bytes(consumers))
        self.errors.touch()
        with self.phases.open("r+b") as file:
            self._phase = mmap.mmap(file.fileno(), 0)
        self._slots: list[tuple[Any, float, Plan]] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["__main__", "great_expectations.expectations", "pipelines.ingest_transforms", "pipelines.follow",
             "pipelines.kafka.group", "kafka", "deltalake", "pandas", "deltalake.transaction"]
        )  # fmt: skip
        first = self._context.Process(target=int)  # returns when everything is imported
        first.start()
        first.join()
        self._slots = [self._start(slot) for slot in range(consumers)]

    def _plan(self) -> Plan:
        draw = self.draw
        return Plan(
            share=draw.random() < 0.4,
            slow_s=draw.uniform(0.3, 1.0) if draw.random() < 0.15 else 0.0,
            dies_at=draw.choice(list(POINTS)) if draw.random() < 0.5 else None,
            nth=draw.randint(1, 2),
        )

    def _start(self, slot: int) -> tuple[Any, float, Plan]:
        plan = self._plan()
        self._phase[slot] = 0
        process = self._context.Process(
            target=consume,
            args=(self.url, str(self.workspace), slot, str(self.phases), str(self.errors), plan),
            daemon=True,
        )
        process.start()
        # Who dies by itself gets the time to come to that point; the others die whenever it happens.
        life_s = 4.0 if plan.dies_at else self.draw.uniform(0.2, 5.0)
        return process, time.monotonic() + life_s, plan

    def run(self, kills: int, until: float) -> None:
        """Kills until there were as many, or until that time."""
        shown = time.monotonic()
        while self.kills.total() < kills and time.monotonic() < until:
            time.sleep(0.01)
            for slot, (process, deadline, plan) in enumerate(self._slots):
                if process.is_alive() and time.monotonic() < deadline:
                    continue
                self._end(slot, process, plan)
                self._slots[slot] = self._start(slot)
                self.books.check()
            if time.monotonic() - shown > 15:
                shown = time.monotonic()
                print(f"  {self.kills.total()} kills, {len(self.books.rows)} rows, lost {self.books.lost}, "
                      f"doubled {self.books.doubled}", flush=True)  # fmt: skip

    def _end(self, slot: int, process: Any, plan: Plan) -> None:
        """A consumer that is dead, or whose time has come."""
        own_doing = not process.is_alive()
        where = plan.dies_at if own_doing and plan.dies_at else f"while {PHASES[self._phase[slot]]}"
        if not own_doing and self.draw.random() < 0.1:
            process.terminate()
            process.join(20)
        if process.is_alive():
            where = f"while {PHASES[self._phase[slot]]}"
            process.kill()
        process.join()
        if process.exitcode == DEADLY:
            self.kills[where] += 1
        elif process.exitcode == 0 or (process.exitcode == POLITE and where == f"while {PHASES[0]}"):
            self.left += 1  # asked to leave before it had begun to listen, it ends as any process does
        else:
            raise RuntimeError(f"a consumer failed with {process.exitcode}:\n{self.errors.read_text()}")

    def stop(self) -> None:
        """Kills who is left."""
        for process, _, _ in self._slots:
            process.kill()
            process.join()


def _finish(soak: Soak, written: dict[tuple[int, int], str | None]) -> dict[str, Any]:
    """Reads the rest undisturbed, compares everything, builds, and compares with an undisturbed run."""
    from pipelines.build import build
    from pipelines.follow import follow
    from pipelines.ingest import ingest
    from pipelines.ledger import balance

    follow(soak.url, workspace=soak.workspace, once=True)
    books = soak.books
    books.check()
    books.settle()
    lost = [key for key in written if key not in books.rows]
    foreign = [key for key in books.rows if key not in written]
    wrong = [key for key, name in written.items() if key in books.rows and books.rows[key] != name]
    started = time.monotonic()
    version = build(workspace=soak.workspace).version
    built_s = time.monotonic() - started
    ledger = balance(soak.workspace)
    undisturbed = soak.folder / "undisturbed"
    ingest(soak.url, source="kafka", workspace=undisturbed, now=datetime.now(UTC) + timedelta(seconds=1))
    same = build(workspace=undisturbed).version == version
    table = list(soak.books.layout.events.rglob("*.parquet"))
    return {
        "written": len(written),
        "rows": len(books.rows),
        "lost": books.lost + len(lost),
        "doubled": books.doubled,
        "foreign": len(foreign),
        "wrong": len(wrong),
        "ledger_balances": ledger.balanced and ledger.received == len(written),
        "same_dataset": same,
        "dataset": version,
        "build_s": round(built_s, 1),
        "commits_checked": books.checked,
        "ledger_checked": books.balances + 1,
        "files": len(table),
    }


def main() -> int:
    """Runs the soak and prints its table; 1 when anything was lost, doubled or different."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="end after that long, whatever was reached"
    )
    parser.add_argument("--consumers", type=int, default=3)
    parser.add_argument("--per-second", type=float, default=75.0, help="records written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result there as well")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="palate-soak-"))
    started = time.monotonic()
    try:
        with running(folder) as broker:
            topic = broker.topic(PARTITIONS)
            producer = Producer(broker, topic, options.per_second, options.seed)
            producer.start()
            soak = Soak(broker, topic, folder, options.consumers, options.seed)
            try:
                soak.run(options.kills, started + 60 * options.minutes)
            finally:
                soak.stop()
                producer.stop()
            killed_s = time.monotonic() - started
            result = _finish(soak, producer.written)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result |= {"kills": soak.kills.total(), "left": soak.left, "killing_s": round(killed_s, 1),
               "seconds": round(time.monotonic() - started, 1), "where": dict(soak.kills.most_common())}  # fmt: skip
    result["ok"] = (
        not any(result[name] for name in ("lost", "doubled", "foreign", "wrong"))
        and result["ledger_balances"]
        and result["same_dataset"]
    )
    for where, count in result["where"].items():
        print(f"  {count:5} kills {where}")
    for name, value in result.items():
        if name != "where":
            print(f"{name:>18}  {value}")
    counts = {name: result[name] for name in ("lost", "doubled", "foreign", "wrong")}
    return finish(
        [
            Check(
                "kills with -9", f">= {options.kills}", str(result["kills"]), result["kills"] >= options.kills
            ),
            Check("rows lost, doubled, foreign, wrong", "0", str(counts), not any(counts.values())),
            Check("the ledger balances", "yes", str(result["ledger_balances"]), result["ledger_balances"]),
            Check("same dataset as undisturbed", "yes", str(result["same_dataset"]), result["same_dataset"]),
        ],
        options.json,
        result,
    )


if __name__ == "__main__":
    raise SystemExit(main())
