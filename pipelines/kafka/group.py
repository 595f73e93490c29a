"""Membership of a consumer group: it divides the partitions, nothing more.

Where to read on stands in the events table. While the group rebalances, two members may believe that a
partition is theirs and read the same records; Delta accepts the commit of one of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..errors import BrokerError, InputError
from .connection import CONNECT_MS, REQUEST_MS, told
from .settings import KafkaUrl, client_settings

JOIN_S = 10.0
SESSION_MS = 15_000
"""A member that died keeps its partitions this long. Members that end say good-bye and give them up at once."""
HEARTBEAT_MS = 1_000
"""So late a member hears that another came or went."""


class Membership:
    """One member of a group; it fetches no records."""

    def __init__(self, url: KafkaUrl, group: str):
        from kafka import KafkaConsumer

        self._address = url.address
        self._joined = False
        with told(url.address):
            self._consumer = KafkaConsumer(
                bootstrap_servers=list(url.brokers),
                bootstrap_timeout_ms=CONNECT_MS,
                request_timeout_ms=max(REQUEST_MS, SESSION_MS + 5_000),
                group_id=group,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
                enable_auto_commit=False,
                auto_offset_reset="none",
                allow_auto_create_topics=False,
                metrics_enabled=False,
                **client_settings(),
            )
            self._consumer.subscribe(list(url.topics), listener=_listener(self._consumer))

    def partitions(self) -> set[tuple[str, int]]:
        """Topic and number of what is ours now; must be asked for more often than every five minutes.

        Raises:
            BrokerError: the group's broker is away.
        """
        with told(self._address):
            until = time.monotonic() + (0 if self._joined else JOIN_S)
            while True:
                self._consumer.poll(50 if self._joined else 200)
                ours = {(part.topic, part.partition) for part in self._consumer.assignment()}
                if ours or time.monotonic() >= until:
                    self._joined = True
                    return ours

    def commit(self, positions: Mapping[tuple[str, int], int]) -> bool:
        """Shows lag tools how far the table is; whether it worked. Nothing depends on it."""
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        offsets = {TopicPartition(*part): OffsetAndMetadata(at, "", -1) for part, at in positions.items()}
        try:
            with told(self._address):
                self._consumer.commit(offsets, timeout_ms=2_000)
        except (BrokerError, InputError):  # also when we have just been put out of the group
            return False
        return True

    def close(self) -> None:
        """Leaves the group, so that its partitions go to the others at once."""
        try:
            self._consumer.close(autocommit=False, timeout_ms=CONNECT_MS)
        except Exception:  # the broker is away; it will notice
            return


def _listener(consumer: Any) -> Any:
    """What is assigned gets a position and is paused, so that nothing is fetched and no position looked up."""
    from kafka import ConsumerRebalanceListener

    class Pause(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            for part in assigned:
                consumer.seek(part, 0)
            consumer.pause(*assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:  # noqa: ARG002
            return None

    return Pause()
