"""Run a DPO update in a process of its own and kill it -9 after a given step: `python -m … spec.json`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow.parquet as pq
import torch

from training import dpo


def main(spec: dict[str, str | int]) -> None:
    """Update as `spec` says; never returns when `kill_at` is a step of it."""
    torch.set_num_threads(int(spec["threads"]))

    def die(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if step == spec["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    dpo.train(
        dpo.Config.model_validate_json(str(spec["config"])),
        base=Path(str(spec["base"])),
        base_id="test:tiny",
        champion=Path(str(spec["champion"])),
        preferences=pq.read_table(spec["rows"]),
        output=Path(str(spec["output"])),
        seed=int(spec["seed"]),
        on_step=die,
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
