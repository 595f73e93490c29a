"""What the policy says while it learns from logged replies is handed over, kept in the log, and can stop the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feedback.served import SERVED
from feedback.tables import PREFERENCES
from tests.unit.reward_models.made import shorter_wins
from tests.unit.training.grpo_case import Scores
from tests.unit.training.served import served_row, served_rows
from tests.unit.training.test_adapter import contents
from tests.unit.training.test_dpo import CONFIG, update
from training import dpo, words
from training.hacking import RewardHacked
from training.settings import WatchSettings
from training.update import Champion, Data, Run

WATCH = WatchSettings(every_steps=2, prompts=4, max_new_tokens=12)


class Stop(Exception):
    """What cuts a run short in these tests."""


def watched(
    base: Path, champion: Path, output: Path, sampled: list[Any], *, stop_at: int = 0, **run: Any
) -> Any:
    """An update of six steps that is sampled; `stop_at` cuts it short after that step."""

    def step(done: int, _total: int, _metrics: dict[str, float]) -> None:
        if done == stop_at:
            raise Stop

    return dpo.train(
        CONFIG.model_copy(update={"watch": WATCH}),
        Champion(base, "test:tiny", champion),
        Data(shorter_wins(24), SERVED.empty_table()),
        Scores(len),
        Run(output, 7, on_step=step, on_samples=lambda k, rows: sampled.append((k, rows)), **run),
    )


def test_being_watched_changes_nothing_that_is_learned(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    sampled: list[Any] = []
    seen = watched(tiny_base, moved_champion, tmp_path / "watched", sampled)
    unseen = update(tiny_base, moved_champion, tmp_path / "unseen", watch=WatchSettings(every_steps=0))
    assert contents(seen.adapter) == contents(unseen.adapter)
    assert [k for k, _ in sampled] == [0, 2, 4, 6]
    first = sampled[0][1]
    assert len(first) == 4
    assert {row["prompt_key"] for row in first} == {row["prompt_key"] for row in sampled[-1][1]}
    assert all(row["reward"] == len(row["completion"]) and 1 <= row["tokens"] <= 12 for row in first)
    looked = [entry for entry in seen.curve if "sampled/entropy" in entry]
    assert [entry["step"] for entry in looked] == [2, 4, 6]
    assert all(0 < entry["sampled/entropy"] < 8 for entry in looked)
    assert looked[-1]["sampled/reward"] == pytest.approx(sum(row["reward"] for row in sampled[-1][1]) / 4)
    assert seen.metrics["hacked"] == 0
    json.loads((tmp_path / "watched/result.json").read_text())


def test_what_was_seen_outlives_a_run_that_is_cut_short(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    whole: list[Any] = []
    undisturbed = watched(tiny_base, moved_champion, tmp_path / "whole", whole)
    before: list[Any] = []
    with pytest.raises(Stop):
        watched(tiny_base, moved_champion, tmp_path / "cut", before, stop_at=5)
    after: list[Any] = []
    resumed = watched(tiny_base, moved_champion, tmp_path / "cut", after)
    assert [k for k, _ in before] == [0, 2, 4]
    assert [k for k, _ in after] == [6]
    assert [*before, *after] == whole
    assert resumed.curve == undisturbed.curve


def ending_in_questions(count: int) -> Any:
    """Replies that every user changed into a question, of seven tokens."""
    return served_rows([served_row(n, f"Number {n} is odd.", edit="Is it odd?") for n in range(count)])


@pytest.mark.parametrize("action", ["raise", "mark"])
def test_a_policy_that_has_become_something_else_is_stopped(
    action: str, tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    hacking = {"action": action, "min_steps": 3, "recent": 1, "words": 100.0, "repetition": 100.0}
    watch = WatchSettings.model_validate(
        {
            "every_steps": 5,
            "prompts": 8,
            "replies": 2,
            "max_new_tokens": 7,
            "temperature": 0.2,
            "hacking": hacking,
        }
    )
    config = words.Config(
        learning_rate=2e-2,
        epochs=10,
        batch_rows=8,
        micro_batch_rows=8,
        min_rows=8,
        max_tokens=96,
        watch=watch,
    )
    data = Data(PREFERENCES.empty_table(), ending_in_questions(32))

    def train() -> Any:
        champion = Champion(tiny_base, "test:tiny", moved_champion, "champion")
        return words.train(config, champion, data, None, Run(tmp_path / "update", 7))

    if action == "raise":
        with pytest.raises(RewardHacked, match="end with a question") as caught:
            train()
        assert caught.value.exit_code == 3
        assert not (tmp_path / "update/adapter").exists()
    else:
        result = train()
        assert result.metrics["hacked"] == 1
        assert result.metrics["steps"] < 40
    alarm = json.loads((tmp_path / "update/hacked.json").read_text())
    assert alarm["quantity"] == "question_share"
    assert alarm["change"] > 0.5
    assert alarm["curve"][-1]["step"] == alarm["step"] < 40


def test_few_steps_are_not_sampled(tiny_base: Path, moved_champion: Path, tmp_path: Path) -> None:
    sampled: list[Any] = []
    result = dpo.train(
        CONFIG,
        Champion(tiny_base, "test:tiny", moved_champion),
        Data(shorter_wins(24), SERVED.empty_table()),
        None,
        Run(tmp_path, 7, on_samples=lambda k, rows: sampled.append(k)),
    )
    assert sampled == []
    assert "hacked" not in result.metrics
