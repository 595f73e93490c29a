"""`palate rewards check`: a reward model that was right, looked at again when people have changed their minds."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from feedback.splits import SplitConfig, user_split
from tests.e2e.conftest import Palate, Result, run_palate
from tests.unit.reward_models.made import WORDS, text

PEOPLE, VOTES = 90, 3
EARLY, LATE = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)


def votes(start: datetime, *, longer: bool, name: str) -> Iterator[dict[str, Any]]:
    """Everybody compares a short and a long reply a few times, and mostly prefers the one of that length."""
    dice = random.Random(name)
    for number in range(PEOPLE * VOTES):
        user, ids = f"Usér {number % PEOPLE}", [f"{name}-{number}-{side}" for side in (0, 1)]
        prompt = f"{' '.join(dice.sample(WORDS, 6))}, {name} {number}?"
        replies = [text(dice.randint(2, 5), dice), text(dice.randint(9, 14), dice)]
        at = start + timedelta(hours=number)
        for reply, key in zip(replies, ids, strict=True):
            yield {
                "type": "interaction", "interaction_id": key, "user_id": user, "event_time": at.isoformat(),
                "prompt": [{"role": "user", "content": prompt}],
                "completion": {"role": "assistant", "content": reply}, "agent": "assistant",
            }  # fmt: skip
        winner = ids[longer if dice.random() < 0.85 else not longer]
        yield {
            "type": "feedback", "feedback_id": f"{name}-{number}", "interaction_id": ids[0], "user_id": user,
            "event_time": (at + timedelta(minutes=1)).isoformat(), "kind": "vote",
            "value": {"among": ids, "winner": winner},
        }  # fmt: skip


def written(path: Path, events: Iterator[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return str(path)


def options(base: Path, *more: str) -> list[str]:
    split = [
        f"prefer.split.{name}=0.0" for name in ("test_prompts", "evaluation_prompts", "evaluation_users")
    ]
    own = (
        f"model.base=path:{base}", "train.method=none", "prefer.split.test_users=0.45", *split,
        "prefer.near_duplicates.enabled=false", "reward.bradley_terry.components=4",
        # How long ago this file was written says nothing here; age has a test of its own.
        "reward_gates.data_freshness.max_age_days=36500", *more,
    )  # fmt: skip
    return [part for value in own for part in ("--set", value)]


def steps(folder: Path, base: Path, *commands: list[str]) -> None:
    for command in commands:
        done = run_palate(folder, *command, *options(base), "--json")
        assert done.code in (0, 5), done.err


@pytest.fixture(scope="module")
def learned(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a reward model of people who prefer short replies."""
    folder = tmp_path_factory.mktemp("check")
    split = SplitConfig(test_users=0.45, evaluation_users=0.0)
    heldout = sum(user_split(f"Usér {n}", split) == "test" for n in range(PEOPLE))
    assert heldout >= 25  # enough for every gate to be able to decide
    events = written(folder / "early.jsonl", votes(EARLY, longer=False, name="early"))
    steps(folder, tiny_base, ["ingest", events], ["build"], ["train"])
    return folder


def later(learned: Path, folder: Path, base: Path, *, longer: bool) -> Path:
    """The same folder a month later, with new votes that no model has learned from."""
    shutil.copytree(learned, folder)
    name = "changed" if longer else "same"
    events = written(folder / f"{name}.jsonl", votes(LATE, longer=longer, name=name))
    steps(folder, base, ["ingest", events], ["build"])
    return folder


@pytest.fixture(scope="module")
def changed(learned: Path, tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return later(learned, tmp_path_factory.mktemp("changed") / "folder", tiny_base, longer=True)


def verdicts(result: Result) -> dict[str, str]:
    return {verdict["gate"]: verdict["verdict"] for verdict in result.json["verdicts"]}


def test_people_who_changed_their_minds_are_found(changed: Path, tiny_base: Path, palate: Palate) -> None:
    found = palate("rewards", "check", *options(tiny_base), "--json", cwd=changed)
    assert found.code == 3, found.err
    about = found.json
    assert (about["ok"], about["exit_code"], about["fit"]) == (False, 3, "fail")
    assert verdicts(found)["data_freshness"] == "fail"
    drift = about["case"]["drift"]
    assert drift["verdict"] == "worse" and drift["worse_nats"] > 0.1 and drift["worse_p"] <= 0.025
    # Exactly the held-out votes of the second month are newer than all that it has learned from.
    assert drift["recent"][0] == drift["before"][0] == about["case"]["votes"] / 2
    assert about["said"].startswith("v1 is not fit to be used: it ") and "has drifted" in about["said"]
    shown = palate("rewards", "check", "1", *options(tiny_base), cwd=changed)
    assert shown.code == 3 and "Recent votes are predicted worse" in " ".join(shown.out.split())
    assert "has drifted" in shown.out and "palate train" in shown.out
    # What it was registered with is left as it was.
    (listed,) = palate("rewards", *options(tiny_base), "--json", cwd=changed).json["reward_models"]
    assert {g["gate"]: g["verdict"] for g in listed["gates"]}["data_freshness"] == "pass"


def test_people_who_did_not_are_not(learned: Path, tiny_base: Path, palate: Palate, tmp_path: Path) -> None:
    folder = later(learned, tmp_path / "same", tiny_base, longer=False)
    found = palate("rewards", "check", "newest", *options(tiny_base), "--json", cwd=folder)
    assert found.code in (0, 4), found.out
    assert verdicts(found)["data_freshness"] == "pass" and "fail" not in verdicts(found).values()
    drift = found.json["case"]["drift"]
    assert drift["worse_p"] is not None and drift["verdict"] != "worse"
    assert "not fit" not in found.json["said"] and "Drift" not in found.json["said"]


def test_right_after_a_fit_drift_is_said_to_be_untested(
    learned: Path, tiny_base: Path, palate: Palate
) -> None:
    found = palate("rewards", "check", *options(tiny_base), "--json", cwd=learned)
    assert found.code in (0, 4), found.out
    assert "Drift was not tested: the time since has" in found.json["said"]


def test_a_model_that_is_too_old_is_found(learned: Path, tiny_base: Path, palate: Palate) -> None:
    strict = options(tiny_base, "reward_gates.data_freshness.max_age_days=1")
    found = palate("rewards", "check", *strict, "--json", cwd=learned)
    assert found.code == 3 and "is too old" in found.json["said"] and "drifted" not in found.json["said"]


def test_what_cannot_be_checked_is_refused(
    learned: Path, tiny_base: Path, palate: Palate, tmp_path: Path
) -> None:
    unknown = palate("rewards", "check", "99", *options(tiny_base), "--json", cwd=learned)
    assert unknown.code == 1 and unknown.json["error"]["type"] == "UnknownVersion"
    missing = palate("rewards", "check", *options(tmp_path / "nowhere"), "--json", cwd=learned)
    assert missing.code == 1 and missing.json["error"]["type"] == "BaseModelError"
    other = shutil.copytree(tiny_base, tmp_path / "other")
    foreign = palate("rewards", "check", *options(other), "--json", cwd=learned)
    assert foreign.code == 1 and foreign.json["error"]["type"] == "CannotCheck"
    assert f"model.base=path:{tiny_base}" in foreign.json["error"]["next_step"]
    for wrong in (["chekc"], ["list", "1"], ["check", "--fetch", "newest"]):
        assert palate("rewards", *wrong, cwd=learned).code == 2


def test_people_and_prompts_it_has_learned_from_may_not_judge_it(
    learned: Path, tiny_base: Path, palate: Palate, tmp_path: Path
) -> None:
    folder = tmp_path / "redrawn"
    shutil.copytree(learned, folder)
    (own,) = (path for path in (folder / ".palate" / "datasets").iterdir() if path.is_dir())
    redrawn = options(tiny_base, "prefer.split.seed_text=another draw")
    assert palate("build", *redrawn, cwd=folder).code == 0
    people = palate("rewards", "check", *redrawn, "--json", cwd=folder)
    assert people.code == 1 and people.json["error"]["type"] == "EvaluationError"
    assert "people that it has" in people.json["error"]["got"]
    prompts = options(
        tiny_base,
        "prefer.split.test_users=0",
        "prefer.split.test_prompts=0.45",
        "prefer.split.seed_text=third",
    )
    assert palate("build", *prompts, cwd=folder).code == 0
    found = palate("rewards", "check", *prompts, "--json", cwd=folder)
    assert found.code == 1 and found.json["error"]["type"] == "CannotCheck"
    assert "held-out prompts that it has" in found.json["error"]["got"]
    shutil.rmtree(own)
    gone = palate("rewards", "check", *redrawn, "--json", cwd=folder)
    assert gone.code == 1 and gone.json["error"]["type"] == "CannotCheck"
    assert "are not there" in gone.json["error"]["what"]
    shutil.rmtree(folder / ".palate" / "datasets")
    none = palate("rewards", "check", *options(tiny_base), "--json", cwd=folder)
    assert none.code == 1 and none.json["error"]["type"] == "DatasetError"
    assert none.json["error"]["next_step"] == "palate build"


def test_without_a_reward_model_there_is_nothing_to_check(tiny_base: Path, palate: Palate) -> None:
    none = palate("rewards", "check", *options(tiny_base), "--json")
    assert none.code == 1 and none.json["error"]["type"] == "UnknownVersion"
