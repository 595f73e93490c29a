from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.events import Feedback, Interaction
from feedback.validation import Limits, parse
from palate.client import Client, EventError
from palate.client_sinks import SinkError, sink_for
from palate.client_spill import Spill


class Place:
    """A directory to deliver to, which is away as long as a file stands in its way."""

    def __init__(self, folder: Path):
        self.spill, self.blocker = folder / "spill", folder / "receiver"
        self.events = self.blocker / "events"

    def go_away(self) -> None:
        self.blocker.write_text("not a directory")

    def come_back(self) -> None:
        self.blocker.unlink()

    def client(self, **options: Any) -> Client:
        return Client(self.events, **({"spill_dir": self.spill, "strict": True} | options))

    def lines(self) -> list[bytes]:
        return [
            line for path in sorted(self.events.glob("*.jsonl")) for line in path.read_bytes().splitlines()
        ]

    def ids(self) -> list[str]:
        return [json.loads(line)["feedback_id"] for line in self.lines()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def thumbs(client: Client, names: range) -> list[str]:
    return [client.feedback("thumb", 1, interaction_id="i", feedback_id=f"f{n}") for n in names]


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_it_emits_is_valid(place: Place):
    with place.client() as client:
        reply = client.interaction(
            "Why?", "Because.", user_id="u", model="m-1", sampling={"temperature": 0.5}
        )
        client.interaction(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
            {"role": "assistant", "content": "", "tool_calls": [{"name": "look"}]},
            interaction_id="i-2", session_id="s", event_time=datetime(2026, 3, 1, tzinfo=UTC), uses=["train"],
            tokens=3, logprob=-1.5, propensity=0.5, arm="a", latency_ms=12.5, metadata={"k": [1]}, parent_id=reply,
        )  # fmt: skip
        client.feedback("thumb", True, interaction_id=reply)
        client.feedback("edit", "Better.", interaction_id=reply, user_id="u")
        client.feedback("rating", {"value": 4, "lo": 1, "hi": 5}, interaction_id=reply, actor="rater")
        client.feedback("vote", {"among": [reply, "i-2"], "winner": None}, interaction_id=reply)
        client.feedback("retry", interaction_id=reply, event_time="2026-03-01T12:00:00Z")
        client.feedback("outcome", {"metric": "solved", "value": 1.0}, session_id="s")
        assert client.flush(10)
        assert client.stats()["delivered"] == 8
    now = datetime.now(UTC)
    events = [parse(line, now=now, limits=Limits()) for line in place.lines()]
    assert [type(event) for event in events] == [Interaction] * 2 + [Feedback] * 6
    assert events[0].interaction_id == reply and events[0].model.name == "m-1"
    assert abs((events[0].event_time - now).total_seconds()) < 60


WRONG: dict[str, Callable[[Client], str]] = {
    "kind": lambda c: c.feedback("like", 1, interaction_id="i"),
    "unhashable kind": lambda c: c.feedback(["thumb"], 1, interaction_id="i"),
    "thumb": lambda c: c.feedback("thumb", 2, interaction_id="i"),
    "thumb text": lambda c: c.feedback("thumb", "up", interaction_id="i"),
    "text": lambda c: c.feedback("edit", 3, interaction_id="i"),
    "no value": lambda c: c.feedback("copy", 1, interaction_id="i"),
    "object": lambda c: c.feedback("rating", 4, interaction_id="i"),
    "no target": lambda c: c.feedback("thumb", 1),
    "id": lambda c: c.feedback("thumb", 1, interaction_id=7),
    "empty id": lambda c: c.interaction("p", "c", interaction_id=""),
    "long id": lambda c: c.interaction("p", "c", user_id="u" * 257),
    "time": lambda c: c.feedback("thumb", 1, interaction_id="i", event_time=datetime(2026, 3, 1)),
    "clock": lambda c: c.feedback("thumb", 1, interaction_id="i", event_time=1700000000),
    "actor": lambda c: c.feedback("thumb", 1, interaction_id="i", actor="boss"),
    "prompt": lambda c: c.interaction([], "c"),
    "prompt type": lambda c: c.interaction(None, "c"),
    "message": lambda c: c.interaction([{"role": "user"}], "c"),
    "roles": lambda c: c.interaction([{"role": "assistant", "content": "p"}], "c"),
    "not JSON": lambda c: c.interaction("p", "c", metadata={"k": object()}),
    "surrogate": lambda c: c.interaction("p", "\ud800"),
    "large": lambda c: c.interaction("p", "c" * 1_000_001),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_raises_only_where_that_is_asked_for(
    name: str, place: Place, caplog: pytest.LogCaptureFixture
):
    with place.client() as client, pytest.raises((EventError, TypeError)):
        WRONG[name](client)
    with place.client(strict=False) as client, caplog.at_level(logging.WARNING, "palate.client"):
        for _ in range(3):
            assert WRONG[name](client) is not None
        assert client.stats()["invalid"] == 3 and client.stats()["accepted"] == 0
    assert len([record for record in caplog.records if record.name == "palate.client"]) == 1
    assert not place.events.exists()


def test_an_address_that_is_neither_kafka_nor_a_directory_is_refused(tmp_path: Path):
    for url in ("http://broker/topic", "kafka://broker/one,two"):
        with pytest.raises(SinkError):
            sink_for(url)
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="name its directory"):
        Client(tmp_path / "file")


def test_events_wait_on_disk_while_the_receiver_is_away_and_arrive_in_order(place: Place):
    place.go_away()
    with place.client() as client:
        names = thumbs(client, range(300))
        until(lambda: client.stats()["spilled"] == 300)
        stats = client.stats()
        assert not stats["receiver_up"] and stats["waiting"] == 300 and stats["on_disk_bytes"] > 0
        assert not client.flush(0.05)
        place.come_back()
        names += thumbs(client, range(300, 400))
        assert client.flush(20)
        assert client.stats()["receiver_up"] and client.stats()["on_disk_bytes"] == 0
    assert place.ids() == names
    assert list(place.spill.iterdir()) == []


def test_what_is_left_at_the_end_is_delivered_by_the_next_client(place: Place):
    place.go_away()
    with place.client() as client:
        names = thumbs(client, range(50))
    assert place.spill.stat().st_mode & 0o077 == 0
    place.come_back()
    with place.client() as client:  # emits nothing itself
        until(lambda: client.stats()["adopted"] == 50)
    assert place.ids() == names
    assert list(place.spill.iterdir()) == []


KILLED = """
    import os, signal, sys
    from palate.client import Client
    client = Client(sys.argv[1], spill_dir=sys.argv[2], strict=True, durable=sys.argv[3] == "True")
    for n in range(200):
        client.feedback("thumb", 1, interaction_id="i", feedback_id=f"f{n}")
    while sys.argv[3] == "False" and client.stats()["spilled"] < 200:
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("durable", [True, False])
def test_a_killed_process_loses_nothing_that_is_on_disk(durable: bool, place: Place):
    place.go_away()
    assert run(KILLED, place.events, place.spill, durable).returncode == -9
    place.come_back()
    with place.client() as client:
        until(lambda: client.stats()["adopted"] == 200)
    assert place.ids() == [f"f{n}" for n in range(200)]


def test_the_end_of_the_process_delivers_what_is_in_memory(place: Place):
    done = run(
        """
        import sys
        from palate.client import Client
        client = Client(sys.argv[1], spill_dir=sys.argv[2])
        client.feedback("thumb", 1, interaction_id="i", feedback_id="f0")
        heavy = [name for name in ("pydantic", "kafka", "pyarrow", "numpy") if name in sys.modules]
        assert not heavy, heavy
        """,
        place.events,
        place.spill,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert place.ids() == ["f0"]


def test_a_line_cut_off_by_a_crash_is_left_out_and_counted(place: Place):
    queue = place.spill / "00000000000000000001-1-dead"
    queue.mkdir(parents=True)
    (queue / "000001.jsonl").write_bytes(b'{"feedback_id":"f0"}\n{"feedback_id":"f1"}\n{"feedb')
    with place.client() as client:
        until(lambda: client.stats()["adopted"] == 2)
        assert client.stats()["torn"] == 1
    assert place.ids() == ["f0", "f1"]


def test_a_queue_has_one_owner_at_a_time(place: Place):
    place.go_away()
    first = place.client()
    thumbs(first, range(20))
    until(lambda: first.stats()["spilled"] == 20)
    other = Spill(place.spill, 1 << 20)
    assert other.adopt() == 0
    first.close()
    assert other.adopt() == 1
    assert Spill(place.spill, 1 << 20).adopt() == 0
    other.close()


def test_beyond_memory_and_disk_events_are_refused_and_counted_not_raised(
    place: Place, caplog: pytest.LogCaptureFixture
):
    place.go_away()
    with place.client(max_buffer_bytes=2_000, max_spill_bytes=10_000) as client:
        thumbs(client, range(200))
        stats = client.stats()
        assert stats["accepted"] + stats["refused"] == 200
        assert stats["refused"] > 100 and stats["on_disk_bytes"] <= 10_000
        place.come_back()
        assert client.flush(20)
    assert place.ids() == [f"f{n}" for n in range(stats["accepted"])]
    assert "Refused so far" in caplog.text


def test_a_full_buffer_goes_to_disk_in_order(place: Place):
    place.go_away()
    with place.client(max_buffer_bytes=1_000) as client:
        names = thumbs(client, range(500))
        place.come_back()
        assert client.flush(20)
        assert client.stats()["refused"] == 0
    assert place.ids() == names


def test_what_comes_back_goes_before_what_was_kept_meanwhile(tmp_path: Path):
    spill = Spill(tmp_path, 1_000_000)
    assert spill.append([b"{2}"]) and spill.prepend([b"{1}"]) and spill.append([b"{3}"])
    spill.close()  # another process reads them in the same order
    later, seen = Spill(tmp_path, 1_000_000), []
    assert later.adopt() == 1
    while (chunk := later.head(1_000)) is not None:
        seen += chunk.lines
        later.done(chunk)
    assert seen == [b"{1}", b"{2}", b"{3}"]
    assert later.prepend([b"{4}"]) and not later.empty  # with nothing there, the same as append


def test_threads_share_a_client(place: Place):
    with place.client(max_buffer_bytes=100_000) as client:
        work = [
            threading.Thread(target=thumbs, args=(client, range(n, n + 500))) for n in range(0, 4000, 500)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        assert client.flush(20)
        assert client.stats()["refused"] == 0
    assert Counter(place.ids()) == Counter(f"f{n}" for n in range(4000))


def test_a_forked_child_delivers_its_own_events_and_not_its_parents(place: Place):
    place.go_away()
    with place.client() as client:
        thumbs(client, range(30))
        until(lambda: client.stats()["spilled"] == 30)
        thumbs(client, range(30, 40))  # in memory when the process is cloned
        pid = os.fork()
        if pid == 0:
            thumbs(client, range(100, 110))
            client.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        place.come_back()
        assert client.flush(20)
    with place.client() as client:
        until(lambda: client.stats()["adopted"] == 10)
    assert Counter(place.ids()) == Counter(f"f{n}" for n in [*range(40), *range(100, 110)])


@given(st.lists(st.sampled_from(["append", "take", "restart"]), max_size=40), st.integers(1, 60))
@settings(derandomize=True, deadline=None, max_examples=60, database=None)
def test_the_spill_is_a_queue_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], size: int
):
    folder = tmp_path_factory.mktemp("spill")
    spill, count, taken = Spill(folder, 1 << 20), 0, 0
    queues: list[
        list[bytes]
    ] = []  # one for each life of the process; `taken` lines of the first are delivered
    fresh = True
    for step in steps:
        if step == "append":
            lines = [b'{"n":%d}' % n for n in range(count, count + 3)]
            count += 3
            assert spill.append(lines)
            if fresh or not queues:
                queues.append([])
                fresh = False
            queues[-1] += lines
        elif step == "restart":
            spill.close()
            spill, fresh, taken = Spill(folder, 1 << 20), True, 0  # what is not removed is delivered again
            spill.adopt()
        elif (chunk := spill.head(size)) is not None:
            assert chunk.lines and chunk.lines == queues[0][taken : taken + len(chunk.lines)]
            spill.done(chunk)
            taken += len(chunk.lines)
            if taken == len(queues[0]):
                queues.pop(0)
                taken = 0
        assert spill.empty == (not queues)
        assert spill.size_bytes == sum(len(line) + 1 for queue in queues for line in queue) - sum(
            len(line) + 1 for line in (queues[0][:taken] if queues else [])
        )
    spill.close()
