"""Run an update in a process of its own and kill it -9 after a given step: `python -m … spec.json`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow.parquet as pq
import torch

from feedback.served import SERVED
from training.update import Champion, Data, Run, method


def main(spec: dict[str, str | int]) -> None:
    """Update as `spec` says; never returns when `kill_at` is a step of it."""
    torch.set_num_threads(int(spec["threads"]))

    def die(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if step == spec["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    how = method(str(spec.get("method", "dpo")))
    how.train(
        how.Config.model_validate_json(str(spec["config"])),
        Champion(Path(str(spec["base"])), "test:tiny", Path(str(spec["champion"]))),
        Data(pq.read_table(spec["rows"]), SERVED.empty_table()),
        None,
        Run(Path(str(spec["output"])), int(spec["seed"]), on_step=die),
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
