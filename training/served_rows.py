"""Rows of what was served, as tokens, for methods that learn from single replies. Pure but for the tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from training.encoding import Encoder
from training.errors import NotEnoughPreferences
from training.pairs import uniform
from training.sequences import Tokens

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


@dataclass(frozen=True)
class ServedRow:
    """One reply that was served."""

    row: Row
    """In SERVED."""
    tokens: Tokens


@dataclass(frozen=True)
class ServedRows:
    """What a method learns from, and what it leaves out."""

    rows: list[ServedRow]
    """In an order that depends on seed and ids alone."""
    left_out: dict[str, int]
    """By reason; nothing disappears unseen."""


def choose_served(
    served: pa.Table,
    encoder: Encoder,
    *,
    most: int,
    seed: int,
    unusable: Callable[[Row], str | None],
) -> ServedRows:
    """Take at most `most` rows of SERVED, drawn by a hash of seed and id.

    Args:
        served: SERVED rows.
        encoder: of prompts and replies.
        most: how many at most.
        seed: of the draw.
        unusable: why a method cannot learn from a row; None where it can.
    """
    rows: list[ServedRow] = []
    left_out: Counter[str] = Counter()
    ids = served["interaction_id"].to_pylist()
    for k in sorted(range(len(ids)), key=lambda k: (uniform(seed, ids[k]), ids[k])):
        if len(rows) == most:
            left_out["over_max_rows"] += 1
            continue
        row = served.slice(k, 1).to_pylist()[0]
        if reason := unusable(row):
            left_out[reason] += 1
        elif (tokens := encoder.served(row)) is None:
            left_out["not_rendered"] += 1
        else:
            rows.append(ServedRow(row, tokens))
    return ServedRows(rows, dict(left_out))


def require(chosen: ServedRows, least: int, method: str, what: str) -> None:
    """Raise unless there are at least `least` rows.

    Raises:
        NotEnoughPreferences: there are fewer.
    """
    if len(chosen.rows) >= least:
        return
    unused = ", ".join(f"{reason}: {n}" for reason, n in sorted(chosen.left_out.items()))
    raise NotEnoughPreferences(
        f"Too few replies with {what}.",
        got=f"{len(chosen.rows)} usable replies ({unused or 'no others'})",
        allowed=f"at least {least} ([train.{method}] min_rows)",
        next_step="collect more feedback, then run again; `palate show dataset` lists what there is",
    )
