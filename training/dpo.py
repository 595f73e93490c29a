"""Direct preference optimisation of the champion's adapter (TRL).

Loss, per pair (x, y_w, y_l), with policy p, reference r (the champion), sigmoid s:

    L = -log s(beta * [log p(y_w|x)/r(y_w|x) - log p(y_l|x)/r(y_l|x)]) + sft_weight * (-log p(y_w|x) / |y_w|)

First term: Rafailov et al. 2023 (arXiv 2305.18290), eq. 7. Second: the regularised form of Pang et al. 2024
(arXiv 2404.19733) and Liu et al. 2024 (arXiv 2405.16436), which keeps the chosen text likely instead of only
making the rejected one unlikely.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reward_models.hardware import fast_bf16
from training.adapter import save_adapter
from training.errors import NotEnoughPreferences, TrainingError
from training.pairs import Chosen, choose_pairs
from training.result import TrainResult, last_complete_checkpoint, read_result, write_result
from training.trl_on_cpu import only_needed_positions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
OnStep = Callable[[int, int, dict[str, float]], None]


class Config(BaseModel):
    """Settings of a DPO update."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the champion (the paper's beta)."""
    sft_weight: float = Field(default=0.0, ge=0)
    """Weight of the likelihood term on the chosen reply; 0 is plain DPO."""
    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate of AdamW on the adapter."""
    epochs: float = Field(default=1.0, gt=0)
    """Passes over the pairs."""
    batch_pairs: int = Field(default=8, ge=1)
    """Pairs per optimizer step."""
    micro_batch_pairs: int = Field(default=8, ge=1)
    """Pairs per forward and backward pass; must divide `batch_pairs`."""
    max_tokens: int = Field(default=512, ge=16)
    """Pairs with a longer prompt and reply are left out and counted, not cut."""
    max_pairs: int = Field(default=4096, ge=1)
    """At most this many pairs, heavier rows first in expectation."""
    min_pairs: int = Field(default=16, ge=1)
    """With fewer pairs the update refuses to run (exit code 4)."""
    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0; 0 starts at the peak."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    save_every_steps: int = Field(default=10, ge=1)
    """A checkpoint every so many steps; a killed run goes on from the last complete one."""

    @model_validator(mode="after")
    def _batches_divide(self) -> Config:
        if self.batch_pairs % self.micro_batch_pairs:
            raise ValueError(
                f"micro_batch_pairs ({self.micro_batch_pairs}) must divide batch_pairs ({self.batch_pairs})"
            )
        return self


def train(
    config: Config,
    *,
    base: Path,
    base_id: str,
    champion: Path,
    preferences: pa.Table,
    output: Path,
    seed: int,
    on_step: OnStep | None = None,
) -> TrainResult:
    """Continue the champion's adapter on the train split of `preferences`.

    Safe to kill at any moment: a finished update is returned as it is, an unfinished one resumes from its
    last complete checkpoint and, on the same machine, gives the adapter that an undisturbed run gives.

    Args:
        base: directory of the base model.
        base_id: the base model's id, written into the adapter.
        champion: PEFT directory of the champion; it is also the reference policy.
        preferences: PREFERENCES table; rows of other splits are never read.
        output: directory for checkpoints, `adapter/` and `result.json`.
        on_step: called with (step, total steps, metrics) after every optimizer step.

    Raises:
        NotEnoughPreferences: fewer than `min_pairs` usable pairs.
        TrainingError: the loss or a weight is not finite.
    """
    done = output / "result.json"
    if done.is_file():
        return read_result(done)
    chosen = _choose(config, base, preferences, seed)
    output.mkdir(parents=True, exist_ok=True)
    with only_needed_positions():
        trainer = _trainer(config, base, champion, chosen.rows, output, seed, on_step)
        outcome = trainer.train(resume_from_checkpoint=last_complete_checkpoint(output))
    curve = _curve(trainer.state.log_history)
    _refuse_not_finite(curve, trainer.model)
    save_adapter(trainer.model, base_id, output / "adapter")
    metrics = {
        **{k: v for k, v in curve[-1].items() if k != "step"},
        "pairs": float(len(trainer.train_dataset)),
        "steps": float(trainer.state.global_step),
        "train_s": float(outcome.metrics.get("train_runtime", 0.0)),
    }
    result = TrainResult(output / "adapter", metrics, curve, chosen.left_out)
    write_result(done, result)
    for checkpoint in output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)
    (output / "README.md").unlink(missing_ok=True)  # TRL's model card of the checkpoints
    return result


def _choose(config: Config, base: Path, preferences: pa.Table, seed: int) -> Chosen:
    """The pairs to train on, none longer than `max_tokens`.

    Raises:
        NotEnoughPreferences: fewer than `min_pairs`.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)

    def fits(row: dict[str, Any]) -> bool:
        return _longest(tokenizer, _example(row)) <= config.max_tokens

    chosen = choose_pairs(preferences, max_pairs=config.max_pairs, seed=seed, fits=fits)
    if chosen.rows.num_rows < config.min_pairs:
        unused = ", ".join(f"{reason}: {n}" for reason, n in chosen.left_out.items())
        raise NotEnoughPreferences(
            "Too few preference pairs to learn from.",
            got=f"{chosen.rows.num_rows} usable pairs ({unused or 'no others'})",
            allowed=f"at least {config.min_pairs} ([train.dpo] min_pairs)",
            next_step="collect more feedback, then run again; `palate show dataset` lists what there is",
        )
    return chosen


def to_trl(rows: pa.Table) -> list[dict[str, Any]]:
    """PREFERENCES rows as TRL's conversational preference examples."""
    return [_example(row) for row in rows.select(["prompt", "chosen", "rejected"]).to_pylist()]


def _example(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt": row["prompt"],
        "chosen": [{"role": "assistant", "content": row["chosen"]}],
        "rejected": [{"role": "assistant", "content": row["rejected"]}],
    }


def _trainer(
    config: Config,
    base: Path,
    champion: Path,
    rows: pa.Table,
    output: Path,
    seed: int,
    on_step: OnStep | None,
) -> Any:
    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from trl import DPOConfig, DPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(champion), is_trainable=True)
    losses, weights = ["sigmoid"], [1.0]
    if config.sft_weight:
        losses, weights = ["sigmoid", "sft"], [1.0, config.sft_weight]
    arguments = DPOConfig(
        output_dir=str(output),
        beta=config.beta,
        loss_type=losses,
        loss_weights=weights,
        learning_rate=config.learning_rate,
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.micro_batch_pairs,
        gradient_accumulation_steps=config.batch_pairs // config.micro_batch_pairs,
        max_length=config.max_tokens,
        warmup_steps=config.warmup_share,
        lr_scheduler_type="constant_with_warmup" if config.schedule == "constant" else config.schedule,
        gradient_checkpointing=torch.cuda.is_available(),
        bf16=fast_bf16(),
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        logging_nan_inf_filter=False,  # on, it logs a loss that is not a number as 0
        save_strategy="steps",
        save_steps=config.save_every_steps,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        seed=seed,
        data_seed=seed,
        dataloader_pin_memory=False,
    )
    trainer = DPOTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(to_trl(rows)),
        processing_class=tokenizer,
        callbacks=[_progress_callback(on_step)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _longest(tokenizer: Any, example: dict[str, Any]) -> int:
    return max(
        len(
            tokenizer.apply_chat_template(example["prompt"] + example[side], tokenize=True, return_dict=False)
        )
        for side in ("chosen", "rejected")
    )


def _progress_callback(on_step: OnStep | None) -> Any:
    from transformers import TrainerCallback

    class Progress(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            if on_step and logs and "loss" in logs:
                on_step(state.global_step, state.max_steps, logs)
            if logs and not math.isfinite(logs.get("loss", 0.0)):
                control.should_training_stop = True

    return Progress()


def _curve(history: list[dict[str, float]]) -> list[dict[str, float]]:
    names = {"loss": "loss", "margin": "rewards/margins", "accuracy": "rewards/accuracies"}
    return [
        {"step": float(entry["step"]), **{k: float(entry[v]) for k, v in names.items() if v in entry}}
        for entry in history
        if "loss" in entry
    ]


def _refuse_not_finite(curve: list[dict[str, float]], model: Any) -> None:
    """Raise unless every logged loss and every trained weight is a finite number.

    The weights are looked at too: the last step's update comes after the last logged loss.
    """
    bad = [entry for entry in curve if not math.isfinite(entry["loss"])]
    trained = [p for p in model.parameters() if p.requires_grad]
    if bad or not curve or not all(bool(p.isfinite().all()) for p in trained):
        raise TrainingError(
            "Training diverged: a loss or a weight is not a finite number. No adapter was written.",
            got=bad[:1] or ("a weight that is not finite" if curve else "no step was logged"),
            next_step="lower [train.dpo] learning_rate",
        )
