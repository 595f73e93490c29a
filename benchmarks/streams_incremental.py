"""What a build costs when one event in a hundred is new, against building from scratch.

Events of about 1.2 KB are written straight into an events table, in the shape that ingest leaves them (a sample
is put through validation to make sure). Then, each in a process of its own:

    full          the build of all N events
    incremental   the build after another N/100 came: new prompts, replies to old prompts, late feedback on old
                  replies, copies of old events, retractions
    scratch       the build of all N + N/100 events in another workspace

and the last two must give the same dataset version. The short build is measured three times, on copies of the
workspace, and the best counts, as does the quicker of the two long ones: other work on the machine only ever slows.
Nothing is kept between runs.

    python benchmarks/streams_incremental.py --events 1000000
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from promises import Check, finish

from feedback.events import Feedback, Interaction, canonical
from feedback.preferences import PreferConfig
from feedback.tables import EVENTS
from feedback.validation import Limits, parse
from pipelines import dataset, events_table
from pipelines.build import build
from pipelines.events_table import EventFile, Position
from pipelines.ledger import balance
from pipelines.workspace import Layout, staging_folder

START = datetime(2026, 1, 1, tzinfo=UTC)
PER_COMMIT = 100_000
COPIES = 2  # of the workspace, in which the short build is measured again
PROMISED_SHARE = 0.05
PROMISED_PEAK_GB = 1.5
Body = dict[str, Any]


class Product:
    """A made-up product: who asked what and said what about it, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        words = [
            "".join(self.draw.choices("aeiourstlnmdkpbg", k=self.draw.randint(3, 9))) for _ in range(3000)
        ]
        self.sentences = [" ".join(self.draw.choices(words, k=9)) + "." for _ in range(20_000)]
        self.replies: list[tuple[str, str, int]] = []
        self.signals: list[tuple[str, str, str]] = []
        self.prompts: list[str] = []

    def _text(self, sentences: int) -> str:
        return " ".join(self.draw.choices(self.sentences, k=sentences))

    def _time(self) -> str:
        moment = START + timedelta(seconds=self.draw.randrange(5_000_000))
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def reply(self, prompt: int | None = None) -> Body:
        """One more reply, to a new prompt or to a given one."""
        if prompt is None:
            prompt = len(self.prompts)
            self.prompts.append(self._text(4))
        name, user = f"reply-{len(self.replies)}", f"user-{prompt % 5000}"
        self.replies.append((name, user, prompt))
        return {
            "agent": "assistant",
            "completion": {"content": self._text(8), "role": "assistant"},
            "event_time": self._time(),
            "interaction_id": name,
            "metadata": {"page": "help", "release": "41"},
            "model": {"name": "assistant-small", "version": "7"},
            "prompt": [
                {"content": "You answer briefly and say when you do not know.", "role": "system"},
                {"content": self.prompts[prompt], "role": "user"},
            ],
            "schema_version": 1,
            "session_id": f"session-{prompt}",
            "type": "interaction",
            "user_id": user,
            "uses": ["evaluate", "train"],
        }

    def signal(self) -> Body:
        """A signal about any reply: thumbs mostly, some votes, edits and retries."""
        place = self.draw.randrange(len(self.replies))
        reply, user, prompt = self.replies[place]
        kind = self.draw.choices(["thumb", "vote", "edit", "retry", "comment"], [70, 15, 5, 5, 5])[0]
        other = self.replies[place - 1]
        if kind == "vote" and (place == 0 or other[2] != prompt):
            kind = "thumb"
        value: Any = {
            "thumb": self.draw.choice([1, -1]),
            "vote": {"among": [reply, other[0]], "winner": reply},
            "edit": {"text": self._text(6)},
            "retry": None,
            "comment": {"text": self._text(2)},
        }[kind]
        return self._signal(reply, user, kind, value)

    def retraction(self) -> Body:
        """Takes an old signal back."""
        signal, reply, user = self.draw.choice(self.signals)
        return {**self._signal(reply, user, "thumb", 1), "retracts": signal}

    def _signal(self, reply: str, user: str, kind: str, value: Any) -> Body:
        name = f"signal-{len(self.signals)}"
        self.signals.append((name, reply, user))
        body = {
            "actor": "user",
            "event_time": self._time(),
            "feedback_id": name,
            "interaction_id": reply,
            "kind": kind,
            "metadata": {},
            "schema_version": 1,
            "type": "feedback",
            "user_id": user,
        }
        return body if value is None else {**body, "value": value}

    def history(self, count: int) -> Iterator[Body]:
        """Half the prompts have two replies; a third of the events are signals."""
        for _ in range(count):
            chance = self.draw.random()
            if self.replies and chance < 0.35:
                yield self.signal()
            elif self.replies and chance < 0.57:
                yield self.reply(self.replies[-1][2])
            else:
                yield self.reply()

    def news(self, count: int, old: list[Body]) -> Iterator[Body]:
        """What comes later: new prompts, old prompts again, late feedback, copies, retractions."""
        for _ in range(count):
            match self.draw.choices(["new", "again", "signal", "copy", "retraction"], [40, 10, 35, 10, 5])[0]:
                case "new":
                    yield self.reply()
                case "again":
                    yield self.reply(self.draw.randrange(len(self.prompts)))
                case "signal":
                    yield self.signal()
                case "copy":
                    yield self.draw.choice(old)
                case _:
                    yield self.retraction()


_COPIED = ("interaction_id", "session_id", "user_id", "agent")


def rows(bodies: list[Body], first: int, ingest_time: datetime) -> pa.Table:
    """Events as rows of the events table."""
    texts = [orjson.dumps(body, option=orjson.OPT_SORT_KEYS) for body in bodies]
    for text in texts[:20]:
        event = parse(text, now=ingest_time, limits=Limits())
        assert isinstance(event, Interaction | Feedback) and canonical(event) == text, event
    table = pa.table(
        {
            "kind": [body["type"] for body in bodies],
            "event_id": [body.get("feedback_id") or body["interaction_id"] for body in bodies],
            "digest": [hashlib.sha256(text).hexdigest() for text in texts],
            **{
                name: [body.get(name) for body in bodies]
                for name in ("interaction_id", "session_id", "user_id", "agent")
            },
            "event_time": pa.array(
                [datetime.fromisoformat(body["event_time"]) for body in bodies],
                EVENTS.field("event_time").type,
            ),
            "ingest_time": pa.array([ingest_time] * len(bodies), EVENTS.field("ingest_time").type),
            "body": [text.decode() for text in texts],
            **{name: pa.nulls(len(bodies), EVENTS.field(name).type) for name in ("reason", "detail", "raw")},
            "source": ["made"] * len(bodies),
            "partition": ["made:0"] * len(bodies),
            "offset": list(range(first, first + len(bodies))),
            "schema_version": [1] * len(bodies),
        }
    )
    return table.cast(EVENTS)


def commit(workspace: Path, table: pa.Table, end: int) -> None:
    """Adds rows to the events table, as an ingest does."""
    import pyarrow.compute as pc

    layout = Layout(workspace)
    with staging_folder(layout, "made") as staging:
        staged = []
        for kind in ("interaction", "feedback"):
            part = table.filter(pc.equal(table["kind"], kind)).drop_columns(["kind"])
            path = staging / f"{kind}.parquet"
            pq.write_table(part, path, compression="zstd")
            staged.append(EventFile(path, kind, part.num_rows))
        at = {"made:0": Position(end, end - 1, 0)}
        assert events_table.append(layout, events_table.open_table(layout), staged, at)


def fill(workspaces: list[Path], product: Product, count: int) -> list[Body]:
    """Commits N events to both workspaces; gives a sample of them, to be copied later."""
    sample: list[Body] = []
    history = product.history(count)
    for first in range(0, count, PER_COMMIT):
        bodies = [body for _, body in zip(range(min(PER_COMMIT, count - first)), history, strict=False)]
        sample += product.draw.sample(bodies, len(bodies) // 50)
        table = rows(bodies, first, START + timedelta(days=60))
        for workspace in workspaces:
            commit(workspace, table, first + len(bodies))
    return sample


def _timed(workspace: Path, answer: Any) -> None:
    # What a service pays once: pyarrow imports pandas with the first array, and palate its rules with the first build.
    import pandas  # noqa: F401

    from pipelines import build_result, build_work  # noqa: F401

    PreferConfig().loaded()
    cpu, wall = time.process_time(), time.perf_counter()
    made = build(workspace=workspace)
    answer.send(
        {
            "version": made.version,
            "rows": made.manifest["rows"],
            "wall_s": round(time.perf_counter() - wall, 2),
            "cpu_s": round(time.process_time() - cpu, 2),
        }
    )


def timed_build(workspace: Path) -> dict[str, Any]:
    """Builds in a fresh process and measures it."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_timed, args=(workspace, there))
    process.start()
    tree, peak = psutil.Process(process.pid), 0
    while not here.poll(0.05):
        peak = max(peak, _resident(tree))
    result: dict[str, Any] = here.recv()
    process.join()
    return {**result, "peak_mib": peak // 2**20}


def _resident(root: psutil.Process) -> int:
    """Resident bytes of a process and those beside it."""
    total = 0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def main() -> int:
    """Measures and prints a table; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to work; a temporary folder by default"
    )
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="incremental-", dir=arguments.folder))
    try:
        steps, once = folder / "steps", folder / "once"
        product = Product(arguments.seed)
        sample = fill([steps, once], product, arguments.events)
        full = timed_build(steps)
        new = list(product.news(arguments.events // 100, sample))
        table = rows(new, arguments.events, START + timedelta(days=61))
        for workspace in (steps, once):
            commit(workspace, table, arguments.events + len(new))
        copies = [folder / f"copy-{number}" for number in range(COPIES)]
        for copy in copies:
            shutil.copytree(steps, copy)
        incremental = min((timed_build(path) for path in (steps, *copies)), key=lambda one: one["wall_s"])
        scratch = timed_build(once)
        same_rows = dataset.load(steps).rows().equals(dataset.load(once).rows())
        balanced = balance(steps).balanced and balance(once).balanced
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "events": arguments.events,
        "new": len(new),
        "full": full,
        "incremental": incremental,
        "scratch": scratch,
        "share": round(incremental["wall_s"] / min(full["wall_s"], scratch["wall_s"]), 4),
        "same_version": incremental["version"] == scratch["version"] != full["version"],
        "same_rows": same_rows,
        "balanced": balanced,
    }
    print(f"{'build':<12} {'wall s':>8} {'cpu s':>8} {'peak MiB':>9} {'rows':>9}  version")
    for name in ("full", "incremental", "scratch"):
        one = result[name]
        print(
            f"{name:<12} {one['wall_s']:>8} {one['cpu_s']:>8} {one['peak_mib']:>9} {one['rows']:>9}  {one['version']}"
        )
    print(
        f"incremental / full = {result['share']:.2%} for {len(new)} new on top of {arguments.events}; "
        f"same version: {result['same_version']}, same rows: {same_rows}, ledgers balance: {balanced}"
    )
    same = result["same_version"] and same_rows and balanced
    # Of the incremental build's peak, most are pages of the last build's files that are mapped and can be dropped.
    peak_gb = full["peak_mib"] * 2**20 / 1e9
    return finish(
        [
            Check(
                f"build after 1 % new on top of {arguments.events:,}, share of the full build",
                f"<= {PROMISED_SHARE:.0%}",
                f"{result['share']:.1%}",
                result["share"] <= PROMISED_SHARE,
            ),
            Check("the same dataset as from scratch", "yes", "yes" if same else "NO", same),
            Check(
                "peak memory of a build, GB",
                f"<= {PROMISED_PEAK_GB}",
                f"{peak_gb:.2f}",
                peak_gb <= PROMISED_PEAK_GB,
            ),
        ],
        arguments.json,
        result,
    )


if __name__ == "__main__":
    raise SystemExit(main())
