"""The client: emits interactions and feedback from a product, without ever making it wait or fail.

    from palate.client import Client

    events = Client("kafka://broker:9092/events")
    reply_id = events.interaction("What shall I cook?", "Lentils with rice.", user_id="u-7")
    events.feedback("thumb", 1, interaction_id=reply_id, user_id="u-7")

Delivery is at least once and events carry ids, so palate counts each once. A call serialises its event into memory
and returns; threads of its own deliver it, and keep it on disk while the receiver is away, across restarts of the
product too. If the process is killed (kill -9), what was emitted in about the last tenth of a second may be lost,
and up to `IN_MEMORY_S` when the receiver stopped answering in that second; with `durable=True` nothing is, for the
price of one write to disk in each call. Against a power cut the last second on disk is not safe.

This module imports neither Kafka nor pydantic; what delivery needs is imported by its thread.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from palate.client_delivery import IN_MEMORY_S, Delivery
from palate.client_events import EventError, Message, feedback_line, interaction_line, new_id
from palate.client_folder import SpillError, left_behind, spill_folder, unusable
from palate.client_sinks import sink_for
from palate.client_spill import Spill

__all__ = ["IN_MEMORY_S", "Client", "EventError", "SpillError"]


class Client:
    """Emits events to a Kafka topic or into a directory. One for each process is enough; threads may share it.

    Args:
        url: `kafka://broker[:port][,broker…]/topic`, with TLS and SASL from the environment (`PALATE_KAFKA_…`), or
            a directory, which then holds files as `palate ingest` reads them.
        spill_dir: Where events wait on disk; `$PALATE_SPILL_DIR`, or a folder of its own for each url below
            `$XDG_STATE_HOME/palate/spill` (`~/.local/state/palate/spill`) when None.
        max_buffer_bytes: Most bytes of events in memory.
        max_spill_bytes: Most bytes of events on disk, of all processes that share `spill_dir`. Beyond both limits
            events are refused, counted and logged.
        durable: Every event is on disk when its call returns.
        strict: Mistakes in the arguments raise `EventError`, as is right in tests; else they are counted and logged.
        close_timeout_s: How long the end of the process may wait for the last events to be delivered; what is not
            delivered by then is kept on disk.

    A spill folder that this user may not write to, because it belongs to another user or stands on a read-only disk,
    does not stop the product: that is logged at once, events wait in memory only, up to `max_buffer_bytes`, and go to
    disk as soon as the folder can be used. What then still waits when the process ends is lost, and counted as
    refused. A client that is `durable` or `strict` is not made in such a place. A spill folder that is deleted while
    events wait in it is made again, with them.

    A signal handler may emit at any moment, also in the midst of another call. `flush` and `close` called there give
    False at once when they interrupt the client itself; the end of the process then closes it.

    Raises:
        SinkError: an address of another form.
        SpillError: events cannot be kept in the spill folder, and the client is `durable` or `strict`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        spill_dir: str | os.PathLike[str] | None = None,
        max_buffer_bytes: int = 8 << 20,
        max_spill_bytes: int = 1 << 30,
        durable: bool = False,
        strict: bool = False,
        close_timeout_s: float = 2.0,
    ) -> None:
        make_sink, self.url = sink_for(url)
        folder = Path(spill_dir).expanduser().absolute() if spill_dir is not None else spill_folder(self.url)
        self.strict, self.close_timeout_s = strict, close_timeout_s
        self._invalid = 0
        self._delivery = Delivery(make_sink, Spill(folder, max_spill_bytes), max_buffer_bytes, durable)
        if (problem := unusable(folder)) is not None:
            if strict or durable:
                raise problem
            self._delivery.complain("spill", f"{problem}\nUntil that changes, events wait in memory only.")
        _CLIENTS.add(self)
        if left_behind(folder):
            self._delivery.start()  # to deliver what an earlier process left

    def interaction(
        self,
        prompt: str | Sequence[Message],
        completion: str | Message,
        *,
        interaction_id: str | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        agent: str | None = None,
        parent_id: str | None = None,
        model: str | Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        logprob: float | None = None,
        tokens: int | None = None,
        propensity: float | None = None,
        arm: str | None = None,
        latency_ms: float | None = None,
        uses: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        event_time: datetime | str | None = None,
    ) -> str:
        """Emits one reply in its context; the fields are those of docs/events.md.

        Args:
            prompt: The messages exactly as rendered, or the text of one user message.
            completion: The reply's message, or its text.
            interaction_id: Its id; a random one when None.
            event_time: When the reply was given; now when None.

        Returns:
            Its id, which feedback about it names; also where the event could not be taken.

        Raises:
            EventError: wrong arguments, and the client is strict.
        """
        fields = {
            "user_id": user_id, "session_id": session_id, "agent": agent, "parent_id": parent_id, "model": model,
            "sampling": sampling, "logprob": logprob, "tokens": tokens, "propensity": propensity, "arm": arm,
            "latency_ms": latency_ms, "uses": uses, "metadata": metadata, "event_time": event_time,
        }  # fmt: skip
        name = interaction_id if interaction_id is not None else new_id()
        try:
            self._delivery.put(interaction_line(name, prompt, completion, fields))
        except Exception as problem:
            self._mistake(problem)
        return name

    def feedback(
        self,
        kind: str,
        value: Any = None,
        *,
        interaction_id: str | None = None,
        session_id: str | None = None,
        feedback_id: str | None = None,
        user_id: str | None = None,
        actor: str | None = None,
        retracts: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        event_time: datetime | str | None = None,
    ) -> str:
        """Emits one signal about a reply, or about a session; kinds and values are those of docs/events.md.

        Args:
            kind: `thumb`, `vote`, `edit`, …
            value: As the kind asks; a text will do for `edit`, `comment` and `next_message`.
            interaction_id: The reply it is about.
            session_id: The session it is about, when it is about no single reply.
            feedback_id: Its id; a random one when None.
            event_time: When it was given; now when None.

        Returns:
            Its id, also where the event could not be taken.

        Raises:
            EventError: wrong arguments, and the client is strict.
        """
        fields = {
            "interaction_id": interaction_id, "session_id": session_id, "user_id": user_id, "actor": actor,
            "retracts": retracts, "metadata": metadata, "event_time": event_time,
        }  # fmt: skip
        name = feedback_id if feedback_id is not None else new_id()
        try:
            self._delivery.put(feedback_line(name, kind, value, fields))
        except Exception as problem:
            self._mistake(problem)
        return name

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Waits until the receiver has everything emitted before; False where it has not yet. Loses nothing."""
        return self._delivery.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Delivers what can be delivered in time and keeps the rest on disk; True where nothing is left.

        Args:
            timeout_s: How long to wait; `close_timeout_s` when None.
        """
        done = False
        try:
            done = self._delivery.close(self.close_timeout_s if timeout_s is None else timeout_s)
        except Exception as problem:
            self._delivery.complain("close", f"The client did not close properly: {problem!r}")
        if self._delivery.waiting.closed:
            _CLIENTS.discard(self)
        return done

    def stats(self) -> dict[str, Any]:
        """Counters of this process: accepted, delivered, waiting, spilled, invalid, refused, … and the last error."""
        return self._delivery.stats() | {"invalid": self._invalid}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mistake(self, problem: Exception) -> None:
        """What the product passed is no event; or, unexpectedly, this client has a fault of its own."""
        if self.strict:
            raise problem
        self._invalid += 1
        self._delivery.complain("invalid", f"An event was not emitted ({self._invalid} so far): {problem}")


# Held until they are closed: what was emitted must reach the end of the process even if nobody keeps the client.
_CLIENTS: set[Client] = set()


def _close_all() -> None:
    timeout_s = None
    for client in list(_CLIENTS):
        try:
            client.close(timeout_s)
        except BaseException:  # somebody does not want to wait; what the others have still goes to disk
            timeout_s = 0.0


def _after_fork() -> None:
    for client in list(_CLIENTS):
        with suppress(Exception):  # of one client; the others still need it
            client._delivery.after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
