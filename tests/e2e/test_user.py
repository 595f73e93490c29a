"""`palate user`: what is believed of somebody, from what, and what to ask them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import Palate, Result, run_palate
from tests.e2e.test_run import events_of, run_settings


@pytest.fixture(scope="module")
def learned(
    demo_workspace: tuple[Path, Result],
    tiny_base: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[str]]:
    """A folder in which a personal model was fitted, and the options that name it."""
    folder = tmp_path_factory.mktemp("personal")
    options = [*run_settings(tiny_base), "--set", "reward.method=personal", "--set", "train.method=none"]
    for command in (["ingest", str(events_of(demo_workspace))], ["build"], ["train"]):
        done = run_palate(folder, *command, *options, "--json")
        assert done.code == 0, done.err
    return folder, options


def test_show_tells_what_is_believed_and_from_what(learned: tuple[Path, list[str]], palate: Palate) -> None:
    from pipelines.dataset import load

    folder, options = learned
    rows = load(folder / ".palate", None).rows("train")
    users = [user for user in rows["user_id"].to_pylist() if user]
    user = max(sorted(set(users)), key=users.count)
    shown = palate("user", "show", user, *options, "--json", cwd=folder)
    assert shown.code == 0, shown.err
    about = shown.json
    explicit = rows.filter([rule != "copy" for rule in rows["rule"].to_pylist()])["user_id"].to_pylist()
    # Copies count where enough explicit verdicts say what they mean.
    assert explicit.count(user) <= about["votes"] <= users.count(user)
    assert {"log_words", "questions"} <= {feature["feature"] for feature in about["features"]}
    assert all(feature["std"] > 0 for feature in about["features"])
    assert {e["preference_id"] for e in about["evidence"]} <= set(rows["preference_id"].to_pylist())
    assert len(about["evidence"]) == min(10, about["votes"])
    text = palate("user", "show", user, *options, cwd=folder)
    assert text.code == 0 and "From what" in text.out and "everybody" in text.out


def test_a_stranger_is_expected_to_be_like_others(learned: tuple[Path, list[str]], palate: Palate) -> None:
    folder, options = learned
    shown = palate("user", "show", "nobody ☃", *options, cwd=folder)
    assert shown.code == 0, shown.err
    assert "Nothing from this user has been learned" in shown.out


def test_the_next_question_is_a_pair(learned: tuple[Path, list[str]], palate: Palate, tmp_path: Path) -> None:
    folder, options = learned
    asked = palate("user", "next-question", "somebody", "-n", "2", *options, "--json", cwd=folder)
    if asked.code == 1:  # people of the demo need not differ enough for anything personal to be believed
        assert "one taste for everybody" in asked.err
        return
    assert asked.code == 0, asked.err
    questions = asked.json["questions"]
    assert len(questions) == 2 and questions[0]["information_nats"] >= questions[1]["information_nats"] > 0
    assert questions[0]["first"] != questions[0]["second"]
    candidates = tmp_path / "pairs.jsonl"
    candidates.write_text(json.dumps({"prompt": "Hello?", "first": "Hi.", "second": "Good day to you."}))
    one = palate(
        "user", "next-question", "somebody", "--from", str(candidates), *options, "--json", cwd=folder
    )
    assert one.json["questions"][0]["prompt"] == [{"role": "user", "content": "Hello?"}]


def test_a_user_is_shown_beneath_length_control_and_temperature(
    learned: tuple[Path, list[str]], palate: Palate, tmp_path: Path
) -> None:
    from pipelines.dataset import load
    from reward_models.scorer import inner, method_in

    folder, options = learned
    own = tmp_path / "wrapped"
    shutil.copytree(folder, own)
    wrapped = [
        *options,
        "--set",
        "reward.length_control=zero",
        "--set",
        'reward.temperature="held-out people"',
    ]
    wrapped += ["--set", "reward.tempering={min_votes=2, min_users=2}"]
    done = palate("train", *wrapped, "--json", cwd=own)
    assert done.code == 0, done.err
    made = {f for f in (own / ".palate" / "updates").glob("*/reward-training") if (f / "scorer").is_dir()}
    (directory,) = {f for f in made if (f / "scorer" / "scorer").is_dir()}
    assert [method_in(f) for f in (directory, directory / "scorer", inner(directory))] == [
        "temperature", "length_bias", "personal",
    ]  # fmt: skip
    user = next(u for u in load(own / ".palate", None).rows("train")["user_id"].to_pylist() if u)
    shown = palate("user", "show", user, *wrapped, "--json", cwd=own)
    assert shown.code == 0, shown.err
    assert shown.json["votes"] > 0 and shown.json["features"]
    (run,) = {f.parent.name for f in (own / ".palate" / "runs").glob("*/rewards.json")} - {
        f.parent.name for f in (folder / ".palate" / "runs").glob("*/rewards.json")
    }
    assert shown.json["run"] == run
    asked = palate("user", "next-question", user, *wrapped, "--json", cwd=own)
    assert asked.code == 0 or "one taste for everybody" in asked.err


def test_candidates_that_are_none_are_refused_by_line(
    learned: tuple[Path, list[str]], palate: Palate, tmp_path: Path
) -> None:
    folder, options = learned
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "Hello?", "first": "Hi.", "second": "Hey."}\n{"prompt": 5}\n')
    refused = palate("user", "next-question", "somebody", "--from", str(bad), *options, cwd=folder)
    assert refused.code == 2 and "line 2" in refused.err


def test_without_a_personal_model_the_way_to_one_is_told(
    demo_workspace: tuple[Path, Result], tiny_base: Path, palate: Palate
) -> None:
    refused = palate("user", "show", "somebody", *run_settings(tiny_base), cwd=demo_workspace[0])
    assert refused.code == 4 and "reward.method=personal" in refused.err


def test_reward_models_are_versions_with_verdicts(
    learned: tuple[Path, list[str]], palate: Palate, tiny_base: Path
) -> None:
    from reward_models.scorer import load

    folder, options = learned
    listed = palate("rewards", *options, "--json", cwd=folder)
    assert listed.code == 0, listed.err
    (version,) = listed.json["reward_models"]
    assert (version["role"], version["method"]) == ("training", "personal")
    assert {gate["gate"] for gate in version["gates"]} == {
        "calibration", "data_freshness", "heldout_accuracy", "length_correlation", "worst_decile_users",
    }  # fmt: skip
    fetched = palate("rewards", "--fetch", "newest", *options, "--json", cwd=folder)
    files = Path(fetched.json["directory"])
    (made,) = (folder / ".palate" / "updates").glob("*/reward-training")
    assert (files / "weights.npz").read_bytes() == (made / "weights.npz").read_bytes()
    chat, replies = [[{"role": "user", "content": "Hello?"}]] * 2, ["Hi.", "Good day to you, my friend."]
    assert load(files, tiny_base).score(chat, replies).mean.shape == (2,)
    text = palate("rewards", *options, cwd=folder)
    assert "heldout_accuracy" in text.out and "personal" in text.out
    missing = palate("rewards", "--fetch", "99", *options, cwd=folder)
    assert missing.code == 1 and "palate rewards" in missing.err


def test_what_rows_were_worth_is_on_record(learned: tuple[Path, list[str]]) -> None:
    folder, _ = learned
    (file,) = (folder / ".palate" / "updates").glob("*/reward-training-labels.json")
    labels = json.loads(file.read_text())
    assert labels["influence"]["people"] > 0
    assert labels["propensity"]["rows"] >= labels["propensity"]["rated"] > 0
    (rewards,) = (folder / ".palate" / "runs").glob("*/rewards.json")
    shown = json.loads(rewards.read_text())["training"]["labels"]
    assert shown["propensity"] == labels["propensity"]
    assert shown["influence"]["capped"] == len(labels["influence"]["capped"])  # ids stay in the workspace
