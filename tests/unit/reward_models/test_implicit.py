from __future__ import annotations

import math

import numpy as np
import pytest

from reward_models import implicit
from reward_models.implicit import Config
from tests.unit.reward_models.made import row, table


def liked(n, text, *, rule="unpaired", label=True, user="u", **changes):
    return row(n, chosen=text, rejected=None, label=label, rule=rule, user_id=user, prompt_key="p", **changes)


def a_log(agree: int, disagree: int, alone: int = 5, rule: str = "copy"):
    """Copies: some of replies that the same person liked, some of replies they disliked, some of others."""
    rows = []
    for i in range(agree + disagree):
        rows.append(liked(2 * i, f"reply {i:04}", label=i < agree))
        rows.append(liked(2 * i + 1, f"reply {i:04}", rule=rule, weight=0.3))
    rows += [liked(10_000 + i, f"alone {i:04}", rule=rule, weight=0.3) for i in range(alone)]
    return table(rows)


def test_a_copy_is_worth_what_explicit_verdicts_say():
    rows = a_log(800, 200)
    found = implicit.worth(rows, Config())
    copies = np.array(rows["rule"].to_pylist()) == "copy"
    # 80 % agree: the expected vote is 2 * 0.8 - 1.
    assert found.weight[copies] == pytest.approx(0.6, abs=0.03)
    assert (found.weight[~copies] == 1.0).all()
    assert not found.turned.any()
    kind = found.kinds["copy"]
    assert (kind.rows, kind.compared, kind.agreed, kind.turned) == (1005, 1000, 0.8, 0)


def test_the_posterior_of_one_kind_is_the_one_worked_out_by_hand():
    # All replies of one length: 12 of 12 agree, prior N(0, 1). The mode solves m = 12 (1 - sigmoid(m)).
    rows = a_log(12, 0, alone=1)
    weight = implicit.worth(rows, Config(length_std=0.0)).weight[-1]
    mode = 0.0
    for _ in range(200):
        p = 1 / (1 + math.exp(-mode))
        mode -= (mode - 12 * (1 - p)) / (1 + 12 * p * (1 - p))
    p = 1 / (1 + math.exp(-mode))
    variance = 1 / (1 + 12 * p * (1 - p))
    mean = 1 / (1 + math.exp(-mode / math.sqrt(1 + math.pi * variance / 8)))
    assert weight == pytest.approx(2 * mean - 1, abs=1e-5)


def test_what_speaks_for_the_opposite_is_turned():
    rows = a_log(50, 450)  # here people copy what they mean to repair
    found = implicit.worth(rows, Config())
    changed = implicit.apply(rows, found)
    copies = np.flatnonzero(np.array(rows["rule"].to_pylist()) == "copy")
    assert found.turned[copies].all()
    assert set(changed["label"].take(copies).to_pylist()) == {False}
    assert changed["weight"].take(copies).to_numpy() == pytest.approx(0.8, abs=0.05)
    assert changed.schema == rows.schema


@pytest.mark.parametrize(("agree", "disagree"), [(0, 0), (9, 0)])
def test_what_nobody_confirmed_weighs_nothing(agree, disagree):
    rows = a_log(agree, disagree)
    copies = np.array(rows["rule"].to_pylist()) == "copy"
    assert implicit.worth(rows, Config()).weight[copies] == pytest.approx(0.0)


def test_only_the_same_persons_verdict_counts():
    rows = [liked(i, f"reply {i:04}", user="somebody else") for i in range(50)]
    rows += [liked(100 + i, f"reply {i:04}", rule="copy") for i in range(50)]
    assert implicit.worth(table(rows), Config()).kinds["copy"].compared == 0


def test_a_retry_is_compared_with_what_was_said_of_the_reply_it_turned_down():
    rows = []
    for i in range(200):
        rows.append(liked(2 * i, f"first {i:04}", label=i < 50))
        pair = row(2 * i + 1, chosen="later", rejected=f"first {i:04}", rule="retry", margin=0.5, weight=0.4)
        rows.append({**pair, "user_id": "u", "prompt_key": "p"})
    found = implicit.worth(table(rows), Config())
    assert found.kinds["retry"].agreed == 0.75
    changed = implicit.apply(table(rows), found)
    retries = [r for r in changed.to_pylist() if r["rule"] == "retry"]
    assert {r["chosen"] for r in retries} == {"later"}
    assert all(r["weight"] == pytest.approx(0.5, abs=0.06) for r in retries)


def test_length_changes_what_a_copy_is_worth():
    rng = np.random.default_rng(0)
    rows = []
    for i in range(3000):
        words = int(rng.integers(1, 100))
        text = f"{i:04} " + "w " * words
        likes = rng.random() < 1 / (1 + math.exp(-(math.log1p(words + 1) - 3.0)))
        rows.append(liked(2 * i, text, label=bool(likes)))
        rows.append(liked(2 * i + 1, text, rule="copy"))
    found = implicit.worth(table(rows), Config(length_std=1.0))
    made = table(rows).to_pylist()
    sign = np.where(found.turned, -1, 1) * found.weight
    p = np.array([(1 + s) / 2 for s, r in zip(sign, made, strict=True) if r["rule"] == "copy"])
    words = np.array([len(r["chosen"].split()) for r in made if r["rule"] == "copy"])
    truth = 1 / (1 + np.exp(-(np.log1p(words) - 3.0)))
    assert np.abs(p - truth).max() < 0.06


def test_rows_without_implicit_ones_stay_as_they_are():
    rows = table([liked(1, "a"), row(2)])
    assert implicit.apply(rows, implicit.worth(rows, Config())).equals(rows)
    empty = table([])
    assert implicit.apply(empty, implicit.worth(empty, Config())).num_rows == 0
