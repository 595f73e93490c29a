"""The personal reward model on a tiny base: people who want opposite things, newcomers, one vote at a time."""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from reward_models import personal, scorer
from reward_models.heldout import predict
from reward_models.low_rank import LowRankConfig
from reward_models.people import Person
from reward_models.persistent import Persistent
from reward_models.scorer import NotEnoughVotes, RewardModelError
from reward_models.ties import TIE
from tests.unit.reward_models.made import row, table, text

CONFIG = personal.Config(components=2, max_tokens=64, taste=LowRankConfig(rank=2, rounds=6))
START = datetime(2026, 1, 1, tzinfo=UTC)


def opposed(people: int, each: int, *, seed: int = 0, first: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """People of even number want short replies, the others long ones."""
    dice = random.Random(seed)
    rows = []
    for n in range(people * each):
        person = n % people
        pair = [text(dice.randint(2, 5), dice), text(dice.randint(9, 14), dice)]
        if person % 2:
            pair.reverse()
        name = f"user-{person:02}"
        when = START + timedelta(minutes=n)
        rows.append(row(first + n, chosen=pair[0], rejected=pair[1], user_id=name, event_time=when) | changes)
    return rows


@pytest.fixture(scope="module")
def fitted(tiny_base: Path) -> personal.Personal:
    return personal.fit(CONFIG, table(opposed(20, 12)), base=tiny_base, seed=0)


PROMPT = [{"role": "user", "content": "What about the harbour?"}]
SHORT, LONG = "Nets and gulls.", "Nets and gulls and bread and sugar and milk and apples and wind and rust."


def gap(model: personal.Personal, user: str | None) -> float:
    """Reward of the long reply over the short one."""
    rewards = model.score([PROMPT] * 2, [LONG, SHORT], user_ids=[user] * 2)
    return float(rewards.mean[0] - rewards.mean[1])


def test_each_gets_what_they_want(fitted: personal.Personal) -> None:
    assert fitted.taste.trust > 0
    assert gap(fitted, "user-00") < -1 and gap(fitted, "user-01") > 1
    assert abs(gap(fitted, None)) < 0.5 and abs(gap(fitted, "a stranger")) < 0.5


def test_it_predicts_its_people_better_than_one_taste_for_all(fitted: personal.Personal) -> None:
    more = table(opposed(20, 3, seed=9, first=10_000))
    assert predict(fitted, more).correct.mean() > 0.9
    nobody = replace(fitted, people={})
    assert 0.3 < predict(nobody, more).correct.mean() < 0.7


def test_a_newcomer_is_understood_after_a_few_votes_and_nobody_else_changes(
    fitted: personal.Personal,
) -> None:
    votes = [r | {"user_id": "new", "chosen": LONG, "rejected": SHORT} for r in opposed(1, 4, first=20_000)]
    after = fitted.learn(table(votes))
    assert gap(after, "new") > 0.5 > gap(fitted, "new")
    assert after.people["new"].votes == 4
    assert after.people["new"].rows == tuple(v["preference_id"] for v in votes)
    for name, person in fitted.people.items():
        assert after.people[name] is person
    assert gap(after, None) == gap(fitted, None)
    again = after.learn(table(votes))
    assert again.people["new"] is after.people["new"]  # a row is learned once
    assert after.score([PROMPT], [LONG], ["new"]).std[0] < fitted.score([PROMPT], [LONG], ["new"]).std[0]


def test_where_nothing_is_new_nothing_is_done(fitted: personal.Personal) -> None:
    assert fitted.learn(table(opposed(20, 12))) is fitted
    assert fitted.learn(table([])) is fitted
    assert fitted.learn(table(opposed(1, 2, first=30_000, user_id=None))) is fitted


def test_one_vote_at_a_time_is_close_to_all_at_once(fitted: personal.Personal) -> None:
    blank = replace(fitted, people={}, learned=Persistent(), heard=Persistent())
    one_by_one = blank.learn(table(opposed(20, 12)))
    for name in ("user-00", "user-01"):
        assert gap(one_by_one, name) == pytest.approx(gap(fitted, name), rel=0.25)
        assert one_by_one.people[name].votes == 12


def test_with_few_people_nothing_personal_is_believed(tiny_base: Path) -> None:
    model = personal.fit(CONFIG, table(opposed(4, 10)), base=tiny_base, seed=0)
    assert model.taste.trust == 0
    assert gap(model, "user-00") == pytest.approx(gap(model, None), abs=1e-6)


def test_where_everybody_is_alike_it_is_not_worse_than_the_shared_taste(tiny_base: Path) -> None:
    def alike(seed: int, first: int) -> pa.Table:
        rows = opposed(16, 8, seed=seed, first=first)
        return table([r | dict(zip(("chosen", "rejected"), _by_length(r), strict=True)) for r in rows])

    model = personal.fit(CONFIG, alike(0, 0), base=tiny_base, seed=0)
    test = alike(3, 5000)
    shared = replace(model, people={}, taste=replace(model.taste, trust=0.0))
    assert predict(model, test).log_loss.mean() <= predict(shared, test).log_loss.mean() + 0.01


def _by_length(made: dict[str, Any]) -> tuple[str, str]:
    first, second = sorted([made["chosen"], made["rejected"]], key=len)
    return first, second


def test_thumbs_on_single_replies_teach_too(tiny_base: Path) -> None:
    rows = []
    for made in opposed(16, 8):
        up = int(made["preference_id"][:2], 16) % 2 == 0
        reply = made["chosen"] if up else made["rejected"]
        rows.append(made | {"chosen": reply, "rejected": None, "label": up, "margin": None})
    model = personal.fit(CONFIG, table(rows), base=tiny_base, seed=0)
    assert gap(model, "user-00") < -0.5 and gap(model, "user-01") > 0.5


def test_habits_decide_ties(tiny_base: Path) -> None:
    rows = opposed(12, 12)
    for r in rows:
        if r["user_id"] in ("user-00", "user-01", "user-02"):
            r["margin"] = 0.0
    model = personal.fit(CONFIG, table(rows), base=tiny_base, seed=0)
    found = model.compare([PROMPT] * 2, [LONG] * 2, [SHORT] * 2, user_ids=["user-00", "user-04"])
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert found[0, TIE] > 0.6 > 0.3 > found[1, TIE]
    assert model.probabilities(np.zeros(1))[0, TIE] < found[0, TIE]


def test_saved_and_loaded_it_is_the_same(fitted: personal.Personal, tiny_base: Path, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m")
    again = scorer.load(tmp_path / "m", tiny_base)
    assert isinstance(again, personal.Personal)
    users = ["user-00", "user-01", None, "a stranger"]
    ours = fitted.score([PROMPT] * 4, [LONG] * 4, users)
    theirs = again.score([PROMPT] * 4, [LONG] * 4, users)
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(ours.std, theirs.std)
    assert again.trained_on == fitted.trained_on
    assert again.people["user-03"].rows == fitted.people["user-03"].rows
    assert json.loads((tmp_path / "m" / "reward_model.json").read_text())["people"] == 20


@pytest.mark.parametrize("broken", ["weights.npz", "people.parquet", "reward_model.json"])
def test_what_is_damaged_is_said_to_be(
    fitted: personal.Personal, tiny_base: Path, tmp_path: Path, broken: str
) -> None:
    fitted.save(tmp_path / "m")
    content = (tmp_path / "m" / broken).read_bytes()
    (tmp_path / "m" / broken).write_bytes(content[: len(content) // 2])
    with pytest.raises(RewardModelError, match="palate train"):
        scorer.load(tmp_path / "m", tiny_base)
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(RewardModelError, match="no readable reward model"):
        scorer.load(tmp_path / "m", tiny_base)


def test_too_few_rows_are_refused(tiny_base: Path) -> None:
    with pytest.raises(NotEnoughVotes, match="at least 12"):
        personal.fit(CONFIG, table(opposed(2, 2)), base=tiny_base, seed=0)


def test_what_is_believed_can_be_read(fitted: personal.Personal) -> None:
    own = fitted.explain(fitted.people["user-01"].belief)["log_words"]
    everybody = fitted.explain()["log_words"]
    assert own[0] > everybody[0] and own[1] >= everybody[1] > 0


def test_where_nobody_is_known_there_is_one_taste(tiny_base: Path) -> None:
    rows = [{**each, "user_id": None} for each in opposed(4, 10)]
    model = personal.fit(CONFIG, table(rows), base=tiny_base, seed=0)
    assert (model.taste.trust, model.people) == (0.0, {})
    chat = [[{"role": "user", "content": "What about the harbour?"}]]
    assert np.isfinite(model.score(chat, ["Golden nets."]).mean).all()


def test_a_trust_alone_is_measured_against_none(tiny_base: Path) -> None:
    sure = CONFIG.model_copy(update={"trusts": (1.0,)})
    assert personal.fit(sure, table(opposed(20, 12)), base=tiny_base, seed=0).taste.trust == 1.0
    with pytest.raises(ValidationError):
        personal.Config(trusts=())
    with pytest.raises(ValidationError):
        personal.Config(trusts=(-1.0,))


def test_a_verdict_that_comes_in_another_row_is_not_learned_again(
    fitted: personal.Personal, tiny_base: Path, tmp_path: Path
) -> None:
    known = opposed(20, 12)[:3]
    fitted.save(tmp_path)
    for model in (fitted, personal.load(tmp_path, tiny_base)):
        for n, changes in enumerate(
            [
                {"weight": 0.3},
                {"margin": 0.5, "scrubbed": ["email"]},
                {"evidence": ["event-0", "said the same once more"]},
                {"chosen": "Another text, as an address was replaced."},  # the events are the same
                {"event_time": START + timedelta(days=9), "agent": "another"},
            ]
        ):
            rows = [r | changes | {"preference_id": row(40_000 + 9 * n + i)["preference_id"]}
                    for i, r in enumerate(known)]  # fmt: skip
            after = model.learn(table(rows))
            for name, person in model.people.items():
                assert after.people[name] is person, changes
            assert after.trained_on - model.trained_on == {r["preference_id"] for r in rows}
            assert after.learn(table(rows)) is after


def test_another_word_of_the_same_person_is_learned(fitted: personal.Personal) -> None:
    said = opposed(20, 12)[0]
    other = {"preference_id": row(50_000)["preference_id"], "evidence": ["event-of-its-own"]}
    for changes in (
        {"chosen": said["rejected"], "rejected": said["chosen"]},  # a change of mind
        {"margin": 0.0},
        {"rule": "edit"},
        {"prompt_key": "elsewhere"},
        {"user_id": "user-02"},
    ):
        new = said | other | changes
        after = fitted.learn(table([new]))
        assert after.people[new["user_id"]].votes == 13, changes
    twice = [
        said | other | {"rule": "edit", "preference_id": row(60_000 + i)["preference_id"]} for i in range(2)
    ]
    assert fitted.learn(table(twice)).people["user-00"].votes == 13  # both rows are one verdict


def test_a_vote_costs_the_same_whoever_else_is_known(
    fitted: personal.Personal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        personal.Personal,
        "_raw",
        lambda self, prompts, _: np.ones((len(prompts), len(self.projection.center))),
    )
    someone = fitted.people["user-00"]
    crowd: dict[str, Person] = {f"crowd-{i}": someone for i in range(100_000)}
    many = replace(
        fitted,
        people=Persistent(crowd | dict(fitted.people)),
        learned=Persistent(dict.fromkeys(map(str, range(300_000)))),
        heard=Persistent(dict.fromkeys(range(600_000))),
    )
    took: dict[str, float] = {}
    for name, model in (("few", fitted), ("many", many)):
        rows = [table([r]) for r in opposed(1, 60, first=70_000, seed=3)]
        times = []
        for each in rows:
            started = time.perf_counter()
            model = model.learn(each)
            times.append(time.perf_counter() - started)
        took[name] = float(np.median(times))
        assert model.people["user-00"].votes == 72
    assert took["many"] < 2 * took["few"] + 1e-3  # a copy of the crowd alone takes several milliseconds


def test_nobody_can_be_saved_and_loaded(tiny_base: Path, tmp_path: Path) -> None:
    rows = [{**each, "user_id": None} for each in opposed(4, 10)]
    personal.fit(CONFIG, table(rows), base=tiny_base, seed=0).save(tmp_path)
    again = personal.load(tmp_path, tiny_base)
    assert again.people == {} and len(again.trained_on) == 40


def test_saved_again_it_is_never_half_of_each(
    fitted: personal.Personal, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(tmp_path)
    votes = [r | {"chosen": LONG, "rejected": SHORT, "user_id": "née"} for r in opposed(1, 3, first=80_000)]
    after = fitted.learn(table(votes))
    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", lambda *a, **k: 1 / 0)  # everything is written but the JSON
        with pytest.raises(ZeroDivisionError):
            after.save(tmp_path)
    assert "née" not in personal.load(tmp_path, tiny_base).people
    after.save(tmp_path)
    again = personal.load(tmp_path, tiny_base)
    assert again.people["née"].votes == 3 and gap(again, "née") == gap(after, "née")
    assert len(list(tmp_path.iterdir())) == 3


def test_a_model_of_other_features_says_so(
    fitted: personal.Personal, tiny_base: Path, tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    about = json.loads((tmp_path / "reward_model.json").read_text())
    del about["feature_weights"]["other_language"]
    (tmp_path / "reward_model.json").write_text(json.dumps(about))
    with pytest.raises(RewardModelError, match="without other_language") as caught:
        scorer.load(tmp_path, tiny_base)
    assert caught.value.next_step == "palate train"
