"""Connections of this process: one to ask a cluster about topics and offsets, some to read records with.

Connections are kept and used again, because making one costs more than a small read. A child process never
uses its parent's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import BrokerError, InputError, last_line
from .settings import client_settings

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer

CONNECT_MS = 5_000
REQUEST_MS = 10_000
_UNKNOWN_TOPIC = 3
"""Kafka's error code UNKNOWN_TOPIC_OR_PARTITION."""

_lock = threading.Lock()
_admins: dict[tuple[int, str], KafkaAdminClient] = {}
_readers: dict[tuple[int, str, int], list[KafkaConsumer]] = {}


@dataclass(frozen=True)
class Offsets:
    """What a partition of a topic holds: `[earliest, end)`."""

    topic: str
    number: int
    earliest: int
    """First offset that can still be read."""
    end: int
    """First offset that cannot be read yet: behind the last record, or the first of an open transaction."""


def describe(address: str, topics: tuple[str, ...]) -> tuple[str, list[Offsets]]:
    """Asks for the cluster's id and for the offsets of every partition of these topics.

    Args:
        address: `host:port[,host:port…]`.
        topics: their names.

    Returns:
        The cluster's id (the address where a broker gives none), and one entry for every partition.

    Raises:
        InputError: a topic does not exist, or reading it is not allowed.
        BrokerError: no broker answered.
    """
    from kafka import TopicPartition
    from kafka.protocol.consumer import IsolationLevel, OffsetSpec

    with admin(address) as client:
        # The public describe_cluster() fails on brokers before Kafka 3.7; this is what every metadata answer said.
        cluster = client._manager.cluster.cluster_id or address
        parts = [
            TopicPartition(topic["name"], part["partition_index"])
            for topic in client.describe_topics(list(topics))
            if _exists(topic)
            for part in topic["partitions"]
        ]
        # The end first: records that come in between are then merely left for the next time.
        ends, starts = (
            client.list_partition_offsets(dict.fromkeys(parts, spec), IsolationLevel.READ_COMMITTED)
            for spec in (OffsetSpec.LATEST, OffsetSpec.EARLIEST)
        )
    found = [Offsets(p.topic, p.partition, starts[p].offset, ends[p].offset) for p in sorted(parts)]
    return str(cluster).replace("/", "_"), found


def _exists(topic: Mapping[str, Any]) -> bool:
    from kafka.errors import for_code

    if topic["error_code"] == _UNKNOWN_TOPIC:
        raise InputError(
            f"There is no topic {topic['name']}.",
            next_step="create it, or correct the address; nothing was read",
        )
    if topic["error_code"]:
        raise for_code(topic["error_code"])(topic["name"])
    return True


def mirror(address: str, group: str, positions: Mapping[tuple[str, int], int]) -> bool:
    """Writes offsets that are already committed to the events table into a consumer group, for lag tools.

    Returns:
        Whether it worked. Nothing depends on it, so that a failure is no error.
    """
    from kafka import TopicPartition
    from kafka.errors import NoError
    from kafka.structs import OffsetAndMetadata

    offsets = {TopicPartition(*part): OffsetAndMetadata(at, "", -1) for part, at in positions.items()}
    try:
        with admin(address) as client:
            return all(result is NoError for result in client.alter_group_offsets(group, offsets).values())
    except (BrokerError, InputError):
        return False


@contextmanager
def admin(address: str) -> Iterator[KafkaAdminClient]:
    """The connection for questions. It is dropped when one fails, so that the next one starts anew."""
    from kafka import KafkaAdminClient

    key = (os.getpid(), address)
    with told(address):
        if key not in _admins:
            _admins[key] = KafkaAdminClient(
                bootstrap_servers=address.split(","),
                bootstrap_timeout_ms=CONNECT_MS,
                request_timeout_ms=REQUEST_MS,
                **client_settings(),
            )
        try:
            yield _admins[key]
        except BaseException:
            _close(_admins.pop(key, None))
            raise


@contextmanager
def reader(address: str, fetch_bytes: int) -> Iterator[KafkaConsumer]:
    """A consumer without a group, to assign and seek; several may be out at once."""
    key = (os.getpid(), address, fetch_bytes)
    with told(address):
        with _lock:
            waiting = _readers.setdefault(key, [])
            consumer = waiting.pop() if waiting else None
        consumer = consumer or _reader(address, fetch_bytes)
        try:
            yield consumer
        except GeneratorExit:  # whoever reads has enough
            _put_back(key, consumer)
            raise
        except BaseException:
            _close(consumer)
            raise
        _put_back(key, consumer)


def _reader(address: str, fetch_bytes: int) -> KafkaConsumer:
    from kafka import KafkaConsumer

    return KafkaConsumer(
        bootstrap_servers=address.split(","),
        bootstrap_timeout_ms=CONNECT_MS,
        request_timeout_ms=REQUEST_MS,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",  # anything else may skip what has expired without a word
        isolation_level="read_committed",
        allow_auto_create_topics=False,
        max_partition_fetch_bytes=fetch_bytes,
        metrics_enabled=False,
        **client_settings(),
    )


def _put_back(key: tuple[int, str, int], consumer: KafkaConsumer) -> None:
    consumer.unsubscribe()  # or it would go on fetching
    with _lock:
        _readers[key].append(consumer)


def forget() -> None:
    """Closes every connection of this process."""
    with _lock:
        for client in [*_admins.values(), *(c for waiting in _readers.values() for c in waiting)]:
            _close(client)
        _admins.clear()
        _readers.clear()


def _close(client: KafkaAdminClient | KafkaConsumer | None) -> None:
    if client is not None:
        try:
            client.close()
        except Exception:  # it is broken already
            return


@contextmanager
def told(address: str) -> Iterator[None]:
    """Turns the client's errors into ours.

    Raises:
        InputError: the cluster refuses us; trying again changes nothing.
        BrokerError: everything else that goes wrong between us and the brokers.
    """
    from kafka import errors

    try:
        yield
    except (errors.SaslAuthenticationFailedError, errors.AuthorizationError) as error:
        raise InputError(
            f"The Kafka cluster at {address} refuses us.",
            got=f"{type(error).__name__}: {last_line(error)}",
            next_step="check the variables PALATE_KAFKA_… and the access rights of that user",
        ) from error
    except (errors.KafkaError, OSError) as error:
        if isinstance(error, InputError | BrokerError):
            raise
        raise BrokerError(
            f"The Kafka cluster at {address} does not answer as it should.",
            got=f"{type(error).__name__}: {last_line(error)}",
            next_step="check the address and the brokers, then run the same command again",
        ) from error
