"""A reward model's case from held-out votes, and verdicts on both sides of every threshold."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from evaluation import gates, reward_case, reward_gates
from evaluation.errors import EvaluationError, GateError
from evaluation.estimates import Estimate, of_sums
from evaluation.k_shot import KShot, Point
from evaluation.reward_case import Pairs, RewardCase, judge
from evaluation.verdicts import Verdict
from evaluation.worst_users import worst_users
from reward_models import bradley_terry, length_bias, ties
from reward_models.drift import Drift
from reward_models.heldout import Heldout
from reward_models.scorer import RewardModelError, Rewards
from tests.unit.reward_models.made import row, shorter_wins, table, text

GATES = ["calibration", "data_freshness", "heldout_accuracy", "length_correlation", "worst_decile_users"]
START = datetime(2026, 1, 1, tzinfo=UTC)
CALM = Drift("none", "Not tested.", 3.0, math.nan, math.nan, (), math.nan, (100, 10), (0, 0))


def simulated(
    seed: int,
    *,
    users: int = 60,
    votes: int = 12,
    scale: float = 1.0,
    love: float = 0.0,
    inverted: int = 0,
    liked: float = 0.0,
) -> Pairs:
    """People who choose by quality, `liked` of it length; the model says `scale` times that and `love` for length.

    The first `inverted` of the people choose the other way round.
    """
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(users), votes)
    quality, longer = rng.normal(0, 1.5, len(who)), rng.normal(0, 1, len(who))
    quality = quality + liked * longer
    p = ties.probabilities(np.where(who < inverted, -quality, quality), -0.4)
    outcome = (rng.random(len(who))[:, None] > p.cumsum(axis=1)).sum(axis=1)
    said = ties.probabilities(scale * quality + love * longer, -0.4)
    names = np.array([f"Usér {w}" for w in who], dtype=object)
    return Pairs(
        Heldout(said, outcome, names), longer, CALM, float(np.sum(outcome == ties.TIE) / max(1, len(who)))
    )


@pytest.fixture(scope="module")
def good() -> RewardCase:
    return judge(simulated(1), seed=1)


def verdict(case: RewardCase, gate: str, **settings) -> Verdict:
    (found,) = reward_gates.judge_all(case, {gate: settings})
    assert found.gate == gate and found.why and found.formula
    return found


def test_gates_are_found_by_module_name_and_apart_from_those_of_policies():
    assert reward_gates.names() == GATES
    assert not set(GATES) & set(gates.names()) and "win_rate" in gates.names()
    with pytest.raises(GateError, match=r"calibration.*worst_decile_users"):
        reward_gates.configure({"win_rate": {}})
    with pytest.raises(GateError, match="kl_budget"):
        gates.configure({"calibration": {}})
    with pytest.raises(GateError, match=r"(?s)marign.*min_users"):
        reward_gates.configure({"heldout_accuracy": {"marign": 0.1}})
    ready = reward_gates.configure({name: {} for name in GATES})
    assert [name for name, _, _ in ready] == GATES
    assert all(
        config.model_config["frozen"] and config.model_config["extra"] == "forbid" for _, _, config in ready
    )


class Cheap:
    class Config(BaseModel):
        least_votes: int = 1

    @staticmethod
    def judge(case, config):
        outcome = "pass" if case.votes >= config.least_votes else "fail"
        return Verdict(
            "votes", outcome, case.votes, 0, 0, case.users, config.least_votes, "votes >= least", "w"
        )


def test_a_gate_of_ones_own(good):
    own = f"{__name__}:Cheap"
    first, second = reward_gates.judge_all(good, {own: {"least_votes": 10_000}, "heldout_accuracy": {}})
    assert (first.verdict, second.verdict) == ("fail", "pass")


def test_a_good_model_passes_everything(good):
    found = reward_gates.judge_all(good, {name: {} for name in GATES})
    assert {v.gate: v.verdict for v in found} == dict.fromkeys(GATES, "pass")


@pytest.mark.parametrize(
    ("gate", "numbers", "settings", "expected"),
    [
        ("heldout_accuracy", (0.6, 0.51, 0.69), {}, "pass"),
        ("heldout_accuracy", (0.6, 0.50, 0.70), {}, "insufficient_data"),
        ("heldout_accuracy", (0.5, 0.45, 0.55), {}, "fail"),
        ("heldout_accuracy", (0.6, 0.54, 0.66), {"margin": 0.05}, "insufficient_data"),
        ("heldout_accuracy", (0.55, 0.54, 0.66), {"margin": 0.05}, "fail"),
        ("length_correlation", (0.1, 0.0, 0.15), {}, "pass"),
        ("length_correlation", (0.1, 0.0, 0.2), {}, "insufficient_data"),
        ("length_correlation", (-0.2, -0.3, -0.16), {}, "fail"),
        ("length_correlation", (0.2, 0.16, 0.3), {}, "fail"),
        ("length_correlation", (-0.2, -0.3, 0.1), {}, "insufficient_data"),  # perhaps by chance
        ("length_correlation", (-0.2, -0.3, 0.1), {"max_excess": 0.4}, "pass"),
        ("worst_decile_users", (0.0, -0.1, 0.2), {}, "pass"),
        ("worst_decile_users", (0.0, -0.11, 0.2), {}, "insufficient_data"),
        ("worst_decile_users", (-0.11, -0.3, 0.2), {}, "fail"),
        ("worst_decile_users", (-0.11, -0.3, 0.2), {"max_loss_nats": 0.5}, "pass"),
    ],
)  # fmt: skip
def test_verdicts_on_both_sides_of_the_threshold(good, gate, numbers, settings, expected):
    def case(n: int) -> RewardCase:
        estimate = Estimate(*numbers, n)
        return {
            "heldout_accuracy": replace(good, accuracy=estimate),
            "length_correlation": replace(good, length={**good.length, "excess": estimate}),
            "worst_decile_users": replace(good, worst_users=estimate),
        }[gate]

    found = verdict(case(40), gate, **settings)
    assert (found.verdict, found.value, found.low, found.high, found.n) == (expected, *numbers, 40)
    few = verdict(case(9), gate, **settings)
    assert few.verdict == "insufficient_data" and "9 people" in few.why
    assert verdict(case(9), gate, **settings, min_users=9).verdict == expected


@pytest.mark.parametrize(
    ("ece", "expected"),
    [((0.07, 0.05, 0.1), "pass"), ((0.08, 0.06, 0.1), "insufficient_data"), ((0.09, 0.071, 0.1), "fail")],
)
def test_calibration_allows_for_chance(good, ece, expected):
    shown = replace(good.calibration, ece=Estimate(*ece, 40), ece_if_calibrated=0.04)  # the limit is 0.07
    case = replace(good, calibration=shown)
    assert verdict(case, "calibration").verdict == expected
    assert verdict(case, "calibration", tempered=True).verdict == "pass"  # looks at the other one
    nothing = verdict(replace(good, calibration=None), "calibration")
    assert nothing.verdict == "insufficient_data" and "not measured" in nothing.why


@pytest.mark.parametrize(
    ("age", "drift", "expected", "said"),
    [
        (90.0, "none", "pass", "90.0 days"),
        (90.1, "none", "fail", "90.1 days old"),
        (1.0, "worse", "fail", "fit it again"),
        (1.0, "inputs", "pass", "1.0 days"),
        (math.nan, "none", "insufficient_data", "has a time"),
        (math.nan, "worse", "fail", "fit it again"),
    ],
)
def test_freshness(good, age, drift, expected, said):
    case = replace(good, drift=replace(CALM, age_days=age, verdict=drift))
    found = verdict(case, "data_freshness")
    assert found.verdict == expected and said in found.why
    json.dumps(found.to_dict(), allow_nan=False)


def test_overconfidence_fails_and_names_the_temperature_that_mends_it():
    case = judge(simulated(2, users=150, scale=3.0), seed=1)
    found = verdict(case, "calibration")
    assert found.verdict == "fail" and "overconfident" in found.why
    assert case.temperature.low < 3 < case.temperature.high
    assert verdict(case, "calibration", tempered=True).verdict == "pass"
    # Overconfidence in what people like, which here is length too, is no love of length beyond theirs.
    liked = judge(simulated(2, users=150, scale=4.0, liked=1.5), seed=1)
    assert liked.length["people"].low > 0.3 and abs(liked.length["excess"].value) < 0.05


def test_a_love_of_length_that_people_do_not_share_fails():
    case = judge(simulated(3, users=100, love=1.5), seed=1)
    assert verdict(case, "length_correlation").verdict == "fail"
    assert case.length["pearson"].low > 0.5 and abs(case.length["people"].value) < 0.1


def test_a_model_that_knows_nothing_does_not_pass():
    rng = np.random.default_rng(5)
    pairs = simulated(4)
    shuffled = replace(pairs.predicted, probabilities=rng.permutation(pairs.predicted.probabilities))
    case = judge(replace(pairs, predicted=shuffled), seed=1)
    assert verdict(case, "heldout_accuracy").verdict != "pass"
    assert verdict(case, "worst_decile_users").verdict == "fail"
    assert case.temperature.low > 2  # what says nothing should say it with next to no confidence


def test_a_tenth_of_people_whose_taste_is_the_opposite_are_seen_through_a_good_mean():
    case = judge(simulated(6, users=100, inverted=10), seed=1)
    assert case.gain.low > 0 and verdict(case, "heldout_accuracy").verdict == "pass"
    assert verdict(case, "worst_decile_users").verdict == "fail"


def test_worst_users_by_hand():
    """Two votes each, g -+ 1: s^2 = 2 (sum of squares 2 over one degree of freedom, for each person)."""
    means = np.array([0.0] * 5 + [6.0] * 5)
    gain = (means[:, None] + np.array([-1.0, 1.0])).ravel()
    who = np.repeat(np.arange(10), 2)
    # Between people: 2 * 10 * 9 = 180, less 9 * 2, over 20 - 40 / 20 = 18: t^2 = 9; b = 9 / (9 + 1).
    found = worst_users(gain, who, 2, seed=1, resamples=200)
    assert found.value == pytest.approx(3 - 3 * math.sqrt(0.9)) and found.n == 10
    assert found.low <= found.value <= found.high
    exact = worst_users(np.repeat(np.arange(20.0), 2), np.repeat(np.arange(20), 2), 2, seed=1)
    assert exact.value == pytest.approx(0.5)  # no noise within people: the plain mean of the worst two


def test_noise_alone_makes_no_worst_tenth():
    off, plain, covered = [], [], 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        who = np.repeat(np.arange(60), 8)
        true = 0.05 + 0.2 * rng.normal(size=60)
        gain = true[who] + 0.6 * rng.normal(size=480)
        found = worst_users(gain, who, 5, seed=seed, resamples=300)
        worst = np.sort(true)[:6].mean()
        off.append(found.value - worst)
        plain.append(np.sort(np.bincount(who, weights=gain) / 8)[:6].mean() - worst)
        covered += found.low <= worst <= found.high
    assert np.mean(plain) < -0.1 and abs(np.mean(off)) < 0.05
    assert covered >= 33  # of 40 at 95 %: fewer has a chance of 1 in 300


def test_people_with_few_votes_are_not_among_the_worst():
    gain = np.concatenate([np.tile([0.1, 0.3], 30), [-9.0, -9.0]])
    who = np.concatenate([np.repeat(np.arange(10), 6), [77, 77]])
    found = worst_users(gain, who, 5, seed=1)
    assert found.value == pytest.approx(0.2) and found.n == 10
    assert worst_users(gain[:6], who[:6], 5, seed=1).low == -math.inf
    assert worst_users(gain[:0], who[:0], 5, seed=1).n == 0


def test_correlations_have_intervals_over_people():
    covered = 0
    for seed in range(40):
        case_parts = simulated(seed, users=30, votes=8, love=0.5)
        d = np.log(case_parts.predicted.probabilities[:, 0] / case_parts.predicted.probabilities[:, 2])
        ones = np.zeros(len(d))
        parts = length_bias.moments(d, ones, ones + 1, case_parts.longer)
        found = of_sums(
            parts,
            case_parts.predicted.clusters,
            length_bias.correlations,
            [(-1, 1)] * 5,
            seed=seed,
            resamples=400,
        )
        # Reward = quality + longer / 2, variances 2.25 and 1: correlation 0.5 / sqrt(2.5).
        covered += found[0].low <= 0.5 / math.sqrt(2.5) <= found[0].high
    assert covered >= 33


def test_one_person_and_only_ties_decide_nothing():
    one = judge(simulated(7, users=1, votes=30), seed=1)
    assert {
        v.verdict for v in reward_gates.judge_all(one, {n: {} for n in GATES if n != "data_freshness"})
    } == {"insufficient_data"}
    pairs = simulated(8)
    tied = replace(pairs.predicted, outcome=np.full(len(pairs.longer), ties.TIE))
    case = judge(replace(pairs, predicted=tied, tie_share=1.0), seed=1)
    assert case.calibration is None and case.accuracy.n == 0
    assert verdict(case, "heldout_accuracy").verdict == "insufficient_data"
    assert verdict(case, "length_correlation").verdict == "insufficient_data"
    json.dumps(case.to_dict(), allow_nan=False)
    with pytest.raises(EvaluationError, match="held-out pairs"):
        judge(simulated(9, users=0), seed=1)


def test_what_votes_of_a_person_tell_is_among_the_figures():
    gain = Estimate(0.02, -0.01, 0.05, 12)
    curve = KShot((Point(0, gain, gain), Point(8, gain, gain)), gain, 12, 90, ("Why.",))
    case = judge(replace(simulated(1), k_shot=curve), seed=1)
    assert case.estimates()["k_shot_8"] == gain and "k_shot_4" not in case.estimates()
    stored = json.loads(json.dumps(case.to_dict(), allow_nan=False))["k_shot"]
    assert [point["k"] for point in stored["points"]] == [0, 8] and stored["notes"] == ["Why."]


def test_figures_go_to_json_and_have_plain_names(good):
    stored = json.loads(json.dumps(good.to_dict(), allow_nan=False))
    assert stored["estimates"]["accuracy"]["n"] == 60 and stored["votes"] == 720
    assert stored["drift"]["worse_p"] is None
    assert {"accuracy", "gain", "worst_users", "length_excess", "ece", "temperature"} <= set(good.estimates())


@dataclass(frozen=True)
class ByWords:
    """A scorer that needs no base: so much reward for each log word."""

    weight: float
    trained_on: frozenset[str]

    def score(self, prompts, completions, user_ids=None, agents=None) -> Rewards:  # noqa: ARG002
        mean = self.weight * length_bias.log_words(completions)
        return Rewards(mean, np.zeros(len(completions)))

    def probabilities(self, difference) -> np.ndarray:
        return ties.probabilities(difference, -0.5)

    def save(self, directory: Path) -> None:
        raise NotImplementedError


def rows(count: int, *, first: int, love: float, days: float, user: str, seed: int, **changes):
    """Pairs whose voters give `love` for each log word, `days` after the start, six votes a person."""
    dice = random.Random(seed)
    made = []
    for n in range(first, first + count):
        pair = [text(dice.randint(2, 20), dice) for _ in range(2)]
        words = length_bias.log_words(pair)
        win, tie, _ = ties.probabilities(np.array([love * (words[0] - words[1])]), -0.5)[0]
        drawn = dice.random()
        if drawn > win + tie:
            pair.reverse()
        margin = 0.0 if win < drawn <= win + tie else 1.0
        time = START + timedelta(days=days)
        about = {"chosen": pair[0], "rejected": pair[1], "margin": margin, "event_time": time}
        made.append(row(n, **{**about, "user_id": f"{user}-{n // 6}", **changes}))
    return made


TRAIN = rows(60, first=0, love=2.0, days=0, user="train", seed=1)
LEARNED = frozenset(one["preference_id"] for one in TRAIN)
NOW = START + timedelta(days=40)


def made_case(heldout, scorer=None, train=None, **how) -> RewardCase:
    return reward_case.make(
        scorer or ByWords(2.0, LEARNED),
        table(heldout),
        train_rows=table(train or TRAIN),
        now=NOW,
        seed=3,
        **how,
    )


def test_a_case_from_rows():
    heldout = rows(300, first=1000, love=2.0, days=-1, user="held", seed=2)
    single = [row(5000, rejected=None, label=True, user_id="held-x")]
    case = made_case(heldout + single)
    assert (case.votes, case.users, case.age_days) == (300, 51, 40.0)
    assert case.length["pearson"].value == pytest.approx(1)
    assert abs(case.length["excess"].value) < 0.1  # rewards are length, and so are people's choices
    assert verdict(case, "heldout_accuracy").verdict == "pass"
    assert verdict(case, "data_freshness").verdict == "pass"
    assert verdict(case, "data_freshness", max_age_days=39).verdict == "fail"
    again = made_case((heldout + single)[::-1])
    assert again == case
    wrong_way = made_case(heldout, ByWords(-2.0, LEARNED))
    assert wrong_way.length["excess"].high < -0.3 and wrong_way.accuracy.high < 0.5


def test_people_who_changed_their_minds_are_found():
    before = rows(240, first=1000, love=2.0, days=-1, user="held", seed=2)
    same = rows(240, first=3000, love=2.0, days=20, user="later", seed=4)
    changed = rows(240, first=3000, love=-2.0, days=20, user="later", seed=4)
    calm, drifted = made_case(before + same), made_case(before + changed)
    assert calm.drift.tested and calm.drift.verdict == "none" and calm.drift.recent == (240, 40)
    assert drifted.drift.verdict == "worse" and verdict(drifted, "data_freshness").verdict == "fail"
    # The age is of what the model has learned, not of what the table holds by now.
    newer = [*TRAIN, *rows(6, first=7000, love=2.0, days=39, user="new", seed=5)]
    assert made_case(before, train=newer).age_days == 40.0
    untimed = made_case([{**one, "event_time": None} for one in before])
    assert untimed.drift.before == (0, 0) and not untimed.drift.tested


def test_rows_or_people_that_it_learned_from_are_refused():
    heldout = rows(30, first=1000, love=2.0, days=1, user="held", seed=2)
    with pytest.raises(EvaluationError, match="1 rows"):
        made_case([*heldout, {**TRAIN[0], "user_id": "somebody"}])
    with pytest.raises(EvaluationError, match="1 people"):
        made_case([*heldout, {**heldout[0], "preference_id": "ab" * 32, "user_id": TRAIN[0]["user_id"]}])
    anonymous = [{**one, "user_id": None} for one in heldout]
    assert made_case(anonymous, train=[{**one, "user_id": None} for one in TRAIN]).users == 30
    with pytest.raises(EvaluationError, match="held-out pairs"):
        made_case([])
    with pytest.raises(RewardModelError, match=r"NaN|finite"):
        made_case(heldout, ByWords(math.nan, LEARNED))


def test_a_real_reward_model_has_a_case(tiny_base: Path):
    train = shorter_wins(80)
    scorer = bradley_terry.fit(
        bradley_terry.Config(components=4, max_tokens=64), train, base=tiny_base, seed=0
    )
    heldout = shorter_wins(120, first=1000, seed=1).to_pylist()
    heldout = [{**one, "user_id": f"held-{i % 20}"} for i, one in enumerate(heldout)]
    case = reward_case.make(scorer, table(heldout), train_rows=train, now=NOW, seed=1)
    assert case.accuracy.value > 0.95 and case.length["pearson"].high < -0.5
    assert verdict(case, "heldout_accuracy").verdict == "pass"
    assert all(math.isfinite(e.value) for e in case.estimates().values())
    assert case.k_shot.points == () and "learns nothing of one person" in case.k_shot.notes[0]
