"""The client against a broker that goes away: nothing emitted is lost, whatever happens to broker and product."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palate.client import Client
from tests.broker import Broker
from tests.proxy import Proxy


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    if len(broker.address.rpartition(":")[0]) != len("127.0.0.1"):
        pytest.skip("the proxy needs a broker at 127.0.0.1 or localhost")
    proxy = Proxy(broker.address)
    yield proxy
    proxy.cut()


def ids(broker: Broker, topic: str) -> set[str]:
    return {json.loads(record.value)["feedback_id"] for record in broker.read(topic)}


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_nothing_is_lost_over_an_outage_under_load(broker: Broker, proxy: Proxy, tmp_path: Path):
    topic = broker.topic(2)
    emitted: list[str] = []
    with Client(f"kafka://{proxy.address}/{topic}", spill_dir=tmp_path, strict=True) as client:

        def load(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                emitted.append(client.feedback("thumb", 1, interaction_id="i"))
                time.sleep(0.001)

        load(0.5)
        assert client.flush(20)
        assert client.stats()["spilled"] == 0
        proxy.cut()
        load(2.5)
        assert not client.stats()["receiver_up"]
        proxy.mend()
        load(0.5)
        assert client.flush(30)
        stats = client.stats()
    assert ids(broker, topic) == set(emitted)
    assert stats["refused"] == stats["invalid"] == stats["waiting"] == 0
    assert stats["spilled"] > 0
    assert list(tmp_path.iterdir()) == []


PRODUCT = """
import sys
from palate.client import Client
client = Client(sys.argv[1], spill_dir=sys.argv[2], durable=True)
while True:
    print(client.feedback("thumb", 1, interaction_id="i"), flush=True)
"""


def test_a_product_killed_under_load_loses_nothing_that_it_emitted(
    broker: Broker, proxy: Proxy, tmp_path: Path
):
    topic = broker.topic()
    url, emitted = f"kafka://{proxy.address}/{topic}", list[str]()
    for away in (False, True):
        if away:
            proxy.cut()
        command = [sys.executable, "-c", PRODUCT, url, str(tmp_path)]
        product = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert product.stdout is not None
        emitted += [product.stdout.readline().strip() for _ in range(1500)]
        product.send_signal(signal.SIGKILL)
        # What was printed was emitted; a last line may be cut off.
        emitted += [line.strip() for line in product.stdout if line.endswith("\n")]
        product.wait()
    proxy.mend()
    with Client(url, spill_dir=tmp_path) as client:
        until(lambda: not any(tmp_path.iterdir()))
        assert client.stats()["adopted"] >= 1500
    assert set(emitted) <= ids(broker, topic)


def test_a_broker_that_was_never_there_costs_no_time(tmp_path: Path):
    started = time.monotonic()
    with Client("kafka://127.0.0.1:1/topic", spill_dir=tmp_path) as client:
        client.feedback("thumb", 1, interaction_id="i")
        assert time.monotonic() - started < 0.5
        assert not client.flush(0.1)
    assert len(list(tmp_path.glob("*/*.jsonl"))) == 1


def test_what_the_broker_will_never_take_is_set_aside_and_holds_up_nothing(broker: Broker, tmp_path: Path):
    topic = broker.topic(max_message_bytes=2_000)
    with Client(broker.url(topic), spill_dir=tmp_path) as client:
        small = {client.feedback("thumb", 1, interaction_id="i") for _ in range(20)}
        large = client.feedback("comment", "x" * 50_000, interaction_id="i")
        small |= {client.feedback("thumb", 1, interaction_id="i") for _ in range(20)}
        assert client.flush(20)
    if large in ids(broker, topic):
        pytest.skip("this broker does not keep max.message.bytes")
    assert json.loads((tmp_path / "refused.jsonl").read_bytes())["feedback_id"] == large
    assert ids(broker, topic) == small
