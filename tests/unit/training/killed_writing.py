"""Kill updates -9 in the middle of writing a file: `python -m tests.unit.training.killed_writing spec.json`.

The file is written, cut to half and the process killed: what a kill in the middle of that write leaves. One process
imports torch, and each update is a fork of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft.peft_model
import pyarrow.parquet as pq
import torch
from transformers import TrainerState

import training.policy_trainer  # noqa: F401  (before the forks)
from feedback.served import SERVED
from training import dpo
from training.update import Champion, Data, Run

WHERE = "checkpoint-4"


def cut_short(write: Callable[..., Any], target: str, place: int) -> Callable[..., Any]:
    """`write`, which ends in a kill when its argument at `place` is the target in the fatal checkpoint."""

    def wrapped(*args: Any, **named: Any) -> Any:
        written = write(*args, **named)
        path = Path(str(args[place]))
        if path.name == target and path.parent.name == WHERE:
            os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    return wrapped


def update(spec: dict[str, Any], target: str) -> None:
    """Update until `target` is half written."""
    torch.save = cut_short(torch.save, target, 1)
    peft.peft_model.safe_save_file = cut_short(peft.peft_model.safe_save_file, target, 1)
    TrainerState.save_to_json = cut_short(TrainerState.save_to_json, target, 1)  # type: ignore[method-assign]
    dpo.train(
        dpo.Config.model_validate_json(spec["config"]),
        Champion(Path(spec["base"]), "test:tiny", Path(spec["champion"])),
        Data(pq.read_table(spec["rows"]), SERVED.empty_table()),
        None,
        Run(Path(spec["output"]) / target, spec["seed"]),
    )


def main(spec: dict[str, Any]) -> None:
    """One fork for each file; prints by which signal each died."""
    torch.set_num_threads(1)
    died = {}
    for target in spec["files"]:
        child = os.fork()
        if child == 0:
            try:
                update(spec, target)
            finally:
                os._exit(0)
        died[target] = os.WTERMSIG(os.waitpid(child, 0)[1])
    print(json.dumps(died))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
