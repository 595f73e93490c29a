"""What a finished GRPO run leaves behind: its adapter and result."""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING, Any

from training.adapter import save_adapter
from training.errors import TrainingError
from training.hacking import RewardHacked
from training.result import RESULT, TrainResult, write_result

if TYPE_CHECKING:
    from training.grpo import Config
    from training.grpo_prompts import Chosen
    from training.update import Champion, Run


def curve_of(trainer: Any) -> list[dict[str, float]]:
    """One entry for each optimizer step."""
    from training.grpo_trainer import curve_entry

    return [curve_entry(entry) for entry in trainer.state.log_history if "loss" in entry]


def finished(
    trainer: Any, config: Config, champion: Champion, chosen: Chosen, run: Run, hacked: RewardHacked | None
) -> TrainResult:
    """Save the adapter and the result; nothing is left of the checkpoints.

    Raises:
        TrainingError: nothing was learned from, or a loss or weight is not finite.
    """
    from training.grpo_rollout import nothing_to_learn

    curve = curve_of(trainer)
    _refuse_not_finite(curve, trainer.model)
    if not hacked and all(e.get("groups_teaching", 1.0) == 0 for e in curve):
        raise nothing_to_learn(len(curve), config)
    save_adapter(trainer.model, champion.base_id, run.output / "adapter")
    metrics = {
        **{name: value for name, value in curve[-1].items() if name != "step"},
        "prompts": float(len(chosen.prompts)),
        "prompt_ids_mismatched": float(chosen.mismatched),
        **chosen.metrics,
        "steps": float(trainer.state.global_step),
        "hacked": float(hacked is not None),
    }
    if hacked and hacked.alarm:
        metrics |= {
            "hacked_step": float(hacked.alarm.step),
            f"hacked/{hacked.alarm.quantity}": hacked.alarm.change,
        }
    result = TrainResult(run.output / "adapter", metrics, curve, chosen.left_out)
    write_result(run.output / RESULT, result)
    for checkpoint in run.output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)
    (run.output / "README.md").unlink(missing_ok=True)  # TRL's model card of the checkpoints
    return result


def _refuse_not_finite(curve: list[dict[str, float]], model: Any) -> None:
    """Raise unless every logged loss and every trained weight is a finite number.

    The weights are looked at too: the last step's update comes after the last logged loss.
    """
    from training.soundness import finite

    bad = [entry for entry in curve if not math.isfinite(entry["loss"])]
    if bad or not curve or not finite(model):
        raise TrainingError(
            "Training diverged: a loss or a weight is not a finite number. No adapter was written.",
            got=f"loss {bad[0]['loss']} at step {bad[0]['step']:.0f}"
            if bad
            else "a weight that is not finite",
            next_step="lower [train.grpo] learning_rate",
        )
