"""Dead letters to a topic of their own, for people and programs that watch one.

Delivery: at least once, after the events table was committed. How far they were sent is a transaction number
of that table, `dead_letters_out/<topic>` = the table's version; killed between sending and noting that, they
are sent again, with the same key. The table stays the complete record.

A message: key `<partition>/<offset>` of the dead letter, value its bytes as they came, headers `reason`,
`detail`, `event_id`, `partition`, `offset`, `ingest_time`. Bytes beyond `max_bytes` are cut, and the header
`cut_from` then says how many there were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .. import events_table
from ..errors import InputError
from ..workspace import Layout
from .connection import CONNECT_MS, REQUEST_MS, told
from .settings import KafkaUrl, client_settings, parse_url

MARK = "dead_letters_out/"
_COLUMNS = ["reason", "detail", "event_id", "partition", "offset", "ingest_time", "raw"]
_HEADERS = _COLUMNS[:-1]
_FLUSH_S = 30.0
_NOTED_EVERY = 100
"""Commits without a dead letter after which it is noted that there was none."""


class DeadLettersConfig(BaseModel):
    """Where dead letters go beside the events table."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kafka: str | None = None
    """`kafka://broker/topic` that gets every dead letter; none when absent."""
    max_bytes: int = Field(default=900_000, ge=0)
    """Longest value sent, in bytes; the topic's `max.message.bytes` must allow a little more."""

    @field_validator("kafka")
    @classmethod
    def _one_topic(cls, value: str | None) -> str | None:
        try:
            if value is not None and len(parse_url(value).topics) != 1:
                raise ValueError("dead letters go to one topic: kafka://broker/topic")
        except InputError as error:
            raise ValueError(error.what) from error
        return value


def send_new(layout: Layout, config: DeadLettersConfig) -> int:
    """Sends the dead letters that were committed since the last time, and notes that.

    Returns:
        How many were sent; 0 where no topic is configured.

    Raises:
        BrokerError: not all were acknowledged; the next call sends all of them again.
    """
    if config.kafka is None or not events_table.exists(layout):
        return 0
    url = parse_url(config.kafka)
    name = f"{MARK}{url.topics[0]}"
    table = events_table.open_table(layout)
    seen = table.transaction_version(name)
    files = events_table.added_since(layout, table, -1 if seen is None else seen, ("dead_letter",))
    if files is None:
        files = [file for file in events_table.files(table) if file.kind == "dead_letter"]
    if not files:
        # Noted now and then all the same, before the log of that time is cleaned away.
        if seen is not None and table.version() - seen > _NOTED_EVERY:
            events_table.mark(table, name, table.version())
        return 0
    sent = _send(url, files, config.max_bytes)
    # Another process that sent the same ones may have noted it first; then there is nothing left to note.
    events_table.mark(table, name, table.version())
    return sent


def _send(url: KafkaUrl, files: list[events_table.EventFile], max_bytes: int) -> int:
    from kafka import KafkaProducer

    with told(url.address):
        producer = KafkaProducer(
            bootstrap_servers=list(url.brokers),
            bootstrap_timeout_ms=CONNECT_MS,
            request_timeout_ms=REQUEST_MS,
            acks="all",
            linger_ms=20,
            max_request_size=max_bytes + 2**20,
            **client_settings(),
        )
        sent = 0
        try:
            for messages in _messages(files, max_bytes):
                waiting = [
                    producer.send(url.topics[0], value=value, key=key, headers=headers)
                    for key, value, headers in messages
                ]
                producer.flush(_FLUSH_S)
                for future in waiting:
                    future.get(_FLUSH_S)
                sent += len(waiting)
        finally:
            producer.close(CONNECT_MS / 1000)
    return sent


def _messages(
    files: list[events_table.EventFile], max_bytes: int
) -> Iterator[list[tuple[bytes, bytes, list[tuple[str, bytes]]]]]:
    """Key, value and headers of every dead letter in these files, a bounded number at a time."""
    import pyarrow.parquet as pq

    for file in files:
        for batch in pq.ParquetFile(file.path).iter_batches(1_000, columns=_COLUMNS):
            yield [_message(row, max_bytes) for row in batch.to_pylist()]


def _message(row: dict[str, Any], max_bytes: int) -> tuple[bytes, bytes, list[tuple[str, bytes]]]:
    raw: bytes = row["raw"] or b""
    headers = [(name, str(row[name]).encode()) for name in _HEADERS if row[name] is not None]
    if len(raw) > max_bytes:
        headers.append(("cut_from", str(len(raw)).encode()))
    return f"{row['partition']}/{row['offset']}".encode(), raw[:max_bytes], headers
