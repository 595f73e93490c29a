"""The curve of what votes of a person tell, on people whose taste is known."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from evaluation import k_shot
from evaluation.k_shot import Config, KnowsPeople, KShot, divide, measure, strangers
from reward_models import personal, ties
from reward_models.heldout import presented
from reward_models.length_bias import log_words
from reward_models.low_rank import LowRank, LowRankConfig, Votes
from reward_models.people import Person
from reward_models.scorer import Rewards
from reward_models.taste import Belief, updated
from reward_models.temperature import Temperature, Tempered
from reward_models.ties import outcome_loss
from tests.unit.reward_models.made import row, shorter_wins, table
from tests.unit.reward_models.test_personal import opposed

START = datetime(2026, 1, 1, tzinfo=UTC)
WEIGHTS, LOG_NU = np.array([0.8, -0.4, 0.0]), -0.6
STD = np.array([1.5, 1.0, 0.1, 0.6, 0.1])  # two directions of taste, then `low_rank.HABITS`
BASIS = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, -0.5]])


def vector(reply: str) -> np.ndarray:
    return np.array([float(number) for number in reply.split()])


def written(x: np.ndarray) -> str:
    return " ".join(f"{value:.3f}" for value in x)


@dataclass(frozen=True)
class Known:
    """A personal model whose every number is the one that made the votes; replies are their own vectors."""

    taste: LowRank
    people: dict[str, Person] = field(default_factory=dict)
    trained_on: frozenset[str] = frozenset()

    def votes(self, pairs) -> Votes:
        x = np.array([vector(a) - vector(b) for a, b in zip(pairs.first, pairs.second, strict=True)]).reshape(
            -1, 3
        )
        n, ones = len(x), np.ones(len(x))
        longer = log_words(pairs.first) - log_words(pairs.second)
        return Votes(x, longer, np.zeros(n, int), np.full(n, -1), ones, 0 * ones, ones)

    def person(self, user_id, agent=None, message="") -> Person:  # noqa: ARG002
        known = np.zeros(0)
        return self.people.get(user_id) or Person(self.taste.prior(known), known)

    def score(self, prompts, completions, user_ids=None, agents=None) -> Rewards:  # noqa: ARG002
        return Rewards(np.array([vector(c) @ WEIGHTS for c in completions]), np.zeros(len(completions)))

    def probabilities(self, difference) -> np.ndarray:
        return ties.probabilities(difference, LOG_NU)

    def save(self, directory: Path) -> None:
        raise NotImplementedError


def truth(trust: float = 1.0) -> Known:
    shared = Belief(np.r_[WEIGHTS, 0, LOG_NU, 0, 0], np.zeros((7, 7)))
    return Known(LowRank(shared, BASIS, np.diag(STD**2), np.zeros((0, 5)), trust))


def world(people: int, each: int, *, seed: int, spread: float = 1.0, **changes):
    """(rows, probabilities under each one's true taste): people drawn from the prior that `truth` has."""
    rng = np.random.default_rng(seed)
    made, oracle = [], {}
    for person in range(people):
        theta = spread * STD * rng.normal(size=5)
        for n in range(each):
            a, b = np.round(rng.normal(size=(2, 3)), 3)
            d = (a - b) @ (WEIGHTS + BASIS @ theta[:2])
            p = ties.probabilities(np.array([d]), LOG_NU + theta[3])[0]
            outcome = int((rng.random() > p.cumsum()).sum())
            won, lost = (a, b) if outcome != ties.LOSS else (b, a)
            name = f"{seed}-{person}-{n}"
            about = {
                "preference_id": hashlib.sha256(name.encode()).hexdigest(),
                "prompt_key": name, "evidence": [name], "user_id": f"Ünal {person}",
                "chosen": written(won), "rejected": written(lost), "margin": float(outcome != ties.TIE),
                "event_time": START + timedelta(minutes=n),
            }  # fmt: skip
            made.append(row(0, **{**about, **changes}))
            oracle[about["preference_id"]] = float(outcome_loss(p[None], np.array([outcome]))[0])
    return made, oracle


FEW = Config(ks=(0, 1, 2, 4, 8), min_people=5)


def test_votes_tell_more_the_more_there_are_and_never_more_than_the_truth() -> None:
    made, oracle = world(120, 42, seed=1)
    found = measure(truth(), table(made), seed=1)
    assert [point.k for point in found.points] == [0, 1, 2, 4, 8, 16, 32]
    assert (found.people, found.votes, found.notes) == (120, 1200, ())
    gains = [point.gain.value for point in found.points]
    assert all(b > a - 0.005 for a, b in itertools.pairwise(gains))
    later = [one for one in made if one["event_time"] >= START + timedelta(minutes=32)]
    best = found.shared.value - np.mean([oracle[one["preference_id"]] for one in later])
    assert 0.8 * best < gains[-1] < best  # 32 votes are nearly enough to know five numbers
    assert gains[3] > 0.4 * best
    assert found.points[4].gain.low > 0 and found.points[4].votes_tell.low > 0
    for point in found.points:
        assert point.gain.low < point.gain.value < point.gain.high and point.gain.n == 120
        assert point.votes_tell.value == pytest.approx(point.gain.value - gains[0])


def test_where_people_are_alike_votes_tell_nothing_and_the_curve_says_so() -> None:
    made, _ = world(100, 20, seed=2, spread=0.0)
    last = measure(truth(), table(made), seed=1, config=Config(ks=(0, 4, 16))).points[-1]
    assert last.k == 16 and last.gain.high < 0  # a model that expects people to differ loses by it
    off = measure(truth(trust=0.0), table(made), seed=1, config=Config(ks=(0, 4, 16)))
    assert [point.gain.value for point in off.points] == [0.0, 0.0, 0.0]
    assert len(off.notes) == 1 and "votes change nothing" in off.notes[0]


def test_two_people_step_by_step() -> None:
    made, _ = world(2, 9, seed=3)
    made = made[:7] + made[9:]  # who votes more counts no more
    made = [one | {"weight": 1.0 + 0.5 * (i % 2)} for i, one in enumerate(made)]
    model = truth()
    found = measure(model, table(made[::-1]), seed=1, config=Config(ks=(3,), min_people=2, min_later=4))
    losses = []
    for own in (table(made[:7]), table(made[7:])):  # in the order of their times
        shown = presented(own)
        votes = model.votes(k_shot.Given(shown.prompts, shown.first, shown.second))
        votes = replace(votes, outcome=shown.outcome, weight=own["weight"].to_numpy())
        prior, heard, asked = (
            model.taste.prior(),
            votes.take(np.arange(3)),
            votes.take(np.arange(3, own.num_rows)),
        )
        for belief in (None, prior, model.taste.learn(heard, prior)):
            losses.append(outcome_loss(model.taste.predict(asked, belief), asked.outcome).mean())
    shared, none, three = np.reshape(losses, (2, 3)).T
    assert [point.k for point in found.points] == [0, 3] and (found.people, found.votes) == (2, 10)
    assert found.shared.value == pytest.approx(shared.mean())
    assert found.points[0].gain.value == pytest.approx((shared - none).mean())
    assert found.points[1].gain.value == pytest.approx((shared - three).mean(), abs=1e-6)
    assert found.points[1].votes_tell.value == pytest.approx((none - three).mean(), abs=1e-6)


def test_all_votes_together_are_close_to_one_after_the_other() -> None:
    made, _ = world(60, 20, seed=4)
    model, losses = truth(), []
    found = measure(model, table(made), seed=1, config=Config(ks=(8,)))
    for person in range(60):
        own = table(made[20 * person : 20 * person + 20])
        shown = presented(own)
        votes = replace(
            model.votes(k_shot.Given(shown.prompts, shown.first, shown.second)), outcome=shown.outcome
        )
        belief, design, offset = model.taste.prior(), votes.personal_design(BASIS), model.taste.offset(votes)
        for i in range(8):
            (belief,) = updated([belief], [design[i]], int(votes.outcome[i]), offset=offset[i])
        asked = votes.take(np.arange(8, 20))
        losses.append(outcome_loss(model.taste.predict(asked, belief), asked.outcome).mean())
    one_by_one = found.shared.value - np.mean(losses)
    assert found.points[-1].gain.value == pytest.approx(one_by_one, rel=0.05)


def test_the_order_of_rows_does_not_matter_but_that_of_votes_does() -> None:
    made, _ = world(12, 14, seed=5)
    found = measure(truth(), table(made), seed=1, config=FEW)
    assert measure(truth(), table(made[::-1]), seed=1, config=FEW) == found
    backwards = [one | {"event_time": START - (one["event_time"] - START)} for one in made]
    assert measure(truth(), table(backwards), seed=1, config=FEW).shared != found.shared
    untimed = [one | {"event_time": None} for one in made]  # then their ids decide
    assert measure(truth(), table(untimed), seed=1, config=FEW).points[-1].k == 8


def test_later_votes_are_predicted_and_not_learned() -> None:
    made, _ = world(12, 14, seed=6)
    changed = [
        one | {"chosen": one["rejected"], "rejected": one["chosen"]}
        if one["event_time"] == START + timedelta(minutes=13)
        else one
        for one in made
    ]
    one, other = (measure(truth(), table(rows), seed=1, config=FEW) for rows in (made, changed))
    # Beliefs are the same, so what changes is the loss of one of the six later votes of each person.
    shown = presented(table([one for one in made if one["event_time"].minute == 13]))
    d = [(vector(a) - vector(b)) @ WEIGHTS for a, b in zip(shown.first, shown.second, strict=True)]
    p = ties.probabilities(np.array(d), LOG_NU)
    turned = np.where(shown.outcome == ties.TIE, ties.TIE, 2 - shown.outcome)
    moved = (outcome_loss(p, turned) - outcome_loss(p, shown.outcome)).mean() / 6
    assert other.shared.value - one.shared.value == pytest.approx(moved)
    assert other.votes == one.votes == 72


def test_where_few_people_have_many_votes_the_curve_ends_early_and_says_so() -> None:
    made, _ = world(9, 12, seed=7)
    more, _ = world(9, 8, seed=8)
    more = [one | {"user_id": f"{one['user_id']} again"} for one in more]
    found = measure(truth(), table(made + more), seed=1)
    assert [point.k for point in found.points] == [0, 1, 2, 4] and (found.people, found.votes) == (18, 108)
    assert found.notes == (
        "The curve ends after 4 votes: 9 people whom it had not met cast 8 votes and 4 later ones, 10 are needed "
        "for more.",
    )
    none = measure(truth(), table(made), seed=1)
    assert none.points == () and none.shared is None and none.people == 0
    assert "9 people whom it had not met cast 4 votes, 10 are needed" in none.notes[0]
    assert "0 people" in measure(truth(), table([]), seed=1).notes[0]
    assert "1 person" in measure(truth(), table(made[:12]), seed=1).notes[0]


def test_who_is_not_a_stranger_is_not_in_it() -> None:
    made, _ = world(12, 6, seed=9)
    names = sorted({one["user_id"] for one in made})
    met = {names[0]: truth().person(None), names[1]: truth().person(None)}
    extra = [
        made[0] | {"user_id": None, "preference_id": "0" * 64},
        made[1] | {"user_id": "", "preference_id": "1" * 64},
        made[20] | {"rejected": None, "label": True, "preference_id": "2" * 64},
        made[21] | {"weight": 0.0, "preference_id": "3" * 64},
        made[22] | {"preference_id": "4" * 64, "weight": 0.5, "event_time": START + timedelta(days=1)},
    ]
    kept = strangers(table(made + extra), met)
    assert kept.num_rows == 60  # a verdict that comes in another row is the same verdict
    assert set(kept["user_id"].to_pylist()) == set(names[2:])
    assert kept["user_id"].to_pylist() == sorted(kept["user_id"].to_pylist())
    everybody = dict.fromkeys(names, truth().person(None))
    assert measure(replace(truth(), people=everybody), table(made), seed=1).points == ()


def test_pairs_of_one_ranking_are_not_on_both_sides() -> None:
    person, place = np.repeat([0, 1], 8), np.tile(np.arange(8), 2)
    sitting = np.array([0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
    found = divide(person, place, sitting, Config(ks=(2,), min_people=2, min_later=4))
    # The first person's votes 3 and 4 are of one breath with the last that is learned.
    assert found.most == 2
    assert np.flatnonzero(found.later).tolist() == [4, 5, 6, 7, 10, 11, 12, 13, 14, 15]
    assert np.flatnonzero(found.kept).tolist() == [0, 1, 4, 5, 6, 7, *range(8, 16)]
    assert divide(person, place, sitting, Config(ks=(2,), min_people=2, min_later=5)).most == 0
    made, _ = world(12, 8, seed=10)
    ranked = [
        one | {"prompt_key": one["user_id"], "event_time": START}
        if one["event_time"] <= START + timedelta(minutes=3)
        else one
        for one in made
    ]
    assert measure(truth(), table(ranked), seed=1, config=Config(ks=(2,))).votes == 12 * 4


def test_a_temperature_counts_for_the_curve_too() -> None:
    made, _ = world(12, 12, seed=11)
    config = Config(ks=(0, 4))
    plain = measure(truth(), table(made), seed=1, config=config)
    hot = measure(
        Tempered(truth(), Temperature(3.0, 0.0, 3.0, 2.0, 4.0, 0.1, 1, 1)), table(made), seed=1, config=config
    )
    cold = measure(
        Tempered(truth(), Temperature(1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1, 1)), table(made), seed=1, config=config
    )
    assert cold == plain and hot.people == plain.people and hot.shared.value != plain.shared.value


def test_a_model_that_learns_nobody_has_no_curve(tiny_base: Path) -> None:
    from reward_models import bradley_terry

    rows = shorter_wins(40)
    fitted = bradley_terry.fit(
        bradley_terry.Config(components=2, max_tokens=64), rows, base=tiny_base, seed=0
    )
    assert not isinstance(fitted, KnowsPeople)
    assert measure(fitted, shorter_wins(40, first=900), seed=1) == KShot(notes=(k_shot.NOBODY,))


def test_the_real_personal_model_has_a_curve(tiny_base: Path) -> None:
    config = personal.Config(components=2, max_tokens=64, taste=LowRankConfig(rank=2, rounds=6))
    model = personal.fit(config, table(opposed(20, 12)), base=tiny_base, seed=0)
    assert isinstance(model, KnowsPeople) and model.taste.trust > 0
    new = [one | {"user_id": f"new {one['user_id']}"} for one in opposed(14, 14, seed=5, first=9000)]
    found = measure(model, table(new), seed=1)
    assert [point.k for point in found.points] == [0, 1, 2, 4, 8] and (found.people, found.votes) == (14, 84)
    # People want the opposite of each other: nothing is known of them before, nearly everything after a few votes.
    assert abs(found.points[0].gain.value) < 0.1
    assert found.points[3].gain.low > 0.2 and found.points[3].votes_tell.low > 0.2
    # What `learn` believes after the same votes predicts about as well.
    first = [one for i, one in enumerate(new) if i < 8 * 14]
    after = model.learn(table(first))
    said = k_shot.presented(table(new[8 * 14 :]))
    users = [one["user_id"] for one in new[8 * 14 :]]
    p = after.compare(said.prompts, said.first, said.second, user_ids=users)
    learned = outcome_loss(p, said.outcome).mean()
    assert found.shared.value - found.points[-1].gain.value == pytest.approx(learned, abs=0.05)


def test_plain_json_and_settings() -> None:
    made, _ = world(12, 6, seed=12)
    found = measure(truth(), table(made), seed=1)
    stored = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [point["k"] for point in stored["points"]] == [0, 1, 2] and stored["people"] == 12
    assert stored["points"][1]["gain"]["n"] == 12 and stored["shared"]["value"] > 0
    assert list(found.estimates()) == ["k_shot_0", "k_shot_1", "k_shot_2"]
    assert KShot().to_dict()["shared"] is None
    with pytest.raises(ValidationError):
        Config(ks=(-1,))
    with pytest.raises(ValidationError):
        Config(most=3)
