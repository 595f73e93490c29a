from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from feedback.splits import SplitConfig, prompt_split, row_split, user_split

CONFIG = SplitConfig()
USERS = [f"user {n}" for n in range(20_000)]


def test_the_draw_never_changes():
    # A change here would train on what earlier versions held out.
    drawn = [user_split(f"u{n}", CONFIG) for n in range(16)]
    assert drawn == ["train"] * 10 + ["test"] + ["train"] * 3 + ["evaluation", "train"]
    held_out = {
        n: prompt_split(f"p{n}", CONFIG) for n in range(16) if prompt_split(f"p{n}", CONFIG) != "train"
    }
    assert held_out == {0: "test", 2: "test", 6: "test", **dict.fromkeys((8, 9, 12, 14), "evaluation")}


def test_shares_are_as_configured():
    shares = Counter(user_split(user, CONFIG) for user in USERS)
    # Three standard deviations of a share of 0.15 among 20,000 are 0.0076.
    assert shares["test"] / len(USERS) == pytest.approx(0.15, abs=0.0076)
    assert shares["evaluation"] / len(USERS) == pytest.approx(0.15, abs=0.0076)


def test_users_and_prompts_are_drawn_apart():
    both = Counter((user_split(key, CONFIG), prompt_split(key, CONFIG)) for key in USERS)
    assert both["test", "test"] / len(USERS) == pytest.approx(0.15**2, abs=0.0032)


def test_a_larger_test_share_keeps_what_was_in_test():
    larger = SplitConfig(test_users=0.3)
    assert all(user_split(u, larger) == "test" for u in USERS if user_split(u, CONFIG) == "test")


@given(st.lists(st.none() | st.sampled_from(USERS), max_size=4), st.sampled_from(USERS))
@settings(derandomize=True, deadline=None, max_examples=200, database=None)
def test_a_row_is_in_a_split_only_if_all_agree(users, prompt):
    row = row_split(users, prompt, CONFIG)
    drawn = {user_split(user, CONFIG) for user in users if user is not None} | {prompt_split(prompt, CONFIG)}
    assert row == (drawn.pop() if len(drawn) == 1 else None)


def test_an_axis_without_shares_imposes_nothing():
    prompts_only = SplitConfig(test_users=0, evaluation_users=0)
    assert all(row_split([u], USERS[0], prompts_only) == prompt_split(USERS[0], CONFIG) for u in USERS[:50])
    nothing = SplitConfig(test_users=0, evaluation_users=0, test_prompts=0, evaluation_prompts=0)
    assert row_split(["u"], "p", nothing) == "train"


def test_another_seed_is_another_draw():
    other = SplitConfig(seed_text="other")
    assert any(user_split(u, other) != user_split(u, CONFIG) for u in USERS[:100])


@pytest.mark.parametrize(
    "shares", [{"test_users": 1}, {"test_users": 0.6, "evaluation_users": 0.4}, {"x": 1}]
)
def test_something_is_left_for_training(shares):
    with pytest.raises(ValidationError):
        SplitConfig(**shares)
