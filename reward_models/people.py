"""What a personal reward model remembers of each person: beliefs, and which rows they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reward_models.taste import Belief

SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("mean", pa.list_(pa.float64())),
        ("covariance", pa.list_(pa.float64())),  # (K, K), row by row
        ("known", pa.list_(pa.float64())),
        ("votes", pa.int64()),
        ("first_event_us", pa.int64()),  # microseconds since 1970, UTC
        ("last_event_us", pa.int64()),
        ("rows", pa.list_(pa.string())),  # preference_ids, newest last
    ]
)
ROWS_KEPT = 50
"""So many of the newest rows are named as evidence of a person's belief."""


@dataclass(frozen=True)
class Person:
    """One person.

    Attributes:
        belief: about their effects.
        known: (G,) what was known of them without votes.
        votes: how many made the belief.
        first_event_us: time of the oldest of them, microseconds since 1970, UTC; 0 without votes.
        last_event_us: of the newest.
        rows: `preference_id`s of the newest of them.
    """

    belief: Belief
    known: np.ndarray
    votes: int = 0
    first_event_us: int = 0
    last_event_us: int = 0
    rows: tuple[str, ...] = ()

    def after(self, belief: Belief, row: str, event_us: int) -> Person:
        """The person after one more vote."""
        return replace(
            self,
            belief=belief,
            votes=self.votes + 1,
            first_event_us=min(self.first_event_us or event_us, event_us),
            last_event_us=max(self.last_event_us, event_us),
            rows=(*self.rows, row)[-ROWS_KEPT:],
        )


def write(people: Mapping[str, Person], path: Path) -> None:
    """All of them as one Parquet file, ordered by id; complete or not there at all."""
    ordered = sorted(people.items())
    columns = {
        "user_id": [name for name, _ in ordered],
        "mean": [p.belief.mean.tolist() for _, p in ordered],
        "covariance": [p.belief.covariance.ravel().tolist() for _, p in ordered],
        "known": [p.known.tolist() for _, p in ordered],
        "votes": [p.votes for _, p in ordered],
        "first_event_us": [p.first_event_us for _, p in ordered],
        "last_event_us": [p.last_event_us for _, p in ordered],
        "rows": [list(p.rows) for _, p in ordered],
    }
    partial = path.with_suffix(".partial")
    pq.write_table(pa.table(columns, schema=SCHEMA), partial, compression="zstd")
    partial.replace(path)


def read(path: Path) -> dict[str, Person]:
    """What `write` wrote.

    Raises:
        OSError, ValueError: there is no such file, or it is something else.
    """
    return dict(_people(pq.read_table(path, schema=SCHEMA).to_pylist()))


def _people(rows: Iterable[dict[str, Any]]) -> Iterable[tuple[str, Person]]:
    for row in rows:
        mean = np.asarray(row["mean"], dtype=np.float64)
        covariance = np.asarray(row["covariance"], dtype=np.float64).reshape(len(mean), len(mean))
        known = np.asarray(row["known"], dtype=np.float64)
        yield (
            row["user_id"],
            Person(
                Belief(mean, covariance), known,
                row["votes"], row["first_event_us"], row["last_event_us"], tuple(row["rows"]),
            ),
        )  # fmt: skip
