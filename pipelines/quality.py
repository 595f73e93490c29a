"""How good data must be before anything is trained on it: thresholds, and what was found.

Bad rows are always kept and never stop an ingest: nothing would be gained by losing the good ones beside them.
What they stop is training. When too many of the events that arrived since the last build were refused, or a table
breaks an expectation, the loop ends before it, says which reason or expectation it was, and shows some rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from feedback.errors import PalateError

from .workspace import Layout

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_CHARS = 160


class PreferencesQuality(BaseModel):
    """Thresholds of the preferences' suite; what the code itself promises has none."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_tie_share: float = Field(default=1.0, ge=0, le=1)
    """Largest share of ties among paired rows; ties teach a policy nothing."""
    max_text_chars: int = Field(default=1_000_000, ge=1)
    """Longest chosen or rejected text."""
    min_rows: int = Field(default=0, ge=0)
    """Fewest rows of the dataset."""
    min_rows_per_rule: dict[str, int] = Field(default_factory=dict)
    """Fewest rows that a rule must have made, by the rule's name: notices when a kind of feedback dries up."""


class FatesQuality(BaseModel):
    """Thresholds of the fates' suite."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_waiting_share: float = Field(default=1.0, ge=0, le=1)
    """Largest share of events that wait for others: notices when a producer's ids do not match."""
    max_conflict_share: float = Field(default=0.05, ge=0, le=1)
    """Largest share of events that share their id with another event but not its content."""


class QualityConfig(BaseModel):
    """What stops the loop before it trains anything."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_bad_share: float = Field(default=0.05, ge=0, le=1)
    """Largest share of refused rows among the events that arrived since the last build; 1 never stops."""
    min_rows: int = Field(default=20, ge=1)
    """With fewer arrivals than this, their share of refused rows says nothing and does not stop."""
    examples: int = Field(default=5, ge=1, le=100)
    """Rows shown for each expectation that does not hold."""
    preferences: PreferencesQuality = PreferencesQuality()
    fates: FatesQuality = FatesQuality()


class BadData(PalateError, ValueError):
    """The data is not good enough to train on; nothing was trained."""

    exit_code = 4


@dataclass(frozen=True)
class Example:
    """A refused row."""

    where: str
    reason: str
    detail: str
    raw: str
    """The beginning of its bytes; data of users."""


@dataclass(frozen=True)
class Arrivals:
    """What came in since the last build."""

    received: int = 0
    bad: int = 0
    """Dead letters among them that were not replayed since."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Reason to number of bad rows, most frequent first."""
    examples: tuple[Example, ...] = ()
    """Some rows of the most frequent reason."""
    max_bad_share: float = 1.0
    min_rows: int = 1

    @property
    def share(self) -> float:
        """Share of bad rows; 0 when nothing arrived."""
        return self.bad / self.received if self.received else 0.0

    @property
    def passed(self) -> bool:
        """Whether the share is within the threshold, or too few rows arrived to tell."""
        return self.received < self.min_rows or self.share <= self.max_bad_share


@dataclass(frozen=True)
class Check:
    """One expectation about a table, and whether it holds."""

    name: str
    meaning: str
    passed: bool
    found: str
    """What was found, in words: a share, a count, a value."""
    allowed: str
    examples: tuple[str, ...] = ()
    """Some of the rows that break it."""


@dataclass(frozen=True)
class TableReport:
    """A suite's outcome on one table."""

    table: str
    rows: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every expectation holds."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True)
class Validation:
    """Everything that was checked before training."""

    created: datetime
    dataset: str | None
    """Version of the dataset that was checked; None when the arrivals stopped the loop before it was built."""
    arrivals: Arrivals | None
    tables: tuple[TableReport, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether training may start."""
        return (self.arrivals is None or self.arrivals.passed) and all(t.passed for t in self.tables)

    def document(self) -> dict[str, Any]:
        """As plain JSON."""
        found = asdict(self)
        found["created"] = self.created.isoformat(timespec="seconds")
        found["passed"] = self.passed
        if self.arrivals is not None:
            found["arrivals"] |= {"share": self.arrivals.share, "passed": self.arrivals.passed}
        for table, report in zip(found["tables"], self.tables, strict=True):
            table["passed"] = report.passed
        return found


def arrivals(workspace: Path, config: QualityConfig) -> Arrivals:
    """Counts what arrived since the last build, and how much of it was refused."""
    from . import events_table, fates, replay_batches

    layout = Layout(Path(workspace).resolve())
    if not events_table.exists(layout):
        return Arrivals(max_bad_share=config.max_bad_share, min_rows=config.min_rows)
    built = fates.built_from(layout)
    table = events_table.open_table(layout)
    new = events_table.added_since(layout, table, int(built.events_version)) if built else None
    if new is None:  # nothing was built, or so long ago that the log of that time is gone
        new = events_table.files(table)
    dead = [file for file in new if file.kind == "dead_letter"]
    refused, letters = sum(file.rows for file in dead), _letters(dead, replay_batches.replays(layout))
    reasons = Counter(letters["reason"].to_pylist())
    worst = reasons.most_common(1)
    return Arrivals(
        # A letter that was replayed is counted as the event that came of it.
        received=sum(file.rows for file in new if file.kind != "gap") - (refused - letters.num_rows),
        bad=letters.num_rows,
        reasons=dict(reasons.most_common()),
        examples=_examples(letters, worst[0][0], config.examples) if worst else (),
        max_bad_share=config.max_bad_share,
        min_rows=config.min_rows,
    )


def refuse_bad(found: Validation, page: Path | None = None) -> None:
    """Stops the loop when the data is not good enough.

    Args:
        found: what was checked.
        page: where all of it can be read.

    Raises:
        BadData: says which reason or expectation, and shows some rows.
    """
    read = f"\nThe whole: {page}" if page else ""
    arrived = found.arrivals
    if arrived is not None and not arrived.passed:
        reason, count = next(iter(arrived.reasons.items()))
        rows = "".join(f"\n  {e.where}: {e.detail}\n    {e.raw}" for e in arrived.examples)
        raise BadData(
            f"Too many of the events that arrived since the last build were refused; nothing was trained. "
            f"Most often: {reason} ({count} of {arrived.bad}).",
            got=f"{arrived.bad} of {arrived.received} ({arrived.share:.1%}){rows}{read}",
            allowed=f"at most {arrived.max_bad_share:.1%} ([ingest.quality] max_bad_share)",
            next_step="mend them and `palate replay --dead-letters`, or accept them with `palate build`",
        )
    for table in found.tables:
        for check in table.checks:
            if not check.passed:
                rows = "".join(f"\n  {example}" for example in check.examples)
                raise BadData(
                    f"The table of {table.table} breaks the expectation {check.name}: {check.meaning}. "
                    "Nothing was trained.",
                    got=f"{check.found}{rows}{read}",
                    allowed=check.allowed,
                    next_step="palate show dataset; thresholds are under [ingest.quality]",
                )


def shown(text: str, limit: int = _SHOWN_CHARS) -> str:
    """Text of users for one line of a message: no line breaks, no control characters, not endless."""
    flat = " ".join(text.split())
    flat = "".join(character if character.isprintable() else "\ufffd" for character in flat)
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _letters(files: list[Any], replayed: Mapping[tuple[str, int], Any]) -> pa.Table:
    """Dead letters of these files that were not replayed since."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "reason": pa.string(), "detail": pa.string(), "raw": pa.binary(), "partition": pa.string(),
        "offset": pa.int64(),
    }  # fmt: skip
    schema = pa.schema(columns)
    tables = [pq.read_table(file.path, columns=list(columns)).cast(schema) for file in files]
    letters = pa.concat_tables(tables) if tables else schema.empty_table()
    if replayed:
        places = zip(letters["partition"].to_pylist(), letters["offset"].to_pylist(), strict=True)
        letters = letters.filter(pa.array([place not in replayed for place in places], pa.bool_()))
    return letters


def _examples(letters: pa.Table, reason: str, count: int) -> tuple[Example, ...]:
    import pyarrow.compute as pc

    rows = letters.filter(pc.equal(letters["reason"], reason)).slice(0, count).to_pylist()
    return tuple(
        Example(
            where=shown(f"{row['partition']}@{row['offset']}"),
            reason=reason,
            detail=shown(row["detail"] or ""),
            raw=shown((row["raw"] or b"")[: 4 * _SHOWN_CHARS].decode("utf-8", errors="replace")),
        )
        for row in rows
    )
