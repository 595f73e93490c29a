"""What a run says before hours of training."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from palate.console import Out
from palate.context import open_project
from palate.learn import fit_rewards
from pipelines.dataset import ROWS, Dataset
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
