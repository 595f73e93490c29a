from __future__ import annotations

import numpy as np
import pytest

from reward_models.brigade import Config as BrigadeConfig
from reward_models.influence import Config as InfluenceConfig
from reward_models.labels import Config, Exposure, honest
from reward_models.rating_model import Served
from tests.unit.reward_models.made import row, table


def votes(count: int, user: str = "u", first: int = 0, **changes) -> list[dict]:
    return [row(first + i, user_id=user, **changes) for i in range(count)]


def test_explicit_votes_of_ordinary_people_stay_as_they_are():
    rows = table([vote for n in range(20) for vote in votes(3, f"user-{n}", 10 * n)])
    labels = honest(rows, Config())
    assert labels.rows.equals(rows.sort_by("preference_id"))
    assert labels.notes == []
    assert labels.weightless == {}


def test_copies_nobody_confirmed_are_left_out_and_the_notes_say_so():
    copies = votes(4, first=100, rule="copy", rejected=None, label=True)
    labels = honest(table([*votes(3), *copies]), Config())
    assert set(labels.rows["rule"].to_pylist()) == {"vote"}
    assert labels.weightless == {"implicit": 4}
    assert "4 rows of the rule `copy` are not learned from" in labels.notes[0]


def test_nobody_is_heard_louder_than_the_cap():
    rows = [vote for n in range(30) for vote in votes(2, f"user-{n}", 10 * n)] + votes(300, "loud", 1000)
    labels = honest(table(rows), Config(influence=InfluenceConfig(times_median=10, free=20, max_share=1.0)))
    weight = np.array(labels.rows["weight"].to_pylist())
    loud = np.array(labels.rows["user_id"].to_pylist()) == "loud"
    assert weight[loud].sum() == pytest.approx(20.0)
    assert weight[~loud].sum() == pytest.approx(60.0)
    assert labels.influence.capped == ("loud",)
    assert labels.to_dict()["influence"]["capped"] == ("loud",)


def seldom_rated(count: int = 4000) -> tuple[list[dict], Exposure]:
    """Replies of agent `busy` are rated four times as often as those of agent `quiet`."""
    dice = np.random.default_rng(0)
    agent = np.where(dice.random(count) < 0.5, "busy", "quiet").astype(object)
    rated = dice.random(count) < np.where(agent == "busy", 0.4, 0.1)
    rows = [
        row(i, rejected=None, label=True, rule="unpaired", user_id=f"user-{i % 200}", agent=agent[i],
            evidence=[f"f-{i}", f"i-{i}"])
        for i in np.flatnonzero(rated).tolist()
    ]  # fmt: skip
    users = np.array([f"user-{i % 200}" for i in range(count)], dtype=object)
    served = Served(users, agent, np.zeros((count, 0)), rated)
    return rows, Exposure([f"i-{i}" for i in range(count)], served)


def test_what_is_seldom_rated_weighs_more():
    rows, exposure = seldom_rated()
    labels = honest(table(rows), Config(together=False), exposure=exposure)
    weight, agent = (np.array(labels.rows[name].to_pylist()) for name in ("weight", "agent"))
    # Weights are as one over the shares that are rated: 0.4 / 0.1.
    assert weight[agent == "quiet"].mean() / weight[agent == "busy"].mean() == pytest.approx(4, rel=0.15)
    assert weight.mean() == pytest.approx(1.0, abs=1e-6)
    assert "weighted by how seldom" in labels.notes[0]
    unaware = honest(table(rows), Config(who_rates=False, together=False), exposure=exposure)
    assert set(unaware.rows["weight"].to_pylist()) == {1.0}


def test_rows_of_replies_that_were_not_seen_keep_their_weight():
    rows, exposure = seldom_rated()
    stranger = row(999_999, evidence=["f-x", "i-x"], user_id="stranger")
    labels = honest(table([*rows, stranger]), Config(together=False), exposure=exposure)
    kept = {r["preference_id"]: r["weight"] for r in labels.rows.to_pylist()}
    assert kept[stranger["preference_id"]] == 1.0


def test_a_brigade_is_not_heard():
    dice = np.random.default_rng(1)
    rows, number = [], 0
    for n in range(40):  # honest people, each about their own items and of two minds about length
        for _ in range(20):
            long, short = "word " * 30, "word " * 5
            first = dice.random() < 0.5
            rows.append(row(number, user_id=f"user-{n:02}", prompt_key=f"p-{number}",
                            chosen=long if first else short, rejected=short if first else long))  # fmt: skip
            number += 1
    for n in range(4):
        for _ in range(30):
            rows.append(row(number, user_id=f"brigade-{n}", prompt_key=f"p-{number}",
                            chosen="word " * 30, rejected="word " * 5))  # fmt: skip
            number += 1
    labels = honest(table(rows), Config())
    assert labels.brigade is not None
    assert sorted(labels.brigade.users) == [f"brigade-{n}" for n in range(4)]
    assert not any(str(u).startswith("brigade") for u in labels.rows["user_id"].to_pylist())
    assert labels.weightless == {"brigade": 120}
    assert "4 of 44 people act together and are not heard" in labels.notes[0]
    assert "brigade-" not in labels.notes[0]  # ids stay in the labels file
    lenient = honest(table(rows), Config(brigade=BrigadeConfig(factor=0.5)))
    assert lenient.rows.num_rows == len(rows)


@pytest.mark.parametrize("rows", [[], votes(1)])
def test_little_or_nothing_is_no_fault(rows):
    labels = honest(
        table(rows), Config(), exposure=Exposure([], Served(None, None, np.zeros((0, 0)), np.zeros(0, bool)))
    )
    assert labels.rows.num_rows == len(rows)


def test_people_of_a_niche_who_like_what_they_are_served_are_no_brigade():
    dice = np.random.default_rng(2)
    rows, number = [], 0
    for n in range(60):
        coder = n < 5
        for _ in range(20):
            reply = (
                "```\nx = 1\n```\n" * 3 + f"{number}"
                if coder
                else f"word {number} " * int(dice.integers(3, 9))
            )
            rows.append(row(number, user_id=f"user-{n:02}", prompt_key=f"p-{number}", chosen=reply, rejected=None,
                            label=bool(dice.random() < 0.85), rule="unpaired"))  # fmt: skip
            number += 1
    labels = honest(table(rows), Config())
    assert labels.brigade is not None and labels.brigade.judged == 60
    assert labels.brigade.users == {}
