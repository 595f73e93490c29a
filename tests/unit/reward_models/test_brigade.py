"""Groups that vote together are found, honest people of any taste are not, against simulated truth."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import betabinom

from reward_models.brigade import Config, detect
from reward_models.brigade_directions import beta_binomial_tail, habits
from reward_models.brigade_items import dense_groups, group_chance
from reward_models.scorer import RewardModelError
from tests.unit.reward_models.made import row, table

START = datetime(2026, 3, 1, tzinfo=UTC)
DAYS, COLUMNS = 10, 6


class Product:
    """People who vote on pairs of replies with COLUMNS features; each honest one has a taste of their own."""

    def __init__(self, seed: int, honest: int = 60, taste: float = 0.5, items: int = 120):
        self.dice = np.random.default_rng(seed)
        self.x = self.dice.normal(size=(items, COLUMNS))
        self.shared = self.dice.normal(size=COLUMNS)
        self.rows: list[dict[str, Any]] = []
        self.vectors: list[np.ndarray] = []
        for person in range(honest):
            weights = self.shared + taste * self.dice.normal(size=COLUMNS)
            for item in self.dice.choice(items, self.dice.integers(8, 40), replace=False):
                chance = 1 / (1 + np.exp(-self.x[item] @ weights))
                self.vote(f"honest-{person}", int(item), self.dice.random() < chance, self.any_time())

    def any_time(self) -> datetime:
        return START + timedelta(days=float(self.dice.uniform(0, DAYS)))

    def vote(self, user: str | None, item: int, first: bool, when: datetime, margin: float = 1.0) -> None:
        texts = [f"reply {item} ä", f"reply {item} b"]
        chosen, other = texts if first else texts[::-1]
        self.rows.append(
            row(
                len(self.rows), prompt_key=f"p{item}", chosen=chosen, rejected=other, user_id=user,
                event_time=when, margin=margin,
            )
        )  # fmt: skip
        self.vectors.append(self.x[item] if first else -self.x[item])

    def brigade(self, members: int, votes: int, column: int | None, when: datetime | None = None) -> None:
        """Members vote for more of a column, or, without one, all alike for what was agreed for each item."""
        agreed = self.dice.random(len(self.x)) < 0.5
        for member in range(members):
            for item in self.dice.choice(len(self.x), votes, replace=False):
                first = bool(agreed[item] if column is None else self.x[item, column] > 0)
                at = (
                    self.any_time()
                    if when is None
                    else when + timedelta(minutes=float(self.dice.uniform(0, 40)))
                )
                self.vote(f"brigade-{member}", int(item), first, at)

    def found(self, vectors: bool = True, config: Config | None = None) -> tuple[set[str], set[str]]:
        """(the brigade, the honest) who are flagged."""
        result = detect(table(self.rows), config, np.array(self.vectors) if vectors else None)
        flagged = np.array([r["user_id"] in result.users for r in self.rows])
        np.testing.assert_array_equal(result.factors, np.where(flagged, 0.0, 1.0))
        ours = {name for name in result.users if name.startswith("brigade")}
        return ours, set(result.users) - ours


@pytest.mark.parametrize("seed", range(3))
def test_one_direction_is_found(seed: int) -> None:
    product = Product(seed)
    against = int(np.argmin(product.shared))  # what nobody else likes
    product.brigade(4, 25, against)
    ours, honest = product.found()
    assert len(ours) == 4 and not honest


@pytest.mark.parametrize("seed", range(3))
def test_the_same_votes_on_the_same_items_are_found_without_vectors(seed: int) -> None:
    product = Product(seed)
    product.brigade(4, 60, None)
    ours, honest = product.found(vectors=False)
    assert len(ours) == 4 and not honest


@pytest.mark.parametrize("taste", [0.0, 0.5, 2.0])
def test_honest_people_of_any_taste_are_not_flagged(taste: float) -> None:
    wrong = [len(Product(seed, taste=taste).found()[1]) for seed in range(6)]
    assert sum(wrong) <= 0.02 * 6 * 60, wrong


def test_an_easy_item_that_everybody_agrees_on_flags_nobody() -> None:
    product = Product(0, honest=0)
    for person in range(40):
        for item in range(20):
            product.vote(f"honest-{person}", item, True, product.any_time())
    assert product.found() == (set(), set())


def test_an_honest_burst_flags_nobody() -> None:
    product = Product(1)
    for r in product.rows:  # a launch: half of the people vote within one hour
        if int(r["user_id"].split("-")[1]) % 2:
            r["event_time"] = START + timedelta(days=5, minutes=float(product.dice.uniform(0, 60)))
    assert product.found() == (set(), set())


def test_a_burst_shows_a_brigade_that_time_alone_would_hide() -> None:
    caught = {True: 0, False: 0}
    for seed in range(6):
        for burst in caught:
            product = Product(seed)
            column = int(np.argsort(product.shared)[COLUMNS // 2])
            product.brigade(4, 9, column, START + timedelta(days=4, hours=3) if burst else None)
            ours, honest = product.found()
            caught[burst] += len(ours)
            assert len(honest) <= 1
    assert caught[True] > caught[False]


def test_who_voted_outside_the_window_is_found_with_the_others() -> None:
    product = Product(0)
    against = int(np.argmin(product.shared))
    product.brigade(4, 25, against, START + timedelta(days=4, hours=3))
    late = [i for i, r in enumerate(product.rows) if r["user_id"] == "brigade-3"]
    for i in late:
        product.rows[i]["event_time"] += timedelta(days=2)
    ours, honest = product.found()
    assert len(ours) == 4 and not honest


def test_two_who_agree_are_no_brigade() -> None:
    product = Product(2)
    product.brigade(2, 60, None)
    assert product.found() == (set(), set())


def test_a_vote_said_again_counts_once() -> None:
    product = Product(3)
    for member in range(3):
        for _ in range(50):
            product.vote(f"brigade-{member}", 0, True, product.any_time())
    assert product.found() == (set(), set())


def test_anonymous_rows_are_neither_judged_nor_changed() -> None:
    product = Product(4)
    for item in range(100):
        product.vote(None, item % 120, bool(product.x[item % 120, 0] > 0), product.any_time())
    product.rows[-1]["event_time"] = None
    assert product.found() == (set(), set())


def test_thumbs_are_compared_too() -> None:
    dice = np.random.default_rng(0)
    rows = []
    truth = dice.random(100)
    for person in range(43):
        for item in dice.choice(100, 60, replace=False):
            up = bool(item % 2) if person >= 40 else bool(dice.random() < truth[item])
            rows.append(
                row(
                    len(rows), user_id=f"{person}", prompt_key=f"p{item}", chosen="one reply",
                    rejected=None, label=up, margin=None,
                )
            )  # fmt: skip
    assert set(detect(table(rows)).users) == {"40", "41", "42"}


def test_reasons_name_the_column_and_the_votes() -> None:
    product = Product(0)
    product.brigade(4, 25, int(np.argmin(product.shared)))
    names = [f"trait {i}" for i in range(COLUMNS)]
    result = detect(table(product.rows), directions=np.array(product.vectors), names=names)
    assert (
        f"25 of 25 votes for more of trait {int(np.argmin(product.shared))}, as 3 others"
        in (result.users["brigade-0"])
    )


def test_few_people_and_no_rows_flag_nobody() -> None:
    assert detect(table([])).users == {}
    assert detect(table([]), directions=np.zeros((0, 3))).factors.shape == (0,)
    product = Product(5, honest=4)
    product.brigade(4, 60, 0)
    assert product.found() == (set(), set())


def test_vectors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RewardModelError, match="Directions"):
        detect(table([row(0)]), directions=np.zeros((2, 3)))
    with pytest.raises(RewardModelError, match="Directions"):
        detect(table([row(0)]), directions=np.array([[np.nan]]))


def test_the_order_of_rows_does_not_matter() -> None:
    product = Product(0)
    product.brigade(4, 25, int(np.argmin(product.shared)))
    rows, vectors = table(product.rows), np.array(product.vectors)
    order = np.random.default_rng(0).permutation(len(vectors))
    there = detect(rows.take(pa.array(order)), directions=vectors[order])
    assert there.users == detect(rows, directions=vectors).users


def test_beta_binomial_tail_equals_scipys() -> None:
    k, n = np.array([0, 3, 21, 7]), np.array([5, 8, 21, 30])
    mean, spread = np.array([0.2, 0.5, 0.3, 0.05]), np.array([0.1, 0.3, 0.05, 0.03])
    a, b = mean * (1 - spread) / spread, (1 - mean) * (1 - spread) / spread
    np.testing.assert_allclose(
        beta_binomial_tail(k, n, mean, spread), betabinom.sf(k - 1, n, a, b), rtol=1e-6
    )
    # By hand: uniform chance (mean 1/2, spread 1/3) makes every count of 4 equally likely: P(K >= 3) = 2/5.
    one = beta_binomial_tail(np.array([3]), np.array([4]), np.array([0.5]), np.array([1 / 3]))
    np.testing.assert_allclose(one, 0.4)


def test_habits_are_recovered_and_a_brigade_does_not_widen_them() -> None:
    dice = np.random.default_rng(1)
    n = dice.integers(20, 60, 2000)
    mean, spread = 0.4, 0.1
    chance = dice.beta(mean * (1 - spread) / spread, (1 - mean) * (1 - spread) / spread, 2000)
    k = dice.binomial(n, chance)
    alone = habits(k[:, None], n, 0.1, 0.001)
    k[:100] = n[:100]  # five percent always do
    joined = habits(k[:, None], n, 0.1, 0.001)
    for got in (alone, joined):
        assert got[0][0] == pytest.approx(mean, abs=0.04)
        assert got[1][0] == pytest.approx(spread, abs=0.04)


def test_a_bridge_joins_no_groups_and_a_chain_is_none() -> None:
    clique = [(a, b) for a in range(4) for b in range(a)]
    far = [(a + 10, b + 10) for a, b in clique]
    u, v = np.array([*clique, *far, (3, 10)]).T
    groups = sorted(g.tolist() for g in dense_groups(u, v, Config()))
    assert groups == [[0, 1, 2, 3], [10, 11, 12, 13]]
    chain = np.arange(9)
    assert dense_groups(chain, chain + 1, Config()) == []


def test_chance_of_a_group_is_the_expected_number_of_them() -> None:
    # 10 people have 120 triples; three edges of probability 0.1: 120 * 0.001.
    assert group_chance(10, 3, 3, 0.1) == pytest.approx(0.12)
    # Five of the six pairs of four: 210 sets, 6 ways: 210 * 6 * 1e-5.
    assert group_chance(10, 4, 5, 0.1) == pytest.approx(0.0126)
    assert group_chance(1000, 3, 2, 0.5) == 1
