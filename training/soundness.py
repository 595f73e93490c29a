"""No checkpoint of a policy that is not a number: the last good one stays what a run goes on from.

Importing this module imports transformers: do it inside functions.
"""

from __future__ import annotations

import math
from typing import Any

from transformers import TrainerCallback


class SavesOnlySound(TrainerCallback):
    """Calls off a checkpoint after a step whose loss, or whose new weights, are not finite."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Before the step's loss is logged: its update may have broken the weights all the same."""
        if control.should_save and not finite(model):
            control.should_save = False
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """After the loss is known, before anything is saved."""
        if logs and not math.isfinite(logs.get("loss", 0.0)):
            control.should_save = False


def finite(model: Any) -> bool:
    """Whether every trained weight is a finite number."""
    return all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad)
