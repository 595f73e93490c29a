"""Who said what about which item when, as the search for brigades looks at it, and that search's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import pyarrow as pa

TIE, FIRST, SECOND = 0, 1, 2


class Config(BaseModel):
    """Settings of the search for people who vote together."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    false_alarms: float = Field(default=0.01, gt=0, lt=1)
    """Probability that any honest person is flagged, of each test (Bonferroni)."""
    min_group: int = Field(default=3, ge=3)
    """Fewer people than this are no brigade."""
    min_people: int = Field(default=12, ge=6)
    """With fewer people who voted enough, what honest people do is not known, and nobody is flagged."""
    min_votes: int = Field(default=5, ge=2)
    """Votes along a direction, or items two people have in common, below which they are not judged by them."""
    min_agreement: float = Field(default=0.75, gt=0.5, le=1)
    """Least share of votes that agree, of each who is flagged; ties do not agree with anything but ties."""
    min_spread: float = Field(default=0.03, gt=0, lt=1)
    """Honest people are taken to differ at least so much: intraclass correlation of the beta-binomial."""
    trimmed: float = Field(default=0.1, gt=0, lt=0.5)
    """Share of people, those most toward a direction, who do not count in what is usual there; a brigade larger than
    this hides itself."""
    density: float = Field(default=0.8, gt=0.5, le=1)
    """Share of a group's others that each member must agree with, by the test of items."""
    most_voters: int = Field(default=1000, ge=3)
    """Items that more people voted on are left out of the test of pairs, whose cost is the square of this."""
    windows_h: tuple[int, ...] = (1, 6, 24)
    """Lengths of the windows searched for bursts, in hours; each divides 24."""
    most_bursts: int = Field(default=20, ge=0)
    """So many of the most unusual windows are looked into."""
    factor: float = Field(default=0.0, ge=0, le=1)
    """What the weights of people who are flagged are multiplied by."""


@dataclass(frozen=True)
class Votes:
    """N votes of U people, one for each person and item."""

    names: list[str]
    user: np.ndarray
    """(N,)"""
    item: np.ndarray
    """(N,)"""
    outcome: np.ndarray
    """(N,) TIE, or which text of the item was preferred, in an order that is the item's own."""
    time_us: np.ndarray
    """(N,) -1 where it is not known."""
    toward: np.ndarray | None
    """(N, D) vector of what was preferred less the other's."""


def read(rows: pa.Table, user_ids: list[str | None], directions: np.ndarray | None) -> Votes:
    """The rows of known people, the last of each person and item, in the order of time."""
    columns = rows.select(["prompt_key", "chosen", "rejected", "label", "margin"]).to_pydict()
    times = rows["event_time"].cast("int64").fill_null(-1).to_numpy()
    last: dict[tuple[str, int], int] = {}
    items: dict[tuple[str | None, ...], int] = {}
    item, outcome = np.zeros(rows.num_rows, int), np.zeros(rows.num_rows, int)
    for i in np.argsort(times, kind="stable").tolist():
        name, chosen, rejected = user_ids[i], columns["chosen"][i], columns["rejected"][i]
        if name is None:
            continue
        if rejected is None:
            key, first = (columns["prompt_key"][i], chosen), columns["label"][i] is not False
        else:
            key, first = (columns["prompt_key"][i], *sorted((chosen, rejected))), chosen <= rejected
        item[i] = items.setdefault(key, len(items))
        tie = rejected is not None and columns["margin"][i] == 0
        outcome[i] = TIE if tie else FIRST if first else SECOND
        last[name, int(item[i])] = i
    kept = np.array(sorted(last.values()), dtype=int)
    people = sorted({user_ids[i] or "" for i in kept})
    codes = {name: code for code, name in enumerate(people)}
    user = np.array([codes[user_ids[i] or ""] for i in kept], dtype=int)
    toward = None if directions is None else np.asarray(directions, dtype=np.float64)[kept]
    return Votes(people, user, item[kept], outcome[kept], times[kept], toward)
