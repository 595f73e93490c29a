"""An update over several processes is one call: it tells its steps, its errors, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from feedback.served import SERVED
from tests.unit.reward_models.made import shorter_wins
from tests.unit.training.test_dpo import CONFIG
from training import dpo, launch
from training.errors import NotEnoughPreferences, TrainingError
from training.grpo import Config as GRPOConfig
from training.hardware import Hardware
from training.update import Champion, Data, Run

TWO = Hardware(processes=2, bf16="off")


def test_two_processes_are_one_call(tmp_path: Path, tiny_base: Path, moved_champion: Path) -> None:
    champion = Champion(tiny_base, "test:tiny", moved_champion)
    data = Data(shorter_wins(24), SERVED.empty_table())
    steps: list[tuple[int, int]] = []
    run = Run(tmp_path / "two", 7, hardware=TWO, on_step=lambda k, n, m: steps.append((k, n)))
    shared = launch.train("dpo", CONFIG, champion, data, run)
    alone = dpo.train(CONFIG, champion, data, None, Run(tmp_path / "one", 7, hardware=Hardware(bf16="off")))
    assert steps == [(k, 6) for k in range(1, 7)]
    one, two = (load_file(r.adapter / "adapter_model.safetensors") for r in (alone, shared))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-6
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == ["adapter", "result.json"]
    assert launch.train("dpo", CONFIG, champion, data, run).metrics == shared.metrics  # done is done


def test_an_error_of_the_processes_is_the_error_of_the_call(
    tmp_path: Path, tiny_base: Path, moved_champion: Path
) -> None:
    champion = Champion(tiny_base, "test:tiny", moved_champion)
    data = Data(shorter_wins(3), SERVED.empty_table())
    with pytest.raises(NotEnoughPreferences, match="min_pairs") as caught:
        launch.train("dpo", CONFIG, champion, data, Run(tmp_path, 7))  # in a process of its own, too
    assert caught.value.exit_code == 4


def test_a_method_of_one_process_is_refused(tmp_path: Path, tiny_base: Path, moved_champion: Path) -> None:
    champion = Champion(tiny_base, "test:tiny", moved_champion)
    data = Data(shorter_wins(3), SERVED.empty_table())
    with pytest.raises(TrainingError, match="one process"):
        launch.train("grpo", GRPOConfig(), champion, data, Run(tmp_path, 7, hardware=TWO))


STARTER = """
import sys
from pathlib import Path
from feedback.served import SERVED
from tests.unit.reward_models.made import shorter_wins
from tests.unit.training.test_dpo import CONFIG
from training import launch
from training.hardware import Hardware
from training.update import Champion, Data, Run

base, champion, output = map(Path, sys.argv[1:])
config = CONFIG.model_copy(update={"epochs": 1000.0})
run = Run(output, 7, hardware=Hardware(processes=2, bf16="off"), on_step=lambda k, n, m: print(k, flush=True))
launch.train("dpo", config, Champion(base, "test:tiny", champion), Data(shorter_wins(24), SERVED.empty_table()), run)
"""


def test_processes_end_with_the_one_that_started_them(
    tmp_path: Path, tiny_base: Path, moved_champion: Path
) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tiny_base), str(moved_champion), str(tmp_path / "update")],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout and started.stdout.readline() == "1\n"
    spec = str(tmp_path / "update/processes/spec.json")
    assert len(_running(spec)) >= 3  # the launcher and two of its own
    started.send_signal(signal.SIGKILL)
    started.wait()
    started.stdout.close()
    deadline = time.monotonic() + 30
    while _running(spec) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _running(spec) == []


def _running(argument: str) -> list[int]:
    """Processes with that argument."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if argument in (process / "cmdline").read_text().split("\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found
