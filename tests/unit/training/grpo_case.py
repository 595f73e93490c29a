"""Small GRPO updates that several test files run: a base whose replies end now and then, prompts, a way to kill a run.

`python -m tests.unit.training.grpo_case spec.json` runs an update in a process of its own that kills itself -9.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from feedback.served import SERVED
from reward_models.scorer import Rewards
from tests.unit.reward_models.made import row, table
from training import grpo
from training.result import TrainResult
from training.reward_sources import Replies
from training.update import Champion, Data, Run

BASE_ID = "test:tiny"
ENDS = [2, *range(300, 370)]
SMALL: dict[str, Any] = {
    "steps": 6,
    "prompts_per_step": 4,
    "group_size": 4,
    "micro_batch": 4,
    "max_new_tokens": 12,
    "precision": "fp32",
    "learning_rate": 1e-2,
    "warmup_share": 0.0,
    "save_every_steps": 2,
    "rewards": {"sources": {"tests.unit.training.grpo_case:brevity": 1.0}, "guards": {}},
    "hacking": {"action": "off"},
}


def ending_base(base: Path, directory: Path) -> Path:
    """The tiny base, of whose tokens about one in fourteen ends a reply: lengths then differ.

    What ends a reply is alike (its embeddings are near one vector), so that a policy can learn to end, or not to.
    """
    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(base, directory)
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        rows = model.get_output_embeddings().weight
        alike = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(3))
        rows[ENDS] = 0.2 * rows[ENDS] + 0.12 * alike
    model.generation_config.eos_token_id = ENDS
    model.save_pretrained(directory)
    return directory


def brevity(replies: Replies) -> np.ndarray:
    """Minus the tokens."""
    return -replies.tokens.astype(float)


def constant(replies: Replies) -> list[float]:
    """Pays every reply the same."""
    return [0.5] * len(replies)


def prompts(count: int, **changes: Any) -> pa.Table:
    """PREFERENCES rows of so many prompts, of quite different lengths."""
    return table(
        [
            row(n, prompt=[{"role": "user", "content": "Tell me. " * (1 + 3 * (n % 4)) + str(n)}], **changes)
            for n in range(count)
        ]
    )


def update(
    base: Path,
    champion: Path,
    output: Path,
    *,
    rows: pa.Table | None = None,
    served: pa.Table | None = None,
    scorer: Any = None,
    heldout: Any = None,
    on_step: Any = None,
    on_samples: Any = None,
    **changes: Any,
) -> TrainResult:
    """One small update; `changes` replace settings."""
    return grpo.train(
        grpo.Config.model_validate({**SMALL, **changes}),
        Champion(base, BASE_ID, champion),
        Data(prompts(24) if rows is None else rows, SERVED.empty_table() if served is None else served),
        scorer,
        Run(output, 7, heldout=heldout, on_step=on_step, on_samples=on_samples),
    )


class Scores:
    """A scorer that is a function of the text."""

    def __init__(self, rule: Any, trained_on: Sequence[str] = ()) -> None:
        self.rule, self.trained_on = rule, frozenset(trained_on)
        self.asked: list[tuple[Any, ...]] = []

    def score(self, prompts: Any, completions: Any, user_ids: Any = None, agents: Any = None) -> Rewards:
        """Scores, and what was asked kept."""
        self.asked += list(zip(prompts, completions, user_ids, agents, strict=True))
        mean = np.array([float(self.rule(text)) for text in completions])
        return Rewards(mean, np.full(len(mean), np.nan))


def main(spec: dict[str, Any]) -> None:
    """Update as `spec` says; never returns when `kill_at` is a step of it."""
    import torch

    torch.set_num_threads(1)

    def die(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if step == spec["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    update(Path(spec["base"]), Path(spec["champion"]), Path(spec["output"]), on_step=die, **spec["changes"])


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
