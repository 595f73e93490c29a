"""What an update leaves on disk: checkpoints while it runs, its result when it is done."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
RESULT = "result.json"
"""In an update's directory, once it is done."""
EVIDENCE = "hacked.json"
"""There, where a run was stopped because its reward was gamed."""
PROCESSES = "processes"
"""There, what the processes of an update were given to read."""
CHECKPOINT_FILES = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt")


@dataclass(frozen=True)
class TrainResult:
    """What an update produced."""

    adapter: Path
    """Plain PEFT directory of the new adapter."""
    metrics: dict[str, float]
    """Final loss, reward margin, accuracy, pairs, steps, seconds."""
    curve: list[dict[str, float]]
    """One entry per logged step: step, loss, margin, accuracy."""
    left_out: dict[str, int]
    """Train-split rows not used, by reason."""


def last_complete_checkpoint(output: Path) -> str | None:
    """The newest checkpoint with all its files; one cut short by a crash is removed.

    The state file is written last, so that a killed process leaves no readable one behind; the sizes are
    looked at because a machine that loses power may keep a file's name without its content.
    """
    for checkpoint in sorted(
        output.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]), reverse=True
    ):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text())
            if all((checkpoint / name).stat().st_size for name in CHECKPOINT_FILES):
                return str(checkpoint)
        except (OSError, ValueError):
            pass
        log.warning("checkpoint %s is incomplete and is dropped", checkpoint.name)
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None


def write_result(path: Path, result: TrainResult) -> None:
    """Write `result.json`; from then on the update is done."""
    body = {"metrics": result.metrics, "curve": result.curve, "left_out": result.left_out}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(body, indent=1))
    partial.replace(path)


def write_alarm(output: Path, alarm: Any, curve: list[dict[str, float]]) -> Path:
    """Keep why a run was stopped, and what it looked like until then, as `hacked.json`; its path.

    Args:
        output: directory of the update.
        alarm: a dataclass, or None.
        curve: one entry per step.
    """
    path = output / EVIDENCE
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({**(asdict(alarm) if alarm else {}), "curve": curve}, indent=1))
    partial.replace(path)
    return path


def read_result(path: Path) -> TrainResult:
    """The result of an update that was done before."""
    body = json.loads(path.read_text())
    return TrainResult(path.parent / "adapter", body["metrics"], body["curve"], body["left_out"])
