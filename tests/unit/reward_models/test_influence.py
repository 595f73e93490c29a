"""The cap on one person's influence against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_models.influence import Config, capped, effective_size
from reward_models.scorer import RewardModelError


def test_the_share_is_of_what_is_left_after_capping() -> None:
    # 100, 10 x 10 people: share 0.2 of (c + 100) is c = 25; 2 equal parts of 11 people are 0.18, less than 0.2.
    ids = ["loud", *(f"p{i}" for i in range(10))]
    done = capped(ids, np.r_[100.0, np.full(10, 10.0)], Config(max_share=0.2, times_median=1000))
    np.testing.assert_allclose(done.weights, np.r_[25.0, np.full(10, 10.0)])
    assert done.report.capped == ("loud",)
    assert done.report.cap == pytest.approx(25)
    assert done.report.largest_share == pytest.approx(0.2)
    assert (done.report.before, done.report.after) == pytest.approx((200, 125))
    # Kish: 125^2 / (25^2 + 10 * 10^2) = 15625 / 1625.
    assert done.report.effective_people == pytest.approx(15625 / 1625)


def test_two_heavy_people_are_capped_together() -> None:
    # Two at the cap c and 20 people of 1: c = 0.1 (2 c + 20), c = 2.5; one alone capped would leave the other above.
    ids = ["a", "b", *(f"p{i}" for i in range(20))]
    done = capped(ids, np.r_[50.0, 7.0, np.ones(20)], Config(max_share=0.1, times_median=1000))
    np.testing.assert_allclose(done.weights[:2], 2.5)
    assert done.weights[:2] == pytest.approx(0.1 * done.weights.sum())


def test_among_many_the_median_caps() -> None:
    ids = [f"p{i}" for i in range(1000)] + ["loud"] * 900
    done = capped(ids, np.ones(1900), Config(times_median=5, free=0))
    assert done.report.cap == 5
    assert done.weights[1000:].sum() == pytest.approx(5)
    np.testing.assert_array_equal(done.weights[:1000], 1)


def test_few_votes_are_free_where_most_people_vote_once() -> None:
    ids = [f"p{i}" for i in range(1000)] + ["keen"] * 19 + ["loud"] * 40
    done = capped(ids, np.ones(1059), Config(times_median=5, free=20))
    assert done.report.capped == ("loud",)
    assert done.weights[1019:].sum() == pytest.approx(20)


def test_a_persons_rows_keep_their_proportions() -> None:
    done = capped(["a", "a", *"bcdefghij"], np.r_[30.0, 10.0, np.ones(9)], Config(max_share=0.2, free=0))
    assert done.weights[0] == pytest.approx(3 * done.weights[1])
    assert done.weights[:2].sum() == pytest.approx(0.2 * done.weights.sum())


def test_three_people_still_learn() -> None:
    # Two thirds each at most: 90 against 5 and 5 becomes c = 2/3 (c + 10), c = 20.
    done = capped(["a", "b", "c"], np.array([90.0, 5.0, 5.0]))
    np.testing.assert_allclose(done.weights, [20, 5, 5])
    one = capped(["a", "a"], np.array([90.0, 5.0]))
    np.testing.assert_array_equal(one.weights, [90, 5])
    two = capped(["a", "b"], np.array([90.0, 90.0]))
    np.testing.assert_array_equal(two.weights, 90)


def test_without_ids_nothing_is_lost_but_beside_many_people_they_are_at_most_half() -> None:
    alone = capped([None] * 5, np.ones(5))
    np.testing.assert_array_equal(alone.weights, 1)
    assert alone.report.people == 0 and alone.report.effective_people == 0
    for people in (40, 60):
        mixed = capped([None] * 900 + [f"p{i}" for i in range(people)], np.ones(900 + people))
        assert mixed.report.anonymous == pytest.approx(people)
        np.testing.assert_array_equal(mixed.weights[900:], 1)
    few = capped([None] * 30 + [f"p{i}" for i in range(40)], np.ones(70))
    np.testing.assert_array_equal(few.weights, 1)  # less than half as they are


def test_the_first_people_with_an_id_do_not_undo_what_is_learned_without() -> None:
    # Three equal people: f = 3 * 0.05 / 2 = 0.075, and 90 become 0.925 * 90 + 0.075 * 3 = 83.475.
    mixed = capped([None] * 90 + ["a", "b", "c"], np.ones(93))
    assert mixed.report.anonymous == pytest.approx(83.475)
    before = 900.0
    for people in range(1, 50):
        now = capped([None] * 900 + [f"p{i}" for i in range(people)], np.ones(900 + people)).report.anonymous
        assert 0 <= before - now <= 900 / 40 or (people > 40 and now == pytest.approx(people))
        before = now
    # One who says little beside one who says much hardly counts: Kish 101^2 / (100^2 + 1) people.
    two = capped([None] * 900 + ["a"] * 100 + ["b"], np.ones(1001), Config(equal_parts=2, free=1000))
    f = 101**2 / 10_001 * 0.05 / 2
    assert two.report.anonymous == pytest.approx((1 - f) * 900 + f * 101)


def test_nothing_and_no_weight() -> None:
    empty = capped([], np.zeros(0))
    assert empty.weights.shape == (0,) and empty.report.after == 0 and empty.report.cap is None
    none = capped(["a", "b"], np.zeros(2))
    np.testing.assert_array_equal(none.weights, 0)
    assert none.report.people == 0


def test_equal_people_are_left_alone() -> None:
    for n in (2, 19, 20, 21, 500):
        done = capped([f"ü{i}" for i in range(n)], np.full(n, 30.0))
        np.testing.assert_array_equal(done.weights, 30)
        assert done.report.effective_people == pytest.approx(n)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_weights_that_are_no_weights_are_refused(bad: float) -> None:
    with pytest.raises(RewardModelError, match="no finite number"):
        capped(["a", "b"], np.array([1.0, bad]))
    with pytest.raises(RewardModelError, match="differ in number"):
        capped(["a"], np.ones(2))


def test_the_given_weights_are_not_changed() -> None:
    given_weights = np.r_[1000.0, np.ones(30)]
    capped([str(i) for i in range(31)], given_weights)
    assert given_weights[0] == 1000


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1e6)), max_size=80),
    st.floats(0.01, 1),
    st.floats(1, 20),
)
def test_nobody_is_above_the_cap_and_nobody_gains(
    rows: list[tuple[int, float]], share: float, times: float
) -> None:
    config = Config(max_share=share, times_median=times, free=1)
    ids, weights = [str(who) for who, _ in rows], np.array([w for _, w in rows], dtype=float)
    done = capped(ids, weights, config)
    assert (done.weights <= weights + 1e-9).all()
    if done.report.people:
        allowed = max(share, config.equal_parts / done.report.people)
        assert done.report.largest_share <= allowed * (1 + 1e-6)
    again = capped(ids, done.weights, Config(max_share=share, free=1e12))  # by share alone
    np.testing.assert_allclose(again.weights, done.weights, rtol=1e-6, atol=1e-9)


def test_effective_size_of_equal_and_of_one_sided_weights() -> None:
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(np.array([5.0, 0, 0])) == pytest.approx(1)
    assert effective_size(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
