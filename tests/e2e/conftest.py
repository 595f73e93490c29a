"""The command line as a user runs it: a real process in a fresh directory, on the tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PALATE = Path(sys.executable).with_name("palate")
# Enough for every stage to have something to do, small enough for seconds.
TINY = (
    "model.sampling.max_new_tokens=12",
    "model.lora.r=4",
    "model.lora.last_layers=1",
    "population.users=40",
    "population.judged_prompts=24",
    "train.dpo.learning_rate=1e-4",
    "train.dpo.sft_weight=0.0",
    "train.dpo.max_pairs=32",
    "train.dpo.save_every_steps=2",
)


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout."""
        document: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return document


Palate = Callable[..., Result]


def environment() -> dict[str, str]:
    """One thread for each process: tests run side by side."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def run_palate(cwd: Path, *arguments: str) -> Result:
    """`palate …` in a directory, to its end."""
    done = subprocess.run(
        [str(PALATE), *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def palate(tmp_path: Path) -> Palate:
    """Runs `palate …` in this test's own directory."""

    def run(*arguments: str, cwd: Path = tmp_path) -> Result:
        return run_palate(cwd, *arguments)

    return run


def settings(base: Path, *more: str) -> list[str]:
    """`--set` options for a run on the tiny model."""
    values = (f"model.base=path:{base}", *TINY, *more)
    return [part for value in values for part in ("--set", value)]


@pytest.fixture(scope="session")
def demo_workspace(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """One demo on the tiny model with labels that say nothing: its directory and its result."""
    cwd = tmp_path_factory.mktemp("demo")
    return cwd, run_palate(cwd, "demo", "--json", "--shuffled-labels", *settings(tiny_base))
