"""From a broker to the tables: each record is one row, once, whoever reads, dies, or was first."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipelines import events_table
from pipelines.errors import BrokerError, InputError
from pipelines.follow import FollowConfig, Status, follow
from pipelines.ingest import IngestConfig, IngestSummary, ingest
from pipelines.kafka import connection, dead_letters
from pipelines.kafka.dead_letters import DeadLettersConfig
from pipelines.kafka.group import Membership
from pipelines.kafka.metrics import Metrics
from pipelines.kafka.settings import parse_url
from pipelines.workspace import Layout
from tests.broker import Broker, free_port
from tests.unit.pipelines.made import history, lines

QUICK = FollowConfig(round_records=40, idle_min_s=0.02, idle_max_s=0.1, retry_min_s=0.05, retry_max_s=0.2)


EVENTS = history(200)


def values(end: int, start: int = 0) -> list[bytes | None]:
    return list(lines(EVENTS[start:end]).splitlines())


def rows(workspace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = events_table.open_table(Layout(workspace)).to_pyarrow_table().to_pylist()
    return found


def places(workspace: Path) -> list[tuple[int, int]]:
    """Partition and offset of every row."""
    return sorted((int(row["partition"].rsplit("/", 1)[1]), row["offset"]) for row in rows(workspace))


def take(url: str, workspace: Path, **more: Any) -> IngestSummary:
    return ingest(url, source="palate_jsonl", workspace=workspace, **more)


def test_a_topic_is_drained_and_not_read_twice(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic(3)
    broker.send(topic, values(90))
    url, workspace = broker.url(topic), tmp_path / "w"
    first = take(url, workspace, source_config={"group": topic})
    assert (first.received, first.interactions, first.feedback, first.gaps) == (90, 90, 0, [])
    again = take(url, workspace)
    assert (again.received, again.partitions, again.already_read) == (0, 3, 3)
    broker.send(topic, values(100, 90))
    assert take(url, workspace).received == 10
    found = rows(workspace)
    assert {row["source"] for row in found} == {"kafka"}
    assert {row["event_id"] for row in found} == {
        event.get("feedback_id") or event["interaction_id"] for event in EVENTS[:100]
    }
    ends = Counter(place for place, _ in places(workspace))
    assert places(workspace) == [(part, at) for part in sorted(ends) for at in range(ends[part])]
    assert sum(broker.group_offsets(topic).values()) == 90  # the mirror, written after the first commit


def test_records_that_are_no_events_are_dead_letters(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic()
    big = json.dumps({"x": "y" * 700_000}).encode()
    broker.send(topic, [None, b"", b"{broken", b"[]", big, *values(2)], key=b"k")
    summary = take(broker.url(topic), tmp_path / "w")
    assert summary.received == 7 and sum(summary.dead_letters.values()) == 5
    letters = {row["offset"]: row for row in rows(tmp_path / "w") if row["kind"] == "dead_letter"}
    assert [letters[at]["raw"] for at in range(5)] == [b"", b"", b"{broken", b"[]", big]


def test_what_expired_is_a_gap_and_nothing_else_is_lost(broker: Broker, tmp_path: Path) -> None:
    topic, workspace = broker.topic(2), tmp_path / "w"
    broker.send(topic, values(20), partition=0)
    broker.send(topic, values(10), partition=1)
    broker.delete_records(topic, {1: 4})
    first = take(broker.url(topic), workspace)
    assert (first.received, first.lost) == (26, 4) and "lost [0, 4) before the first" in first.gaps[0]
    broker.send(topic, values(30), partition=0)
    broker.delete_records(topic, {0: 25})
    second = take(broker.url(topic), workspace)
    assert (second.received, second.lost) == (25, 5) and "lost [20, 25)" in second.gaps[0]
    assert take(broker.url(topic), workspace).gaps == []
    found = [row for row in rows(workspace) if row["kind"] == "gap"]
    assert sorted((row["partition"][-2:], row["offset"], row["detail"]) for row in found) == [
        ("/0", 20, "lost [20, 25)"),
        ("/1", 0, "lost [0, 4) before the first read"),
    ]
    read = {(int(row["partition"][-1]), row["offset"]) for row in rows(workspace) if row["kind"] != "gap"}
    assert read == {(0, at) for at in (*range(20), *range(25, 50))} | {(1, at) for at in range(4, 10)}


def test_a_topic_that_was_made_anew_is_refused(broker: Broker, tmp_path: Path) -> None:
    topic, workspace = broker.topic(), tmp_path / "w"
    broker.send(topic, values(10))
    take(broker.url(topic), workspace)
    broker.delete_topic(topic)
    broker.topic(name=topic)
    with pytest.raises(InputError, match="made anew"):
        take(broker.url(topic), workspace)
    broker.send(topic, [b"x"] * 12)
    with pytest.raises(InputError, match="record at 9 is another one") as caught:
        take(broker.url(topic), workspace)
    assert "generation=1" in str(caught.value)
    assert take(broker.url(topic), workspace, source_config={"generation": 1}).received == 12
    assert len(rows(workspace)) == 22


def test_what_is_not_there_is_said(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no topic absent"):
        take(broker.url("absent"), tmp_path / "w")
    with pytest.raises(InputError, match="rgoup"):
        take(broker.url("absent"), tmp_path / "w", source_config={"rgoup": "x"})
    assert not (tmp_path / "w").exists()


def test_several_readers_at_once(broker: Broker, tmp_path: Path) -> None:
    """Two on all partitions, two that share them; producers repeat events; commits are small."""
    topic, workspace = broker.topic(3), tmp_path / "w"
    broker.send(topic, values(150))
    stop, errors = threading.Event(), []

    def read(share: bool) -> None:
        try:
            follow(
                broker.url(topic),
                workspace=workspace,
                source_config={"group": topic, "share": share},
                config=IngestConfig(batch_records=20, commit_records=20),
                rounds=QUICK,
                stop=stop,
            )
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read, args=(share,)) for share in (False, False, True, True)]
    for reader in readers:
        reader.start()
    broker.send(topic, values(150)[:60])
    wait_for(lambda: events_table.exists(Layout(workspace)) and len(rows(workspace)) >= 210)
    stop.set()
    for reader in readers:
        reader.join()
    assert errors == []
    found = places(workspace)
    ends = Counter(part for part, _ in found)
    assert found == [(part, at) for part in sorted(ends) for at in range(ends[part])] and len(found) == 210


def wait_for(happened: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def test_members_divide_partitions_and_take_over(broker: Broker) -> None:
    topic = broker.topic(4)
    everything = {(topic, part) for part in range(4)}
    owned: dict[str, set[tuple[str, int]]] = {"first": set(), "second": set()}
    ends = {name: threading.Event() for name in owned}

    def belong(name: str) -> None:
        member = Membership(parse_url(broker.url(topic)), f"g-{topic}")
        while not ends[name].wait(0.05):
            owned[name] = member.partitions()
        assert member.commit(dict.fromkeys(owned[name], 0))
        member.close()
        owned[name] = set()

    members = {name: threading.Thread(target=belong, args=(name,)) for name in owned}
    members["first"].start()
    wait_for(lambda: owned["first"] == everything)
    members["second"].start()
    wait_for(lambda: len(owned["first"]) == len(owned["second"]) == 2)
    assert owned["first"] | owned["second"] == everything
    ends["second"].set()
    wait_for(lambda: owned["first"] == everything)
    ends["first"].set()
    for member in members.values():
        member.join()
    assert broker.group_offsets(f"g-{topic}") == dict.fromkeys(everything, 0)


def test_a_stale_writer_reads_on_from_where_the_first_arrived(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, workspace = broker.topic(), tmp_path / "w"
    broker.send(topic, values(20))
    commit, answers = events_table.append, []

    def late(*arguments: Any) -> bool:
        if not answers:
            answers.append(True)  # before the nested one, which commits through here as well
            assert take(broker.url(topic), workspace).received == 20
            broker.send(topic, values(30, 20))
        answers.append(commit(*arguments))
        return bool(answers[-1])

    monkeypatch.setattr(events_table, "append", late)
    summary = follow(broker.url(topic), workspace=workspace, once=True)
    assert summary.received == 0 and answers[:3] == [True, True, False]
    monkeypatch.undo()
    assert take(broker.url(topic), workspace).received == 10
    assert places(workspace) == [(0, at) for at in range(30)]


def test_dead_letters_go_to_their_topic_at_least_once(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out, workspace = broker.topic(), broker.topic(), tmp_path / "w"
    config = IngestConfig(dead_letters=DeadLettersConfig(kafka=broker.url(out), max_bytes=20))
    broker.send(topic, [b"{broken", b"x" * 50, *values(4)])
    with monkeypatch.context() as patched:
        patched.setattr(events_table, "mark", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # as if killed after sending, before noting it
            take(broker.url(topic), workspace, config=config)
    assert take(broker.url(topic), workspace, config=config).sent_dead_letters == 2
    assert take(broker.url(topic), workspace, config=config).sent_dead_letters == 0
    broker.send(topic, [b"[]"])
    assert take(broker.url(topic), workspace, config=config).sent_dead_letters == 1
    sent = broker.read(out)
    assert Counter(message.value for message in sent) == {b"{broken": 2, b"x" * 20: 2, b"[]": 1}
    (letter,) = [message for message in sent if message.value == b"[]"]
    headers = dict(letter.headers)
    assert headers["reason"] == b"not_an_object" and headers["offset"] == b"6"
    assert letter.key == headers["partition"] + b"/6"
    cut = next(message for message in sent if message.value.startswith(b"x"))
    assert dict(cut.headers)["cut_from"] == b"50"
    layout = Layout(workspace)
    assert dead_letters.send_new(layout, DeadLettersConfig()) == 0
    with pytest.raises(InputError, match="for ever"):
        follow(broker.url(topic, out), workspace=workspace, config=config, once=True)


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_MS", 200)
    url = f"kafka://127.0.0.1:{free_port()}/t"
    with pytest.raises(BrokerError, match="does not answer"):
        follow(url, workspace=tmp_path / "w", once=True, rounds=QUICK)
    stop, seen = threading.Event(), []

    def look(status: Status) -> None:
        seen.append(status)
        if sum(one.state == "away" for one in seen) == 3:
            stop.set()

    follow(url, workspace=tmp_path / "w", rounds=QUICK, stop=stop, report=look)
    assert seen[-1].state == "stopped" and all(one.problem for one in seen)


def test_the_metrics_page_tells_how_it_goes(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic(2)
    broker.send(topic, [*values(38), b"{broken", b"[]"], partition=0)
    with Metrics(0) as metrics:
        assert page(metrics) == {}
        follow(broker.url(topic), workspace=tmp_path / "w", once=True, rounds=QUICK, report=metrics.update)
        found = page(metrics)
        with pytest.raises(InputError, match="--metrics-port"), Metrics(metrics.port):
            pass
    assert found['palate_ingest_events_total{kind="interaction"}'] == 38
    assert found['palate_ingest_events_total{kind="dead_letter"}'] == 2
    assert found['palate_ingest_dead_letters_total{reason="not_json"}'] == 1
    assert found[f'palate_ingest_lag{{partition="0",topic="{topic}"}}'] == 0
    assert found["palate_ingest_bad_share"] == 0.05 and found["palate_ingest_up"] == 1
    assert found["palate_ingest_events_per_second"] > 0
    assert 0 <= found["palate_ingest_last_commit_age_seconds"] < 60


def page(metrics: Metrics) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
