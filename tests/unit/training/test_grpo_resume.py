"""A GRPO update that is killed goes on as if it had not been."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.grpo_case import ending_base, update
from tests.unit.training.test_adapter import contents
from training.result import TrainResult

ROOT = Path(__file__).parents[3]
TIMES = {"tokens_per_s", "rollout_s", "rollout_tokens_per_s"}


@pytest.fixture(scope="module")
def base(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_base(tiny_base, tmp_path_factory.mktemp("ending") / "base")


def without_times(result: TrainResult) -> tuple[dict[str, float], list[dict[str, float]]]:
    curve = [{k: v for k, v in entry.items() if k not in TIMES} for entry in result.curve]
    return {k: v for k, v in result.metrics.items() if k not in TIMES}, curve


def started(base: Path, champion: Path, output: Path, step: int, **changes: Any) -> subprocess.Popen[bytes]:
    """An update in a process of its own that dies after a step."""
    spec = {"base": str(base), "champion": str(champion), "output": str(output), "kill_at": step}
    file = output.parent / "spec.json"
    file.write_text(json.dumps({**spec, "changes": changes}))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.training.grpo_case", str(file)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def test_killed_and_run_again_gives_the_undisturbed_adapter(
    base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sampled: list[dict[str, Any]] = []
        again: list[dict[str, Any]] = []
        changes = {
            "iterations": 2,
            "save_every_steps": 3,
            "refill_rounds": 1,
            "prompts_per_step": 2,
        }  # 3 is between two uses: 4 it is
        killed = started(base, moved_champion, tmp_path / "b", 5, **changes)
        wanted = update(
            base, moved_champion, tmp_path / "a", on_samples=lambda _, rows: sampled.extend(rows), **changes
        )
        _, errors = killed.communicate(timeout=120)
        assert killed.returncode == -signal.SIGKILL, errors.decode()[-2000:]
        kept = sorted(p.name for p in (tmp_path / "b").glob("checkpoint-*"))
        assert kept == ["checkpoint-4"]
        result = update(
            base, moved_champion, tmp_path / "b", on_samples=lambda _, rows: again.extend(rows), **changes
        )
    finally:
        torch.set_num_threads(threads)
    assert again == [row for row in sampled if row["step"] > 4]  # the same prompts, replies and rewards
    assert contents(result.adapter) == contents(wanted.adapter)
    assert without_times(result) == without_times(wanted)
