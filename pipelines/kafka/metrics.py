"""The figures of a running ingest as Prometheus reads them, at `http://<host>:<port>/metrics`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from ..follow import Status


class Metrics:
    """A page that shows the newest `Status`; used as a context, which serves it.

    | name | meaning |
    |---|---|
    | `palate_ingest_events_total{kind}` | rows committed: `interaction`, `feedback`, `dead_letter` |
    | `palate_ingest_dead_letters_total{reason}` | rows refused |
    | `palate_ingest_lag{topic,partition}` | records (bytes for files) left to read |
    | `palate_ingest_events_per_second` | over the last half minute |
    | `palate_ingest_bad_share` | dead letters among what was received |
    | `palate_ingest_last_commit_age_seconds` | since rows were committed; absent before the first |
    | `palate_ingest_gaps_total`, `palate_ingest_lost_total` | gaps met, offsets in them |
    | `palate_ingest_dead_letters_sent_total` | dead letters written to their own topic |
    | `palate_ingest_up` | 1 while the brokers answer |
    """

    def __init__(self, port: int, host: str = "127.0.0.1"):
        """Args: port: TCP port, 0 for any free one. host: address to listen at."""
        self._host, self._port = host, port
        self._status: Status | None = None

    def __enter__(self) -> Metrics:
        """Raises InputError when the port is taken."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(self._port, self._host, registry)
        except OSError as error:
            raise InputError(
                "The metrics page cannot be served.",
                got=f"{self._host}:{self._port}: {error.strerror or error}",
                next_step="choose another --metrics-port",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """Where the page is."""
        return int(self._server.server_address[1])

    def update(self, status: Status) -> None:
        """Shows this from now on."""
        self._status = status

    def describe(self) -> list[Metric]:
        """Nothing is known before the first status."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Called for every request, from the server's thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status
        if status is None:
            return
        total = status.summary
        kinds = CounterMetricFamily("palate_ingest_events", "Rows committed.", labels=["kind"])
        bad = sum(total.dead_letters.values())
        for kind, count in (
            ("interaction", total.interactions),
            ("feedback", total.feedback),
            ("dead_letter", bad),
        ):
            kinds.add_metric([kind], count)
        yield kinds
        reasons = CounterMetricFamily("palate_ingest_dead_letters", "Rows refused.", labels=["reason"])
        for reason, count in total.dead_letters.items():
            reasons.add_metric([reason], count)
        yield reasons
        lag = GaugeMetricFamily("palate_ingest_lag", "Left to read.", labels=["topic", "partition"])
        for name, left in status.lag.items():
            topic, _, number = name.rpartition("/")
            lag.add_metric([topic.rpartition("/")[2], number], left)
        yield lag
        yield GaugeMetricFamily("palate_ingest_events_per_second", "Of late.", value=status.events_per_s)
        yield GaugeMetricFamily("palate_ingest_bad_share", "Dead letters of all.", value=status.bad_share)
        if status.committed_at is not None:
            age = time.time() - status.committed_at.timestamp()
            yield GaugeMetricFamily("palate_ingest_last_commit_age_seconds", "Since rows came.", value=age)
        yield CounterMetricFamily(
            "palate_ingest_gaps", "Expired before they were read.", value=len(total.gaps)
        )
        yield CounterMetricFamily("palate_ingest_lost", "Offsets in gaps.", value=total.lost)
        yield CounterMetricFamily(
            "palate_ingest_dead_letters_sent", "Sent to their topic.", value=total.sent_dead_letters
        )
        yield GaugeMetricFamily("palate_ingest_up", "Brokers answer.", value=float(status.state != "away"))
