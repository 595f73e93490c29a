"""Which pairs an update learns from."""

from __future__ import annotations

import numpy as np

from tests.unit.reward_models.made import row, table
from training.pairs import choose_pairs


def test_only_decided_pairs_of_the_train_split_and_every_other_row_is_counted() -> None:
    rows = table(
        [row(n) for n in range(10)]
        + [row(20 + n, split=split) for n, split in enumerate(("evaluation", "test"))]
        + [row(30 + n, rejected=None, label=True) for n in range(3)]
        + [row(40 + n, margin=0.0) for n in range(4)]
        + [row(50, weight=0.0)]
    )
    chosen = choose_pairs(rows, most=6, seed=0)
    assert chosen.left_out == {"unpaired": 3, "tie_or_zero_weight": 5, "over_max_rows": 4}
    assert chosen.rows.num_rows + sum(chosen.left_out.values()) == 18  # the train split
    assert set(chosen.rows["split"].to_pylist()) == {"train"}
    assert {ids[0] for ids in chosen.rows["evidence"].to_pylist()} <= {f"event-{n}" for n in range(10)}


def test_nothing_left_out_is_an_empty_count() -> None:
    assert choose_pairs(table([row(1), row(2)]), most=2, seed=0).left_out == {}
    assert choose_pairs(table([]), most=2, seed=0).rows.num_rows == 0


def test_choice_and_order_do_not_depend_on_the_order_of_the_rows() -> None:
    rows = table([row(n, weight=0.1 + n % 5) for n in range(50)])
    wanted = choose_pairs(rows, most=20, seed=3).rows
    for seed in range(3):
        mixed = rows.take(np.random.default_rng(seed).permutation(50))
        assert choose_pairs(mixed, most=20, seed=3).rows.equals(wanted)
    other = choose_pairs(rows, most=20, seed=4).rows
    assert set(other["preference_id"].to_pylist()) != set(wanted["preference_id"].to_pylist())


def test_a_new_row_displaces_at_most_one() -> None:
    before = choose_pairs(table([row(n) for n in range(50)]), most=20, seed=3).rows
    after = choose_pairs(table([row(n) for n in range(51)]), most=20, seed=3).rows
    kept = set(before["preference_id"].to_pylist()) & set(after["preference_id"].to_pylist())
    assert len(kept) >= 19


def test_heavier_rows_are_taken_in_proportion() -> None:
    # One pair of two, weights 3 and 1: the heavier one is taken with probability 3/4.
    rows = table([row(1, weight=3.0), row(2, weight=1.0)])
    heavy = rows["preference_id"][0].as_py()
    taken = [choose_pairs(rows, most=1, seed=s).rows["preference_id"][0].as_py() for s in range(600)]
    share = np.mean([t == heavy for t in taken])
    assert abs(share - 0.75) < 0.06  # 3.4 standard deviations
