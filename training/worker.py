"""One of the processes of an update: `torchrun … -m training.worker spec.json`, as `training.launch` starts it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from feedback.errors import PalateError
from training.hardware import Hardware
from training.update import Champion, Data, Run, method

LOOK_EVERY_S = 1.0
REFUSED = 70
"""Exit code of a process whose error the first one has told."""


def main(file: Path) -> int:
    """Run the update of a spec; the first process tells steps and errors."""
    spec: dict[str, Any] = json.loads(file.read_text())
    first = os.environ.get("RANK", "0") == "0"
    threading.Thread(target=_end_with, args=(spec["started_by"],), daemon=True).start()

    def step(done: int, total: int, metrics: dict[str, float]) -> None:
        _tell({"step": done, "steps": total, "metrics": metrics})

    champion = spec["champion"]
    until = spec["learned_until"]
    how = method(spec["method"])
    try:
        how.train(
            how.Config.model_validate(spec["config"]),
            Champion(
                Path(champion["base"]), champion["base_id"], Path(champion["adapter"]), champion["digest"]
            ),
            Data(
                pq.read_table(spec["preferences"]),
                pq.read_table(spec["served"]),
                None if until is None else datetime.fromisoformat(until),
            ),
            None,
            Run(
                Path(spec["output"]),
                spec["seed"],
                cache=Path(spec["cache"]) if spec["cache"] else None,
                on_step=step if first else None,
                hardware=Hardware.model_validate(spec["hardware"]),
            ),
        )
    except PalateError as error:
        if first:
            got, allowed = (None if x is None else str(x) for x in (error.got, error.allowed))
            told = {"what": error.what, "got": got, "allowed": allowed, "next_step": error.next_step}
            _tell({"error": {"class": type(error).__name__, **told}})
        return REFUSED
    return 0


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _end_with(pid: int) -> None:
    """End this process when the one that started the update is gone: a new update may then be writing there."""
    while _alive(pid):
        time.sleep(LOOK_EVERY_S)
    os._exit(REFUSED)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
