"""Kafka topics as a source: one partition of a topic is one partition of the input, offsets are Kafka's.

A record's value is one event as wire JSON; a key only decides the partition, headers are not read. A record
without a value (a tombstone) is refused by validation like any other bytes that are no event.

Delivery: exactly once into the events table. Where to go on reading stands in that table, committed together
with the rows; the offsets of a consumer group are a copy for lag tools, written afterwards. Only records of
committed transactions are read, and offsets without a record (compacted away, aborted, transaction markers)
are passed over: they are no losses. Offsets that the broker had expired before they were read are losses, and
become a `gap` row (see `pipelines.gaps`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from feedback.sources import Cut, Partition, Record

from ..errors import BrokerError, InputError
from ..events_table import Position, checksum
from . import connection
from .settings import parse_url

POLL_RECORDS = 5_000
POLL_MS = 500
CUT_RECORDS = 50_000


class Config(BaseModel):
    """How topics are read. Addresses stand in the URL, credentials in the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    group: str = Field(default="palate", min_length=1)
    """Consumer group that shows lag tools how far we are; another name for another workspace."""
    share: bool = False
    """Divide the partitions among all that run with the same `group`."""
    generation: int = Field(default=0, ge=0)
    """Count up when the topics were deleted and made anew, so that their offsets count from 0 again."""
    fetch_bytes: int = Field(default=4 * 2**20, ge=1)
    """Most bytes of one partition in one answer of a broker."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds without a record, while there are some, after which a broker counts as away."""


def partitions(path: Path | str, config: Config) -> list[Partition]:
    """Every partition of the topics, up to what is readable now.

    Raises:
        InputError: the address is no address, a topic does not exist, or access is refused.
        BrokerError: no broker answered.
    """
    url = parse_url(str(path))
    cluster, found = connection.describe(url.address, url.topics)
    mark = f"~{config.generation}" if config.generation else ""
    named = [(f"kafka/{cluster}/{part.topic}{mark}/{part.number}", part) for part in found]
    return [
        Partition(name, Path(name), part.end, earliest=part.earliest, address=url.address)
        for name, part in named
    ]


def topic_and_number(partition: Partition) -> tuple[str, int]:
    """The topic's name and the partition's number in it."""
    _, topic, number = partition.id.rsplit("/", 2)
    return topic.partition("~")[0], int(number)


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """The records with offsets in `[lo, hi)`.

    Raises:
        BrokerError: `lo` has expired meanwhile, or the brokers stopped answering.
    """
    from kafka import TopicPartition

    part = TopicPartition(*topic_and_number(partition))
    if lo >= hi:
        return
    with connection.reader(partition.address, config.fetch_bytes) as consumer:
        consumer.assign([part])
        consumer.seek(part, lo)
        at, moved = lo, time.monotonic()
        while at < hi:
            for record in consumer.poll(POLL_MS, POLL_RECORDS).get(part, ()):
                offset = record.offset
                if offset >= hi:
                    return
                yield Record(offset, offset + 1, record.value or b"")
            before, at = at, consumer.position(part)
            if at > before:
                moved = time.monotonic()
            elif time.monotonic() - moved > config.timeout_s:
                raise BrokerError(
                    f"No record of {partition.id} came for {config.timeout_s:g} seconds.",
                    got=f"offset {at}, expected up to {hi}",
                    next_step="check the brokers, then run the same command again",
                )


def cuts(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Cut]:  # noqa: ARG001
    """Offsets some ten thousand apart: whoever reads up to one has fetched beyond it in vain."""
    parts = -(-(hi - lo) // CUT_RECORDS)
    edges = [lo + (hi - lo) * part // parts for part in range(parts + 1)]
    for before, offset in pairwise(edges[:-1]):
        yield Cut(offset, offset - before, 0)


def refuse_changed(partition: Partition, at: Position, config: Config) -> None:
    """Refuses a topic that is no longer the one that was read before.

    Its last record read is looked at again, where it still exists: a topic that was deleted and made anew
    holds another one there, and reading on from the old offset would skip its first records.

    Raises:
        InputError: the topic ends before what was read of it, or that record is another one.
    """
    topic, _ = topic_and_number(partition)
    more = f"--set source.options.generation={config.generation + 1}"
    # Looked at again, because another process may have read on since `partition.end` was asked for.
    end = max(partition.end, _end_now(partition)) if at.offset > partition.end else partition.end
    if at.offset > end:
        raise InputError(
            f"The topic {topic} was deleted and made anew, or its brokers lost records.",
            got=f"{partition.id} ends at {end}",
            allowed=f"at least {at.offset}: so far it was read",
            next_step=f"to read it from its start as a new one: the same palate ingest with {more}",
        )
    if not at.last >= 0 or at.last < partition.earliest:
        return
    record = next(read(partition, at.last, at.last + 1, config), None)
    if record is not None and checksum(record.raw) != at.checksum:
        raise InputError(
            f"The topic {topic} was deleted and made anew: its record at {at.last} is another one.",
            got=partition.id,
            next_step=f"to read it from its start as a new one: the same palate ingest with {more}",
        )


def _end_now(partition: Partition) -> int:
    topic, number = topic_and_number(partition)
    _, found = connection.describe(partition.address, (topic,))
    return next((part.end for part in found if part.number == number), 0)


def after_commit(found: Sequence[Partition], positions: Mapping[str, int], config: Config) -> None:
    """Shows lag tools how far the table is. Members of a group that is shared do that themselves."""
    if not config.share:
        offsets = {topic_and_number(part): positions[part.id] for part in found if positions[part.id]}
        connection.mirror(found[0].address, config.group, offsets)
