"""A Kafka broker for tests: the one named in PALATE_TEST_KAFKA, or a small one of its own.

Its own runs from a fresh folder on a free port. It writes its whole log again a moment after every change, so
what was acknowledged is safe on its disk only two seconds later; no test restarts it.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMED = "PALATE_TEST_KAFKA"


class Broker:
    """A broker and what tests do with it."""

    def __init__(self, address: str):
        self.address = address

    def topic(self, partitions: int = 1, name: str | None = None, **configs: Any) -> str:
        """Makes a topic of a new name and gives the name."""
        from kafka import KafkaAdminClient

        name = name or f"t-{uuid.uuid4().hex[:12]}"
        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            admin.create_topics(
                {
                    name: {
                        "num_partitions": partitions,
                        "replication_factor": 1,
                        "configs": {key.replace("_", "."): str(value) for key, value in configs.items()},
                    }
                }
            )
        finally:
            admin.close()
        return name

    def url(self, *topics: str) -> str:
        """The address that palate takes."""
        return f"kafka://{self.address}/{','.join(topics)}"

    def send(
        self,
        topic: str,
        values: Iterable[bytes | None],
        partition: int | None = None,
        key: bytes | None = None,
    ) -> int:
        """Writes records, acknowledged; to one partition, or spread evenly over all."""
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.address, linger_ms=5)
        try:
            futures = [producer.send(topic, value=value, key=key, partition=partition) for value in values]
            producer.flush(30)
            return len([future.get(30) for future in futures])
        finally:
            producer.close()

    def delete_records(self, topic: str, before: dict[int, int]) -> None:
        """Makes everything before these offsets unreadable, as retention does."""
        from kafka import KafkaAdminClient, TopicPartition

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            admin.delete_records({TopicPartition(topic, part): offset for part, offset in before.items()})
        finally:
            admin.close()

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic."""
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            admin.delete_topics([topic])
        finally:
            admin.close()

    def read(self, topic: str) -> list[Any]:
        """Every record of a topic."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self.address, auto_offset_reset="earliest")
        try:
            parts = [TopicPartition(topic, n) for n in consumer.partitions_for_topic(topic)]
            consumer.assign(parts)
            ends = consumer.end_offsets(parts)
            found: list[Any] = []
            for part in parts:
                consumer.seek(part, 0)
            until = time.monotonic() + 20
            while len(found) < sum(ends.values()) and time.monotonic() < until:
                found += [record for records in consumer.poll(200).values() for record in records]
            return found
        finally:
            consumer.close()

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """What lag tools see."""
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            return {
                (p.topic, p.partition): at.offset for p, at in admin.list_group_offsets(group)[group].items()
            }
        finally:
            admin.close()


def free_port() -> int:
    """A port nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path) -> Iterator[Broker]:
    """The named broker, or one of our own with its data in `folder`, stopped at the end."""
    named = os.environ.get(NAMED)
    if named:
        yield Broker(named)
        return
    # The program itself: the command of the same name only starts it, and leaves it running when killed.
    package = importlib.util.find_spec("noida_db")
    assert package is not None and package.origin is not None, "pip install noida-db"
    program = Path(package.origin).with_name("noida-db")
    port = free_port()
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), "start", "--only", "kafka", "--host", "127.0.0.1", "--kafka-port", str(port),
             "--data-dir", str(folder / "data")],
            stdout=log,
            stderr=log,
        )  # fmt: skip
        try:
            _wait(process, port, folder / "broker.log")
            yield Broker(f"127.0.0.1:{port}")
        finally:
            process.kill()  # nothing of it is needed again
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the test broker did not start: {log.read_text()}") from None
            time.sleep(0.02)
