"""Follow: ingest in rounds, again and again, and say how it goes.

Each round reads a bounded part of what is new and commits it; between rounds nothing is held that a crash
could lose. Without news the pauses grow to a few seconds; while a broker is away they grow to half a minute,
and go on for as long as it takes. `stop` ends the loop after the running round was committed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from feedback.sources import Partition

from . import events_table, sources
from .errors import BrokerError, InputError, OutrunError
from .events_table import Position
from .ingest import IngestConfig, IngestSummary, Work, drain, tell_source
from .kafka.dead_letters import send_new
from .kafka.settings import is_url, parse_url
from .runner import RunnerConfig
from .workspace import Layout

if TYPE_CHECKING:
    from .kafka.group import Membership

RATE_WINDOW_S = 30.0
MIRROR_S = 5.0
"""Seconds between two writes of offsets to the consumer group, as Kafka's own clients have it."""
ONCE_TRIES = 3
"""How often in a row a broker may fail before a bounded read gives up."""


class FollowConfig(BaseModel):
    """How rounds follow each other."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    round_records: int = Field(default=100_000, ge=1)
    """Records read from Kafka in one round, over all partitions; bounds how long a stop takes."""
    idle_min_s: float = Field(default=0.1, gt=0)
    """First pause when there is nothing new, in seconds; it doubles from there."""
    idle_max_s: float = Field(default=2.0, gt=0)
    """Longest pause when there is nothing new: so late an event is seen."""
    retry_min_s: float = Field(default=0.5, gt=0)
    """First pause when a broker is away, in seconds; it doubles from there."""
    retry_max_s: float = Field(default=30.0, gt=0)
    """Longest pause when a broker is away."""


@dataclass(frozen=True)
class Status:
    """How a running ingest stands."""

    state: Literal["starting", "reading", "idle", "away", "stopped"] = "starting"
    """`away`: a broker does not answer, see `problem`."""
    summary: IngestSummary = field(default_factory=IngestSummary)
    """Everything since the start."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """Partition id to what is left to read, in records (bytes for files)."""
    events_per_s: float = 0.0
    """Over the last half minute."""
    committed_at: datetime | None = None
    """When rows were last committed."""
    problem: str = ""
    """What went wrong last, while it does."""

    @property
    def bad_share(self) -> float:
        """Dead letters among what was received, in [0, 1]."""
        return sum(self.summary.dead_letters.values()) / max(1, self.summary.received)

    @property
    def behind(self) -> int:
        """The lag of all partitions together."""
        return sum(self.lag.values())


def follow(
    path: Path | str,
    *,
    source: str = sources.KAFKA,
    source_config: Mapping[str, Any] | None = None,
    workspace: Path,
    config: IngestConfig | None = None,
    runner: RunnerConfig | None = None,
    rounds: FollowConfig | None = None,
    once: bool = False,
    stop: threading.Event | None = None,
    report: Callable[[Status], None] = lambda _status: None,
) -> IngestSummary:
    """Reads what comes, until `stop` is set.

    Args:
        path, source, source_config, workspace, config, runner: see `pipelines.ingest.ingest`.
        rounds: see `FollowConfig`.
        once: end when everything is read that was there at the start, or when a broker is away.
        stop: ends the loop after the running round; never when None.
        report: called after every round and whenever the state changes.

    Returns:
        What was read in all rounds together.

    Raises:
        InputError: the input is not the one that was read before, or access is refused.
        DiskFullError, PipelineError: see `ingest`.
        BrokerError: with `once` only.
    """
    if is_url(path):
        source = sources.KAFKA
    settings = dict(source_config or {})
    work = Work(
        source,
        settings,
        Layout(Path(workspace).resolve()),
        config or IngestConfig(),
        runner or RunnerConfig(),
    )
    _refuse_circle(path, work)
    loop = _Follower(path, work, rounds or FollowConfig(), once, stop or threading.Event(), report)
    return loop.run()


def _refuse_circle(path: Path | str, work: Work) -> None:
    out = work.config.dead_letters.kafka
    if out is not None and is_url(path) and set(parse_url(out).topics) & set(parse_url(str(path)).topics):
        raise InputError(
            "Dead letters would be sent to the topic they are read from, for ever.",
            got=out,
            next_step="give [ingest.dead_letters] kafka a topic of its own",
        )


class _Follower:
    """The loop's state. Everything that matters is in the events table; this is what it knows of its own run."""

    def __init__(
        self,
        path: Path | str,
        work: Work,
        rounds: FollowConfig,
        once: bool,
        stop: threading.Event,
        report: Callable[[Status], None],
    ):
        self._path, self._work, self._config = path, work, rounds
        self._once, self._stop, self._report = once, stop, report
        self._status = Status()
        self._checked: dict[str, Position] = {}
        self._goal: dict[str, int] | None = None
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._unsent = True
        self._member: Membership | None = None
        self._mirrored = time.monotonic()
        self._to_mirror: tuple[Sequence[Partition], Mapping[str, int]] = ((), {})

    def run(self) -> IngestSummary:
        """Rounds until stopped, or until the goal is reached."""
        started, idle, retry = time.monotonic(), self._config.idle_min_s, self._config.retry_min_s
        failures = 0
        try:
            while not self._stop.is_set():
                try:
                    news = self._round()
                    failures, retry = 0, self._config.retry_min_s
                except OutrunError:
                    continue  # others have read it; there may be more
                except BrokerError as error:
                    failures += 1
                    if self._once and failures >= ONCE_TRIES:
                        raise
                    self._fail(error)
                    self._stop.wait(retry)
                    retry = min(2 * retry, self._config.retry_max_s)
                    continue
                if news:
                    idle = self._config.idle_min_s
                elif self._once:
                    break
                else:
                    self._stop.wait(idle)
                    idle = min(2 * idle, self._config.idle_max_s)
        finally:
            self._mirror((), {})
            if self._member is not None:
                self._member.close()
            self._status.summary.seconds = round(time.monotonic() - started, 3)
            self._tell(state="stopped")
        return self._status.summary

    def _round(self) -> bool:
        """Reads and commits a part of what is new; whether there was anything."""
        ours = self._ours(sources.partitions(self._path, self._work.source, self._work.settings))
        at = self._positions(ours)
        if self._goal is None:
            self._goal = {part.id: part.end for part in ours}
        bounded = [part for part in self._bounded(ours, at) if at[part.id] != part.end]
        if not bounded:
            self._send_dead_letters()
            self._mirror((), {})
            self._tell(state="idle", lag=_lag(ours, at), problem="")
            return False
        self._tell(state="reading", lag=_lag(ours, at), problem="")
        done = drain(bounded, self._work, now=datetime.now(UTC), checked=self._checked)
        before, at = at, self._positions(ours)
        self._add(done, len(ours), moved=at != before)
        self._mirror(ours, at)
        self._unsent = self._unsent or bool(done.dead_letters)
        self._send_dead_letters()
        self._tell(lag=_lag(ours, at))
        return at != before

    def _ours(self, found: list[Partition]) -> list[Partition]:
        """All partitions, or those that the group gives us."""
        if not self._work.settings.get("share"):
            return found
        from .kafka.group import Membership
        from .kafka.source import Config, topic_and_number

        if self._member is None:
            self._member = Membership(parse_url(str(self._path)), Config(**self._work.settings).group)
        mine = self._member.partitions()
        return [part for part in found if topic_and_number(part) in mine]

    def _positions(self, parts: list[Partition]) -> dict[str, int]:
        table = events_table.open_table(self._work.layout)
        return {part.id: events_table.position(table, part.id).offset for part in parts}

    def _bounded(self, parts: list[Partition], at: Mapping[str, int]) -> list[Partition]:
        """The partitions with an `end` that this round goes to."""
        if self._once and self._goal is not None:
            goal = self._goal
            parts = [replace(part, end=min(part.end, goal[part.id])) for part in parts if part.id in goal]
        behind = sum(at[part.id] < part.end for part in parts)
        if not behind or not parts[0].address:
            return parts
        share = max(1, self._config.round_records // behind)
        return [
            replace(part, end=min(part.end, max(at[part.id], part.earliest) + share))
            if at[part.id] < part.end
            else part
            for part in parts
        ]

    def _mirror(self, parts: Sequence[Partition], at: Mapping[str, int]) -> None:
        """Shows lag tools where we are: now and then while there is much to do, at once when there is not."""
        if parts:
            self._to_mirror = (parts, at)
            if time.monotonic() - self._mirrored < MIRROR_S:
                return
        parts, at = self._to_mirror
        self._to_mirror = ((), {})
        if not parts:
            return
        if self._member is not None:
            from .kafka.source import topic_and_number

            self._member.commit({topic_and_number(part): at[part.id] for part in parts})
        else:
            tell_source(parts, at, self._work)
        self._mirrored = time.monotonic()

    def _send_dead_letters(self) -> None:
        if self._unsent:
            self._status.summary.sent_dead_letters += send_new(
                self._work.layout, self._work.config.dead_letters
            )
            self._unsent = False

    def _add(self, done: IngestSummary, partitions: int, *, moved: bool) -> None:
        """Adds a round to what was done before."""
        total = self._status.summary
        total.received += done.received
        total.interactions += done.interactions
        total.feedback += done.feedback
        total.dead_letters = dict(Counter(total.dead_letters) + Counter(done.dead_letters))
        total.gaps += done.gaps
        total.lost += done.lost
        total.partitions = partitions
        total.dropped = done.dropped
        total.pending_bytes = done.pending_bytes
        if moved:
            self._status = replace(self._status, committed_at=datetime.now(UTC))
        self._recent.append((time.monotonic(), total.received))

    def _fail(self, error: BrokerError) -> None:
        """A broker is away. Whatever it holds afterwards is looked at anew, as it may be another one."""
        self._checked.clear()
        if self._member is not None:
            self._member.close()
            self._member = None
        self._tell(state="away", problem=str(error.got or error.what))

    def _tell(self, **changes: Any) -> None:
        now = time.monotonic()
        while len(self._recent) > 1 and now - self._recent[1][0] > RATE_WINDOW_S:
            self._recent.popleft()
        since, before = self._recent[0]
        rate = (self._status.summary.received - before) / max(now - since, 1e-3)
        self._status = replace(self._status, events_per_s=rate, **changes)
        self._report(self._status)


def _lag(parts: list[Partition], at: Mapping[str, int]) -> dict[str, int]:
    return {part.id: max(0, part.end - at[part.id]) for part in parts}
