"""PREFERENCES rows as votes of a linear model, and which of them say something that it has not heard.

A row is named by all that is in it (`preference_id`), so the same verdict comes under another name when its weight,
its evidence or its texts are made anew: other settings of a rule, a person who says the same once more, personal data
that is replaced. A verdict is therefore known again by either of two marks, each with the person and the rule: what it
says (prompt, texts, which one won), and the events it rests on. A person who changes their mind says something else.
Of nobody in particular only the events tell, as two people may well say the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson

from reward_models import ties
from reward_models.features import NAMES
from reward_models.low_rank import Votes
from reward_models.projection import Projection
from reward_models.scorer import Chat

if TYPE_CHECKING:
    import pyarrow as pa


class Given(NamedTuple):
    """Pairs that are to be compared."""

    prompts: Sequence[Chat]
    first: Sequence[str]
    second: Sequence[str]


def given_votes(pairs: Given, vectors: np.ndarray, projection: Projection) -> Votes:
    """Pairs whose winner is asked for; their outcomes mean nothing.

    Args:
        pairs: N of them.
        vectors: (2 N, E + F) raw, of all first replies, then of all second ones.
        projection: standardises them.
    """
    n = len(pairs.prompts)
    x, words = projection(vectors), _log_words(vectors)
    return Votes(
        x[:n] - x[n:], words[:n] - words[n:], np.zeros(n, int), np.full(n, -1), np.ones(n),
        np.zeros(n), np.ones(n),
    )  # fmt: skip


def unlearned(rows: pa.Table, learned: Container[str]) -> pa.Table:
    """The rows that weigh something and are not among those a model has learned, by `preference_id`."""
    names, weights = rows["preference_id"].to_pylist(), rows["weight"].to_pylist()
    new = [name not in learned and (weight or 0) > 0 for name, weight in zip(names, weights, strict=True)]
    return rows if all(new) else rows.filter(np.array(new, dtype=bool))


def marks_of(rows: pa.Table) -> list[tuple[int, ...]]:
    """For each row the marks by which its verdict is known again, 64 bits each; see the module's text."""
    columns = rows.select(
        ["user_id", "rule", "prompt_key", "chosen", "rejected", "label", "margin", "evidence"]
    )
    found = []
    for user, rule, prompt, chosen, rejected, label, margin, evidence in zip(
        *(column.to_pylist() for column in columns.columns), strict=True
    ):
        marks = []
        if evidence:
            marks.append(_mark("events", user, rule, *sorted(evidence)))
        if user is not None and prompt is not None:
            tie = rejected is not None and margin == 0
            texts = sorted((chosen, rejected)) if tie else [chosen, rejected]
            marks.append(_mark("said", user, rule, prompt, tie, label, *texts))
        found.append(tuple(marks))
    return found


def unheard(marks: Sequence[tuple[int, ...]], heard: Container[int]) -> np.ndarray:
    """(N,) bool: verdicts of which no mark was heard before, nor in an earlier row."""
    met: set[int] = set()
    new = np.zeros(len(marks), dtype=bool)
    for i, each in enumerate(marks):
        new[i] = not any(mark in met or mark in heard for mark in each)
        met.update(each)
    return new


def _mark(*what: object) -> int:
    return int.from_bytes(hashlib.blake2b(orjson.dumps(what), digest_size=8).digest())


def replies_of(rows: pa.Table) -> tuple[list[Chat], list[str]]:
    """Prompts and replies that rows are about: all chosen ones, then the rejected ones of pairs."""
    columns = rows.select(["prompt", "chosen", "rejected"]).to_pydict()
    pairs = [i for i, text in enumerate(columns["rejected"]) if text is not None]
    prompts = [*columns["prompt"], *(columns["prompt"][i] for i in pairs)]
    return prompts, [*columns["chosen"], *(columns["rejected"][i] for i in pairs)]


def votes_of(
    rows: pa.Table, vectors: np.ndarray, projection: Projection, codes: Mapping[str, int] | None = None
) -> Votes:
    """One vote for each row, in their order.

    A pair is presented one way or the other by its id, so that outcomes are balanced and no constant can creep in. A
    single reply stands against the average one, which is zero in standardised columns.

    Args:
        rows: in PREFERENCES.
        vectors: (B, E + F) raw, of `replies_of(rows)`.
        projection: standardises them.
        codes: of the people that are told apart; others are -1.
    """
    columns = rows.select(["preference_id", "rejected", "label", "margin", "weight", "user_id"]).to_pydict()
    n = rows.num_rows
    paired = np.array([text is not None for text in columns["rejected"]], dtype=bool)
    flip = paired & np.array([int(i[:8], 16) % 2 == 1 for i in columns["preference_id"]], dtype=bool)
    seconds = np.flatnonzero(paired)
    x, words = projection(vectors), _log_words(vectors)
    difference, longer = x[:n].copy(), np.zeros(n)
    difference[seconds] -= x[n:]
    longer[seconds] = words[:n][seconds] - words[n:]
    sign = np.where(flip, -1.0, 1.0)
    liked = np.array([label is not False for label in columns["label"]], dtype=bool)
    tie = paired & (np.array([m if m is not None else 1.0 for m in columns["margin"]]) == 0)
    first_won = np.where(paired, ~flip, liked)
    outcome = np.where(tie, ties.TIE, np.where(first_won, ties.WIN, ties.LOSS))
    user = np.array([(codes or {}).get(u, -1) for u in columns["user_id"]], dtype=int)
    weight = np.asarray(columns["weight"], dtype=np.float64)
    return Votes(
        difference * sign[:, None], longer * sign, outcome, user, weight,
        (~paired).astype(float), paired.astype(float),
    )  # fmt: skip


def _log_words(vectors: np.ndarray) -> np.ndarray:
    """(B,) log of 1 + words: the first named feature, as it is before it is standardised."""
    return np.asarray(vectors[:, vectors.shape[1] - len(NAMES) + NAMES.index("log_words")])
