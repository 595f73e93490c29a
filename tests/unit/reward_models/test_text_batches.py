"""Texts that go through a model together: fewest tokens, and the longest beginnings in common."""

from __future__ import annotations

import itertools
import random

import pytest

from reward_models.text_batches import Text, batches, split_where_they_part


def _cost(lengths: list[int], found: list[list[int]], each: int) -> int:
    return sum(len(b) * max(lengths[i] for i in b) + each for b in found)


def test_batches_by_hand() -> None:
    # Together 3 * 10 + 5 = 35 tokens, in two passes 2 * 5 + 5 + 10 + 5 = 30, in three 4 + 5 + 10 + 15 = 34.
    assert batches([10, 4, 5], 100, each_costs=5) == [[1, 2], [0]]
    assert batches([10, 4, 5], 100, each_costs=30) == [[1, 2, 0]]
    assert batches([10, 4, 5], 100, each_costs=0) == [[1], [2], [0]]
    assert batches([10, 10, 10, 10], 20, each_costs=5) == [[0, 1], [2, 3]]
    assert batches([50, 3], 20, each_costs=5) == [[1], [0]]  # a long text is a batch of its own
    assert batches([0, 0], 20, each_costs=5) == [[0, 1]]
    assert batches([], 20, each_costs=5) == []


@pytest.mark.parametrize("seed", range(8))
def test_no_other_division_of_the_sorted_texts_costs_less(seed: int) -> None:
    dice = random.Random(seed)
    lengths = [dice.randint(1, 30) for _ in range(9)]
    found = batches(lengths, 60, each_costs=7)
    assert sorted(i for b in found for i in b) == list(range(9))
    order = sorted(range(9), key=lambda i: lengths[i])
    every = []
    for cuts in itertools.product([False, True], repeat=8):
        ends = [k + 1 for k, cut in enumerate(cuts) if cut] + [9]
        parts = [order[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        if all(len(p) * max(lengths[i] for i in p) <= 60 for p in parts):
            every.append(_cost(lengths, parts, 7))
    assert _cost(lengths, found, 7) == min(every)


def test_texts_are_split_where_most_is_saved() -> None:
    system = (7, 7)
    texts = [
        (*system, 1, 2, 3, 4),  # four tokens in common with the next: 4 saved
        (*system, 1, 2, 5),
        (*system, 8, 1),  # two alone: they share what all of them begin with
        (*system, 9, 1),
        (3,),  # nothing in common
    ]
    assert split_where_they_part(texts, pad=0) == [
        Text((7, 7, 1, 2), (3, 4)),
        Text((7, 7, 1, 2), (5,)),
        Text((7, 7), (8, 1)),
        Text((7, 7), (9, 1)),
        Text((), (3,)),
    ]
    assert split_where_they_part([], pad=0) == []


def test_a_rest_is_never_empty_nor_padding_alone() -> None:
    inside, longer = (5, 6, 0), (5, 6, 0, 8)  # the first text is the beginning of the second
    assert split_where_they_part([longer, inside], pad=0) == [Text((5,), (6, 0, 8)), Text((5,), (6, 0))]
    assert split_where_they_part([(5, 9, 1), (5, 9, 9)], pad=9) == [Text((), (5, 9, 1)), Text((), (5, 9, 9))]
    assert split_where_they_part([(0, 0), (0, 0, 1)], pad=0) == [Text((), (0, 0)), Text((), (0, 0, 1))]


def test_a_beginning_of_very_many_is_still_the_same_one() -> None:
    texts = [(1, 2, 3, 10 + n) for n in range(300)]
    assert {text.prefix for text in split_where_they_part(texts, pad=0)} == {(1, 2, 3)}
