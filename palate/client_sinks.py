"""Where a client delivers to: a Kafka topic, or a directory of files that only grow.

A sink blocks and may fail as it likes: only the client's own thread calls it. `send` returns when the receiver has
the lines, and raises when it may not have all of them; they are then sent again, so a line may arrive twice.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from feedback.errors import PalateError
from palate.client_segments import misplaced

SEND_TIMEOUT_S = 10.0
_REFUSED_FOR_GOOD = (
    "MessageSizeTooLargeError",
    "RecordListTooLargeError",
    "InvalidRecordError",
    "CorruptRecordError",
)


class SinkError(PalateError, ValueError):
    """An address that no sink has."""


class Away(Exception):
    """The receiver cannot be reached or does not answer now."""


class Sink(Protocol):
    """Something that takes lines of JSON."""

    def send(self, lines: list[bytes]) -> list[bytes]:
        """Delivers lines; returns those that the receiver will never take. Raises `Away`."""
        ...

    def sync(self) -> None:
        """Makes what was sent survive a power cut, where that is this side's business."""
        ...

    def close(self) -> None:
        """Lets go of what it holds, soon; does not deliver anything."""
        ...

    def abandon(self) -> None:
        """In a child process: leaves what it holds to the parent."""
        ...


def sink_for(url: str | os.PathLike[str]) -> tuple[Callable[[], Sink], str]:
    """What makes the sink of an address, and the address in its full form.

    Raises:
        SinkError: neither `kafka://broker[:port][,…]/topic` nor a directory.
    """
    text = os.fspath(url)
    if text.startswith("kafka:"):
        from pipelines.kafka.settings import parse_url

        address = parse_url(text)
        if len(address.topics) != 1:
            raise SinkError("A client sends to one topic.", got=text, allowed="kafka://broker:9092/topic")
        return lambda: KafkaSink(list(address.brokers), address.topics[0]), str(address)
    if "://" in text and not text.startswith("file://"):
        raise SinkError(
            "Events go to Kafka or to a directory.", got=text, allowed="kafka://broker/topic, /a/directory"
        )
    folder = Path(text.removeprefix("file://")).expanduser().absolute()
    if folder.is_file():
        raise SinkError(
            "Events go to a directory, and this is a file.", got=folder, next_step="name its directory"
        )
    return lambda: DirectorySink(folder), str(folder)


class KafkaSink:
    """One topic, through a producer that is made when first needed and made anew after a failure.

    acks=all and idempotent, so the producer's own retries neither lose nor double a record.
    """

    def __init__(self, brokers: list[str], topic: str) -> None:
        self.brokers, self.topic = brokers, topic
        self._producer: Any = None

    def _connect(self) -> Any:
        from kafka import KafkaProducer

        from pipelines.kafka.settings import client_settings

        producer = KafkaProducer(
            bootstrap_servers=self.brokers,
            bootstrap_timeout_ms=5_000,
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            batch_size=256 << 10,
            max_request_size=4 << 20,
            max_block_ms=5_000,
            request_timeout_ms=5_000,
            delivery_timeout_ms=int(SEND_TIMEOUT_S * 1000),
            reconnect_backoff_max_ms=1_000,
            metrics_enabled=False,
            **client_settings(),
        )
        # At exit it would close itself before the client has sent the rest; the client closes it.
        producer._unregister_cleanup()
        return producer

    def send(self, lines: list[bytes]) -> list[bytes]:
        """Waits until all in-sync replicas have every line.

        A record that the broker refuses takes all others of its batch with it, and the producer too. So lines that
        came back are sent again one by one; what is refused alone, and first in a new producer, is refused for good.
        """
        refused: list[bytes] = []
        try:
            for line in self._send_together(lines):
                if self._send_together([line]):
                    refused.append(line)
        except Exception as problem:
            self.close()
            raise Away(f"{type(problem).__name__}: {problem}") from problem
        return refused

    def _send_together(self, lines: list[bytes]) -> list[bytes]:
        """Sends lines and waits; gives back those of batches that were refused, and then drops the producer."""
        if self._producer is None:
            self._producer = self._connect()
        refused: list[bytes] = []
        futures = [(line, self._producer.send(self.topic, value=line)) for line in lines]
        deadline = time.monotonic() + SEND_TIMEOUT_S + 1.0
        for line, future in futures:
            try:
                future.get(timeout=max(0.0, deadline - time.monotonic()))
            except Exception as problem:
                if type(problem).__name__ not in _REFUSED_FOR_GOOD:
                    raise
                refused.append(line)
        if refused:
            self.close()
        return refused

    def sync(self) -> None:
        """Nothing to do: the brokers have it."""

    def close(self) -> None:
        """Drops the connection; what it still had is the caller's to send again."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(Exception):
                producer.close(timeout=0)

    def abandon(self) -> None:
        """Keeps the parent's producer from ever being closed here: that would disturb the sockets they share."""
        if self._producer is not None:
            self._producer._closed = True


class DirectorySink:
    """Files named `<hour>-<host>-<pid>-<random>.jsonl`, a new one each hour, each written by one process only.

    A file that somebody removed or moved is not written to any more.
    """

    FSYNC_INTERVAL_S = 1.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None
        self._path, self._hour = folder, ""
        self._synced_s = 0.0

    def send(self, lines: list[bytes]) -> list[bytes]:
        """Appends whole lines; they survive the death of this process, and after `sync` a power cut."""
        data = b"\n".join(lines) + b"\n"
        try:
            written = os.write(self._file(), data)
            if written == len(data) and time.monotonic() - self._synced_s >= self.FSYNC_INTERVAL_S:
                self.sync()
        except OSError as problem:
            self.close()
            raise Away(str(problem)) from problem
        if written != len(data):
            # The disk is full. A reader may have seen the beginning already, so that file stays as it is.
            self.close()
            raise Away(f"only {written} of {len(data)} bytes could be written below {self.folder}")
        return []

    def _file(self) -> int:
        hour = time.strftime("%Y%m%dT%H", time.gmtime())
        if self._descriptor is None or hour != self._hour or misplaced(self._path, self._descriptor):
            self.close()
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"{hour}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._path, self._hour = self.folder / name, hour
            self._descriptor = os.open(self._path, flags, 0o640)
        return self._descriptor

    def sync(self) -> None:
        """fsync of the file that is written to."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.fsync(self._descriptor)
        self._synced_s = time.monotonic()

    def close(self) -> None:
        """Closes the file after an fsync."""
        if self._descriptor is not None:
            self.sync()
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                os.close(descriptor)

    def abandon(self) -> None:
        """Closes this process' copy of the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
