"""Metrics on rows that can be checked by hand."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from evaluation.compare import ROWS, check_rows, compare, outcomes, repetition
from evaluation.errors import EvaluationError


def row(prompt_id="p", **changed):
    fields = {
        "prompt_id": prompt_id,
        "prompt": "Where is Paris?",
        "user_id": None,
        "agent": "assistant",
        "champion": "In France.",
        "candidate": "It is in France.",
        "champion_reward": 0.0,
        "candidate_reward": 1.0,
        "champion_tokens": 10,
        "candidate_tokens": 20,
        "kl": 0.1,
    }
    return {**fields, **changed}


def table(*rows, schema=ROWS):
    return pa.Table.from_pylist(list(rows), schema=schema)


def test_metrics_by_hand():
    found = compare(
        table(
            row("a", candidate_reward=2.0, champion_tokens=10, candidate_tokens=30, kl=0.2),  # won
            row("b", candidate_reward=-1.0, champion_tokens=30, candidate_tokens=10, kl=0.6),  # lost
            row("c", candidate_reward=0.05, champion_tokens=10, candidate_tokens=20, kl=None),  # a tie
            row("c", candidate_reward=3.0, champion_tokens=10, candidate_tokens=10, kl=0.0),  # won
        ),
        seed=1,
        tie_margin=0.1,
    )
    assert (found.wins, found.ties, found.losses, found.rows, found.prompts) == (2, 1, 1, 4, 3)
    value = {name: metric.value for name, metric in found.metrics.items()}
    assert value["win_rate"] == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert value["reward_difference"] == pytest.approx((2 - 1 + 0.05 + 3) / 4)
    assert value["length_ratio"] == pytest.approx(70 / 60)
    assert value["kl_per_token"] == pytest.approx((0.2 * 30 + 0.6 * 10) / (30 + 10 + 10))
    assert found.metrics["win_rate"].n == 3
    assert found.metrics["kl_per_token"].n == 3
    assert found.notes == ("1 of 4 rows have no KL estimate and are left out of kl_per_token.",)


def test_repetition_counts_word_grams_that_came_before():
    assert repetition("one two three") == 0
    assert repetition("a b c d e f") == 0
    # "a b c d" twice: grams abcd bcda cdab dabc abcd, the last is a repeat.
    assert repetition("a b c d a b c d") == pytest.approx(1 / 5)
    assert repetition("No no NO no no no") == pytest.approx(2 / 3)
    found = compare(table(row("a", champion="x " * 20), row("b", candidate="y " * 20)), seed=1).metrics
    assert found["champion_repetition"].value == pytest.approx((16 / 17) / 2)
    assert found["repetition_difference"].value == pytest.approx(0)


def test_unfinished_replies_are_counted_when_known():
    schema = pa.schema([*ROWS, pa.field("candidate_finished", pa.bool_())])
    rows = table(
        row("a", candidate_finished=True),
        row("b", candidate_finished=False),
        row("c", candidate_finished=None),
        schema=schema,
    )
    found = compare(rows, seed=1).metrics
    assert found["candidate_unfinished"].value == 0.5
    assert found["candidate_unfinished"].n == 2
    assert "champion_unfinished" not in found


def test_no_rows_are_no_news():
    found = compare(table(), seed=1)
    assert math.isnan(found.metrics["win_rate"].value)
    assert found.metrics["win_rate"].n == found.rows == found.prompts == 0
    assert "kl_per_token" not in found.metrics
    assert found.to_dict()["metrics"]["win_rate"]["value"] is None


def test_empty_replies_are_counted_as_they_are():
    found = compare(table(row("a", champion_tokens=0, champion=""), row("b")), seed=1)
    assert found.metrics["length_ratio"].value == pytest.approx(40 / 10)


def test_ties_are_within_the_margin():
    rows = table(row(candidate_reward=0.5), row(candidate_reward=-0.5), row(candidate_reward=0.6))
    assert outcomes(rows, 0.5).tolist() == [0.5, 0.5, 1.0]
    assert outcomes(rows).tolist() == [1.0, 0.0, 1.0]


def test_the_order_of_rows_does_not_matter():
    rows = [row(f"p{i % 5}", candidate_reward=float(i % 3) - 1, kl=i / 10) for i in range(20)]
    forward, backward = compare(table(*rows), seed=3), compare(table(*rows[::-1]), seed=3)
    assert forward.wins == backward.wins
    for name, metric in forward.metrics.items():
        assert backward.metrics[name].low == pytest.approx(metric.low, abs=1e-12)
        assert backward.metrics[name].high == pytest.approx(metric.high, abs=1e-12)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (table(row()).drop_columns(["kl"]), "lacks columns"),
        (table(row()).set_column(0, "prompt_id", pa.array([None], pa.string())), "prompt_id"),
        (table(row()).set_column(8, "champion_tokens", pa.array(["many"])), "wrong type"),
        (table(row(champion_tokens=-1)), "fewer than 0"),
        (table(row(champion_reward=math.nan)), "finite"),
        (table(row(kl=math.inf)), "finite"),
    ],
)
def test_rows_that_cannot_be_compared_are_refused(rows, message):
    with pytest.raises(EvaluationError, match=message):
        compare(rows, seed=1)


def test_a_negative_margin_is_refused():
    with pytest.raises(EvaluationError, match="tie_margin"):
        compare(table(row()), seed=1, tie_margin=-1.0)


def test_more_columns_are_left_aside():
    more = table(row()).append_column("mood", pa.array(["good"]))
    assert check_rows(more).column_names == ROWS.names
