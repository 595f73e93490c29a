"""Which texts go through a model together: in batches of similar length, and split where they part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_MOST_TOGETHER = 64  # looked at for one beginning; more of them that begin alike get the same one


class Text(NamedTuple):
    """Token ids of one text, split where others may go on differently."""

    prefix: tuple[int, ...]
    rest: tuple[int, ...]


def split_where_they_part(texts: Sequence[tuple[int, ...]], pad: int) -> list[Text]:
    """Texts, split after what they have in common with enough others, so that most tokens are saved.

    In lexicographic order those that begin alike are neighbours; of the ways to divide that order into groups, each
    with its common beginning, the one is taken that saves most.

    Args:
        texts: token ids of N texts, none of them twice.
        pad: token id that never is the only one in a rest, as a classifier looks for the last token that is another.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    shared = [0] * len(order)  # with the one before
    for n in range(1, len(order)):
        shared[n] = _common(texts[order[n - 1]], texts[order[n]])
    most = [max((k for k, token in enumerate(texts[i]) if token != pad), default=0) for i in order]
    saved, begins, prefix = [0], [0], [0]
    for end in range(1, len(order) + 1):
        length = most[end - 1]
        best = (saved[end - 1], end - 1, 0)
        for start in range(end - 2, max(-1, end - 1 - _MOST_TOGETHER), -1):
            length = min(length, most[start], shared[start + 1])
            if not length:
                break
            best = max(best, (saved[start] + length * (end - start - 1), start, length))
        for kept, value in zip((saved, begins, prefix), best, strict=True):
            kept.append(value)
    found, end = [Text((), ())] * len(texts), len(order)
    while end:
        for n in range(begins[end], end):
            ids = texts[order[n]]
            found[order[n]] = Text(ids[: prefix[end]], ids[prefix[end] :])
        end = begins[end]
    return found


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two texts have in common before they part."""
    return next(
        (k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def batches(lengths: Sequence[int], most: int, *, each_costs: int) -> list[list[int]]:
    """Texts in batches, shortest first, such that tokens with padding and the cost of passes are fewest.

    Args:
        lengths: of N texts, in tokens.
        most: tokens of a batch, padding included; a longer text is a batch of its own.
        each_costs: of a pass, in tokens.
    """
    order = np.argsort(np.asarray(lengths, dtype=int), kind="stable")
    best, begins = [0.0], [0]
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        first = max(0, end - max(1, most // max(1, longest)))
        costs = [best[start] + (end - start) * longest + each_costs for start in range(first, end)]
        cheapest = int(np.argmin(costs))
        best.append(costs[cheapest])
        begins.append(first + cheapest)
    found: list[list[int]] = []
    end = len(order)
    while end:
        found.append(order[begins[end] : end].tolist())
        end = begins[end]
    return found[::-1]
