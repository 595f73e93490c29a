"""What a run says before hours of training, and what it makes of the settings of reward models."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palate.console import Out
from palate.context import open_project
from palate.learn import RewardOutcome, fit_rewards
from pipelines.dataset import ROWS, Dataset
from reward_models import scorer as scorers
from reward_models.bradley_terry import BradleyTerry
from reward_models.length_bias import LengthControlled
from reward_models.preference_lm import PreferenceLM
from reward_models.temperature import Tempered
from tests.unit.reward_models.made import shorter_wins


def test_a_missing_evaluation_scorer_is_said_at_once(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(shorter_wins(40), tmp_path / ROWS)  # all of them in the split `train`
    dataset = Dataset("v", tmp_path, {"files": {ROWS: ""}})
    settings = [f"model.base=path:{tiny_base}", "reward.bradley_terry.components=4"]
    rewards = fit_rewards(open_project(None, settings, Out()), dataset, tmp_path / "run")
    assert rewards.evaluation is None
    assert rewards.notes[0].startswith("No evaluation scorer: 0 paired rows")
    assert rewards.notes[0] in capsys.readouterr().out


def people_of(rows: pa.Table, split: str, count: int = 20) -> pa.Table:
    """The rows as votes of so many people of that split."""
    for name, values in (
        ("user_id", [f"{split}-é{n % count}" for n in range(rows.num_rows)]),
        ("split", [split] * rows.num_rows),
    ):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), [values])
    return rows


def fitted(folder: Path, base: Path, rows: list[pa.Table], *settings: str) -> RewardOutcome:
    pq.write_table(pa.concat_tables(rows), folder / ROWS)
    own = [
        f"model.base=path:{base}",
        "reward.bradley_terry.components=16",
        "reward.bradley_terry.ridges=[0.001]",
    ]
    context = open_project(None, [*own, "train.method=none", *settings], Out())
    return fit_rewards(context, Dataset("v", folder, {"files": {ROWS: ""}}), folder / "run")


@pytest.fixture
def split_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """Votes of 20 people to learn from, of 20 others to judge by; winners are drawn by a coin."""
    monkeypatch.chdir(tmp_path)
    return [
        people_of(shorter_wins(140, shuffled=True), "train"),
        people_of(shorter_wins(140, first=1000, seed=1, shuffled=True), "test"),
    ]


ON = 'reward.temperature="held-out people"'


def test_the_temperature_of_a_run_helps_people_who_judge_and_is_said(
    tiny_base: Path, tmp_path: Path, split_rows: list[pa.Table]
) -> None:
    folders = [tmp_path / name for name in ("off", "on")]
    for folder in folders:
        folder.mkdir()
    off = fitted(folders[0], tiny_base, split_rows, 'reward.temperature="off"')
    on = fitted(folders[1], tiny_base, split_rows, ON)
    assert isinstance(off.training, BradleyTerry) and isinstance(on.training, Tempered)
    assert on.training.trained_on == off.training.trained_on and len(on.training.trained_on) == 140
    said = "; ".join(on.notes)
    assert "temperature" not in "; ".join(note for note in off.notes if "gate" not in note)
    assert "Reward model: Rewards are divided by" in said or "Reward model: The temperature stays 1." in said
    # Votes by a coin: what a fit without restraint says about strangers is confidence without cause.
    estimates = [each.judged["training"].case.estimates() for each in (off, on)]
    assert estimates[1]["log_loss"].value <= estimates[0]["log_loss"].value
    assert estimates[1]["accuracy"].value == estimates[0]["accuracy"].value
    labels = json.loads((folders[1] / "run" / "reward-training-labels.json").read_text())
    assert labels["temperature"]["votes"] == 140 and labels["notes"]


def test_a_killed_run_goes_on_after_the_fit_and_a_finished_one_is_loaded(
    tiny_base: Path, tmp_path: Path, split_rows: list[pa.Table]
) -> None:
    first = fitted(tmp_path, tiny_base, split_rows, ON, "reward.length_control=people")
    directory = tmp_path / "run" / "reward-training"
    assert isinstance(first.training, Tempered) and isinstance(first.training.scorer, LengthControlled)
    assert scorers.method_in(scorers.inner(directory)) == "bradley_terry"
    weights = scorers.inner(directory) / "weights.npz"
    made = weights.stat().st_mtime_ns
    (directory / "reward_model.json").unlink()  # killed while the temperature was fitted
    again = fitted(tmp_path, tiny_base, split_rows, ON, "reward.length_control=people")
    assert weights.stat().st_mtime_ns == made
    assert isinstance(again.training, Tempered)
    assert json.dumps(again.training.temperature.to_dict()) == json.dumps(
        first.training.temperature.to_dict()
    )
    wrapped = (directory / "reward_model.json").stat().st_mtime_ns
    third = fitted(tmp_path, tiny_base, split_rows, ON, "reward.length_control=people")
    assert (directory / "reward_model.json").stat().st_mtime_ns == wrapped and third.notes == again.notes


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 64], ids=["empty", "cut", "zeros"])
@pytest.mark.parametrize("where", ["reward_model.json", "scorer/reward_model.json", "scorer/weights.npz"])
def test_a_damaged_reward_model_is_fitted_again(
    where: str, content: bytes, tiny_base: Path, tmp_path: Path, split_rows: list[pa.Table]
) -> None:
    first = fitted(tmp_path, tiny_base, split_rows, ON)
    directory = tmp_path / "run" / "reward-training"
    (directory / where).write_bytes(content)
    if where.startswith("scorer"):
        (directory / "reward_model.json").unlink()  # killed while the temperature was fitted, then damaged
    again = fitted(tmp_path, tiny_base, split_rows, ON)
    prompts, replies = [[{"role": "user", "content": "Well?"}]] * 2, ["Yes.", "No, that will not work here."]
    assert again.training.score(prompts, replies).mean == pytest.approx(
        first.training.score(prompts, replies).mean
    )


def test_people_who_judge_never_tell_the_temperature(
    tiny_base: Path, tmp_path: Path, split_rows: list[pa.Table]
) -> None:
    """Where prompts alone are held out, people of `test` are in `train`, too."""
    both = people_of(split_rows[1], "train")
    at = both.schema.get_field_index("split")
    both = both.set_column(at, both.schema.field(at), [["test"] * both.num_rows])
    prompts_only = ["prefer.split.test_users=0", "prefer.split.evaluation_users=0"]
    found = fitted(tmp_path, tiny_base, [split_rows[0], both], ON, *prompts_only).training
    assert isinstance(found, Tempered)
    assert (
        found.temperature.tau == 1 and found.temperature.votes == 0 and "too few" in found.temperature.reason
    )


def test_too_few_votes_leave_the_rewards_as_they_are_and_the_run_says_so(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rewards = fitted(tmp_path, tiny_base, [people_of(shorter_wins(40), "train")], ON)
    assert isinstance(rewards.training, Tempered) and rewards.training.temperature.tau == 1
    note = "Reward model: The temperature stays 1. 40 held-out votes of 20 people are too few; 100 of 10 are needed."
    assert note in rewards.notes


def test_a_dear_model_is_fitted_once_more_and_a_fifth_of_people_tell_its_temperature(
    tiny_base: Path, tmp_path: Path, split_rows: list[pa.Table]
) -> None:
    small = ["reward.preference_lm.max_tokens=96", "reward.preference_lm.lora_r=2"]
    few = ["reward.tempering.min_votes=20", "reward.tempering.min_users=4"]
    found = fitted(tmp_path, tiny_base, split_rows, ON, "reward.method=preference_lm", *small, *few).training
    assert isinstance(found, Tempered) and isinstance(found.scorer, PreferenceLM)
    assert (found.temperature.votes, found.temperature.users) == (28, 4)
    assert len(found.trained_on) == 140  # and the model that is used has heard everybody
