"""What a personal reward model remembers of each person: beliefs, and which rows they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reward_models.low_rank import LowRank, Votes
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


def believed(
    rows: pa.Table, votes: Votes, names: list[str], known: np.ndarray, taste: LowRank
) -> dict[str, Person]:
    """What is believed of each person after all their votes together; rows are in the order of their ids."""
    times = rows["event_time"].cast("int64").fill_null(0).to_numpy()
    order = np.argsort(times, kind="stable")
    rows_of, codes, first = votes.take(order).grouped()
    order = order[rows_of]
    means, covariances = taste.learn_all(votes.take(order), first, known[codes])
    times, ids = times[order].tolist(), np.asarray(rows["preference_id"].to_pylist(), dtype=object)[order]
    bounds = np.append(first, len(order)).tolist()
    found = {}
    for u, code in enumerate(codes.tolist()):
        lo, hi = bounds[u], bounds[u + 1]
        found[names[code]] = Person(
            Belief(means[u], covariances[u]), known[code], hi - lo, times[lo], times[hi - 1],
            tuple(ids[max(lo, hi - ROWS_KEPT) : hi]),
        )  # fmt: skip
    return found


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
    table = pq.read_table(path, schema=SCHEMA)
    mean, known = _stacked(table, "mean"), _stacked(table, "known")
    covariance = _stacked(table, "covariance").reshape(len(mean), mean.shape[1], mean.shape[1])
    columns = ("user_id", "votes", "first_event_us", "last_event_us", "rows")
    others = zip(*(table[name].to_pylist() for name in columns), strict=True)
    return {
        name: Person(Belief(mean[i], covariance[i]), known[i], votes, first, last, tuple(rows))
        for i, (name, votes, first, last, rows) in enumerate(others)
    }


def _stacked(table: pa.Table, name: str) -> np.ndarray:
    """(U, C) of lists of equal length."""
    values = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64).reshape(table.num_rows, -1 if len(values) else 0)
