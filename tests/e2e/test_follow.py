"""`palate ingest --follow` as a process: what a person and Prometheus see of it, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.ledger import balance
from tests.broker import Broker
from tests.e2e.conftest import PALATE, environment
from tests.unit.pipelines.made import feedback, interaction

PATIENCE_S = 60.0


def records(first: int, count: int) -> list[bytes]:
    """Interactions, a thumb for each, and one line that is no event."""
    events = [interaction(n) for n in range(first, first + count)]
    events += [feedback(n, n, value=1) for n in range(first, first + count)]
    return [*(json.dumps(event).encode() for event in events), b"no event"]


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.1)


@contextmanager
def following(cwd: Path, url: str, *options: str, output: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(PALATE), "ingest", "--source", url, "--follow", *options]
    with subprocess.Popen(
        command, cwd=cwd, env=environment(), stdout=output, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_plain_lines_metrics_and_a_graceful_end(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic(2)
    broker.send(topic, records(0, 20))
    log = tmp_path / "log"
    with (
        log.open("wb") as sink,
        following(tmp_path, broker.url(topic), "--metrics-port", "0", output=sink.fileno()) as process,
    ):
        until(lambda: b"/metrics" in log.read_bytes())
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", log.read_text())
        assert found is not None

        def page() -> str:
            with urllib.request.urlopen(found.group(), timeout=10) as answer:
                return str(answer.read().decode())

        until(lambda: 'palate_ingest_events_total{kind="interaction"} 20.0' in page())
        broker.send(topic, records(20, 10))
        until(lambda: 'palate_ingest_events_total{kind="interaction"} 30.0' in page())
        shown = page()
        assert 'palate_ingest_dead_letters_total{reason="not_json"} 2.0' in shown
        assert f'palate_ingest_lag{{partition="0",topic="{topic}"}} 0.0' in shown
        assert "palate_ingest_bad_share" in shown and "palate_ingest_events_per_second" in shown
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    said = log.read_text()
    assert "rate" in said and "lag 0" in said and "dead letters" in said
    ledger = balance(tmp_path / ".palate")
    assert ledger.balanced and ledger.received == 62


def test_a_terminal_shows_lag_rate_and_bad_share(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic()
    broker.send(topic, records(0, 5))
    ours, theirs = pty.openpty()
    seen = b""

    def shown(*words: bytes) -> bool:
        nonlocal seen
        while select.select([ours], [], [], 0.1)[0]:
            seen += os.read(ours, 65_536)
        return all(word in seen for word in words)

    with following(tmp_path, broker.url(topic), output=theirs) as process:
        until(lambda: shown(b"lag", b"rate", b"dead letters", b"not_json", b"last commit"))
        process.send_signal(signal.SIGINT)
        until(lambda: shown() and process.poll() is not None)
        assert process.returncode == 0
    os.close(ours)
    os.close(theirs)
