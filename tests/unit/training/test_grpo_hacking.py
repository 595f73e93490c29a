"""Whole GRPO runs whose reward is gamed are stopped within the run; an honest one is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training.grpo_case import Scores, ending_base, update
from training.hacking import RewardHacked
from training.reward_sources import Replies

HERE = "tests.unit.training.test_grpo_hacking"


@pytest.fixture(scope="module")
def base(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_base(tiny_base, tmp_path_factory.mktemp("ending") / "base")


RUN: dict[str, Any] = {
    "steps": 12,
    "prompts_per_step": 6,
    "group_size": 6,
    "micro_batch": 18,
    "max_new_tokens": 32,
    "beta": 0.0,
    "loss": "dapo",
    "learning_rate": 2e-2,
    "hacking": {},
}


def tokens(replies: Replies) -> np.ndarray:
    """Pays for length."""
    return replies.tokens.astype(float)


def asking(replies: Replies) -> list[float]:
    """Pays for ending with a question, and a little for every question mark."""
    return [t.endswith("?") + 0.2 * t.count("?") for t in replies.texts]


def honest(replies: Replies) -> np.ndarray:
    """Pays for a length near that of the champion's replies."""
    return -np.abs(replies.tokens - 22.0)


def paying(reward: str) -> dict[str, Any]:
    return {"rewards": {"sources": {f"{HERE}:{reward}": 1.0}, "guards": {}}}


@pytest.mark.parametrize("reward", ["tokens", "asking"])
def test_a_reward_that_is_gamed_is_caught_within_the_run(
    reward: str, base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    steps: list[int] = []
    changes = {"asking": {"max_new_tokens": 12, "learning_rate": 4e-2, "steps": 16}}.get(reward, {})
    with pytest.raises(RewardHacked) as caught:
        update(
            base,
            fresh_champion,
            tmp_path,
            on_step=lambda step, *_: steps.append(step),
            **{**RUN, **paying(reward), **changes},
        )
    alarm = caught.value.alarm
    assert alarm is not None
    assert alarm.quantity == {"tokens": "words", "asking": "question_share"}[reward]
    assert alarm.step >= 4 and steps[-1] == alarm.step - 1  # no step was made on such replies
    assert not (tmp_path / "adapter").exists() and not (tmp_path / "result.json").exists()
    assert caught.value.exit_code == 3
    evidence = tmp_path / "hacked.json"
    assert f"Next: read {evidence} " in str(caught.value) and str(caught.value).endswith("then run again")
    kept = json.loads(evidence.read_text())
    assert kept["quantity"] == alarm.quantity and kept["reason"] == alarm.reason
    assert [entry["step"] for entry in kept["curve"]] == steps


def test_a_heldout_scorer_that_falls_stops_the_run(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    with pytest.raises(RewardHacked, match="held-out scorer fell") as caught:
        update(
            base,
            fresh_champion,
            tmp_path,
            scorer=Scores(len, ["a"]),
            heldout=Scores(lambda text: -len(text), ["b"]),
            **{
                **RUN,
                "rewards": {"sources": {"reward_model": 1.0}, "guards": {}},
                "hacking": {"words": 100.0},
            },
        )
    assert caught.value.alarm is not None and caught.value.alarm.change < -0.25


def test_an_alarm_can_be_marked_instead(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    result = update(
        base, fresh_champion, tmp_path, **{**RUN, **paying("tokens"), "hacking": {"action": "mark"}}
    )
    assert result.metrics["hacked"] == 1
    assert result.metrics["hacked_step"] == result.metrics["steps"] + 1 == len(result.curve) + 1
    assert result.metrics["hacked/words"] > 0
    assert (result.adapter / "adapter_model.safetensors").is_file()


def test_an_honest_reward_runs_to_its_end(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    result = update(
        base,
        fresh_champion,
        tmp_path,
        heldout=Scores(lambda text: -abs(len(text.split()) - 8)),
        **{**RUN, **paying("honest"), "learning_rate": 5e-3, "steps": 8},
    )
    assert result.metrics["hacked"] == 0 and len(result.curve) == 8
    assert all(np.isfinite(entry["heldout"]) for entry in result.curve)
    assert not (tmp_path / "hacked.json").exists()
