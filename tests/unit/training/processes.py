"""Updates over several processes: `torchrun --nproc-per-node 2 -m tests.unit.training.processes spec.json`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from feedback.errors import PalateError
from feedback.served import SERVED
from feedback.tables import PREFERENCES
from training.hardware import Hardware, is_main
from training.update import Champion, Data, Run, method


def update(case: dict[str, Any], given: dict[str, Any]) -> None:
    """One update as `case` says; writes `error.txt` where it is refused.

    After the step `copy_at` its folder is copied as it then is, for another case: what a kill there leaves.
    """
    how, output = method(case["method"]), Path(case["output"])

    def copies(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if step == case.get("copy_at"):
            shutil.copytree(output, case["copy_to"])

    data = Data(
        pq.read_table(case["preferences"]) if "preferences" in case else PREFERENCES.empty_table(),
        pq.read_table(case["served"]) if "served" in case else SERVED.empty_table(),
    )
    champion = Champion(Path(given["base"]), "test:tiny", Path(given["champion"]), "champion")
    run = Run(output, given["seed"], on_step=copies, hardware=Hardware(**case["hardware"]))
    try:
        how.train(how.Config(**case["config"]), champion, data, None, run)
    except PalateError as error:
        if is_main():
            output.mkdir(parents=True, exist_ok=True)
            (output / "error.txt").write_text(str(error))


def main(spec: dict[str, Any]) -> None:
    """All cases of `spec`, one after another."""
    torch.set_num_threads(1)
    for case in spec["cases"]:
        update(case, spec)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
