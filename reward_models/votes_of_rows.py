"""PREFERENCES rows as votes of a linear model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reward_models import ties
from reward_models.features import NAMES
from reward_models.low_rank import Votes
from reward_models.projection import Projection
from reward_models.scorer import Chat

if TYPE_CHECKING:
    import pyarrow as pa

Raw = Callable[[Sequence[Chat], Sequence[str]], np.ndarray]
"""Prompts and replies to raw vectors (B, E + F)."""


class Given(NamedTuple):
    """Pairs that are to be compared."""

    prompts: Sequence[Chat]
    first: Sequence[str]
    second: Sequence[str]


def given_votes(pairs: Given, raw: Raw, projection: Projection) -> Votes:
    """Pairs whose winner is asked for; their outcomes mean nothing."""
    n = len(pairs.prompts)
    vectors = raw([*pairs.prompts, *pairs.prompts], [*pairs.first, *pairs.second])
    x, words = projection(vectors), _log_words(vectors)
    return Votes(
        x[:n] - x[n:], words[:n] - words[n:], np.zeros(n, int), np.full(n, -1), np.ones(n),
        np.zeros(n), np.ones(n),
    )  # fmt: skip


def votes_of(rows: pa.Table, raw: Raw, projection: Projection, codes: Mapping[str, int]) -> Votes:
    """One vote for each row, in their order.

    A pair is presented one way or the other by its id, so that outcomes are balanced and no constant can creep in. A
    single reply stands against the average one, which is zero in standardised columns.

    Args:
        rows: in PREFERENCES.
        raw: makes vectors of replies.
        projection: standardises them.
        codes: of the people that are told apart; others are -1.
    """
    columns = rows.select(
        ["preference_id", "prompt", "chosen", "rejected", "label", "margin", "weight", "user_id"]
    ).to_pydict()
    n = rows.num_rows
    paired = np.array([text is not None for text in columns["rejected"]], dtype=bool)
    flip = paired & np.array([int(i[:8], 16) % 2 == 1 for i in columns["preference_id"]], dtype=bool)
    seconds = np.flatnonzero(paired)
    vectors = raw(
        [*columns["prompt"], *(columns["prompt"][i] for i in seconds)],
        [*columns["chosen"], *(columns["rejected"][i] for i in seconds)],
    )
    x, words = projection(vectors), _log_words(vectors)
    difference, longer = x[:n].copy(), np.zeros(n)
    difference[seconds] -= x[n:]
    longer[seconds] = words[:n][seconds] - words[n:]
    sign = np.where(flip, -1.0, 1.0)
    liked = np.array([label is not False for label in columns["label"]], dtype=bool)
    tie = paired & (np.array([m if m is not None else 1.0 for m in columns["margin"]]) == 0)
    first_won = np.where(paired, ~flip, liked)
    outcome = np.where(tie, ties.TIE, np.where(first_won, ties.WIN, ties.LOSS))
    user = np.array([-1 if u is None else codes.get(u, -1) for u in columns["user_id"]], dtype=int)
    weight = np.asarray(columns["weight"], dtype=np.float64)
    return Votes(
        difference * sign[:, None], longer * sign, outcome, user, weight,
        (~paired).astype(float), paired.astype(float),
    )  # fmt: skip


def _log_words(vectors: np.ndarray) -> np.ndarray:
    """(B,) log of 1 + words: the first named feature, as it is before it is standardised."""
    return np.asarray(vectors[:, vectors.shape[1] - len(NAMES) + NAMES.index("log_words")])
