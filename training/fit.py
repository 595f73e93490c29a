"""From items and a loss to a finished adapter: what all updates by gradient descent share."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.adapter import save_adapter
from training.errors import TrainingError
from training.full_disk import stops_when_full
from training.hacking import RewardHacked
from training.hardware import Hardware, is_main, refuse_unfit, refuse_whole, sharding, together
from training.leash import Leash
from training.reference import cache_file, reference_logprobs
from training.result import (
    PROCESSES,
    RESULT,
    TrainResult,
    last_complete_checkpoint,
    read_result,
    write_alarm,
    write_result,
)
from training.settings import UpdateSettings
from training.update import Champion, Data, Run

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import TrainingArguments

    from reward_models.scorer import Scorer
    from training.policy_trainer import Item, Objective, PolicyTrainer

log = logging.getLogger(__name__)


def load_champion(champion: Champion, hardware: Hardware | None = None, processes: int = 1) -> Any:
    """The champion as a PEFT model whose adapter can be trained, in single precision.

    Raises:
        TrainingError: the base was to be split over processes and is not.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    hardware = hardware or Hardware()
    split = sharding(hardware, processes)
    how = {} if split is None else {"distributed_config": split}
    model: Any = AutoModelForCausalLM.from_pretrained(champion.base, dtype=torch.float32, **how)
    model = PeftModel.from_pretrained(model, str(champion.adapter), is_trainable=True)
    refuse_whole(model, hardware)
    return model


def fit(
    settings: UpdateSettings,
    champion: Champion,
    run: Run,
    items: Sequence[Item],
    objective: Objective,
    *,
    per_step: int,
    micro_batch: int,
    metrics: dict[str, float],
    left_out: dict[str, int],
    check: Callable[[Sequence[Item]], dict[str, float]] | None = None,
    steps: Sequence[Sequence[int]] | None = None,
    data: Data | None = None,
    scorer: Scorer | None = None,
) -> TrainResult:
    """Train on items, save the adapter, write the result.

    Args:
        settings: optimizer and schedule.
        champion: where it starts, and the reference.
        run: where files go.
        items: what is learned from, without references.
        objective: the loss.
        per_step: items per optimizer step, over all processes.
        micro_batch: items per forward and backward pass.
        metrics: what the method says of its data; joined by the last step's figures.
        left_out: rows not used, by reason.
        check: sees the items with their references before any training; what it returns joins the metrics.
        steps: places of the items of each optimizer step, where a method puts its steps together itself; `per_step` is
            then how many of these make one.
        data: whose prompts are answered while it learns, see `training.watching`; None answers none.
        scorer: what pays those replies.

    Raises:
        RewardHacked: the reward was being gamed (exit code 3).
        TrainingError: the loss or a weight is not finite, or the disk is full.
    """
    from training.watching import watching

    with stops_when_full(run.output):
        run.output.mkdir(parents=True, exist_ok=True)
        trainer = _trainer(settings, champion, run, items, objective, per_step, micro_batch)
        referenced = with_reference(trainer, items, champion, run, micro_batch)
        put_together = [[referenced[i] for i in step] for step in steps] if steps is not None else referenced
        trainer.train_dataset = put_together
        metrics = {**metrics, **(check(referenced) if check else {})}
        with together(trainer.args):
            start = last_complete_checkpoint(run.output)
        watch = None
        if data is not None:
            planned = math.ceil(math.ceil(len(put_together) / per_step) * settings.epochs)
            watch = watching(settings, champion, data, scorer, run, planned)
        if watch is not None:
            trainer.add_callback(watch)
        try:
            outcome = trainer.train(resume_from_checkpoint=start)
        except RewardHacked as hacked:
            write_alarm(run.output, hacked.alarm, curve_of(trainer.state.log_history))
            raise
        metrics["train_s"] = float(outcome.metrics.get("train_runtime", 0.0))
        if watch is not None:
            metrics["hacked"] = float(watch.alarm is not None)
            if watch.alarm is not None:
                write_alarm(run.output, watch.alarm, curve_of(trainer.state.log_history))
        return _finished(trainer, champion, run, metrics, left_out)


def _finished(
    trainer: PolicyTrainer,
    champion: Champion,
    run: Run,
    metrics: dict[str, float],
    left_out: dict[str, int],
) -> TrainResult:
    """Save the adapter and the result, in the main process; nothing is left of the checkpoints."""
    curve = curve_of(trainer.state.log_history)
    refuse_not_finite(curve, trainer.model)
    last = {k: v for k, v in curve[-1].items() if k != "step"}
    metrics = {**last, **metrics, "steps": float(trainer.state.global_step)}
    result = TrainResult(run.output / "adapter", metrics, curve, left_out)
    with together(trainer.args):
        if not is_main():
            return read_result(run.output / RESULT)
        save_adapter(trainer.model, champion.base_id, run.output / "adapter")
        write_result(run.output / RESULT, result)
    for checkpoint in run.output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)
    if _cache(run) != run.cache:
        shutil.rmtree(_cache(run), ignore_errors=True)
    shutil.rmtree(run.output / PROCESSES, ignore_errors=True)
    return result


def _trainer(
    settings: UpdateSettings,
    champion: Champion,
    run: Run,
    items: Sequence[Item],
    objective: Objective,
    per_step: int,
    micro_batch: int,
) -> PolicyTrainer:
    from training.policy_trainer import make_trainer
    from training.soundness import SavesOnlySound

    arguments = _arguments(settings, run)
    refuse_unfit(
        run.hardware, processes=arguments.world_size, method=type(settings).__module__.rpartition(".")[2]
    )
    arguments.per_device_train_batch_size = per_step  # every process is given whole steps
    arguments._n_gpu = min(arguments.n_gpu, 1)  # one process uses one device, and never DataParallel
    trainer = make_trainer(
        load_champion(champion, run.hardware, arguments.world_size),
        items,
        objective,
        arguments,
        micro_batch=micro_batch,
        leashes=leashes(settings),
        on_step=run.on_step if is_main() else None,
    )
    trainer.add_callback(SavesOnlySound())
    # Of a sharded model the Trainer refuses checkpoints to resume from, as it takes the optimizer's state for sharded,
    # too. Here that is of the adapter, which is whole in each process: so it is switched on after the refusal.
    trainer.args.set_save("steps", settings.save_every_steps, total_limit=2)
    return trainer


def _arguments(settings: UpdateSettings, run: Run) -> TrainingArguments:
    import torch
    from transformers import TrainingArguments

    gpu = torch.cuda.is_available()
    recompute = run.hardware.checkpoints_gradients()
    schedule = "constant_with_warmup" if settings.schedule == "constant" else settings.schedule
    return TrainingArguments(
        output_dir=str(run.output),
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        gradient_accumulation_steps=1,  # the trainer cuts its batches itself
        warmup_steps=settings.warmup_share,
        lr_scheduler_type=schedule,
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=recompute,
        gradient_checkpointing_kwargs={"use_reentrant": False} if recompute else None,
        bf16=run.hardware.in_bf16(),
        use_cpu=not gpu,
        logging_steps=1,
        logging_nan_inf_filter=False,  # on, it logs a loss that is not a number as 0
        save_strategy="no",  # until `_trainer` switches it on
        report_to="none",
        disable_tqdm=True,
        seed=run.seed,
        data_seed=run.seed,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,  # every forward pass reads the whole adapter
        ddp_broadcast_buffers=False,  # a forward pass that only one process needs must not wait for the others
        remove_unused_columns=False,
    )


def leashes(settings: UpdateSettings) -> list[Leash]:
    """The distances that are measured, and bounded where the settings say so."""
    to_base = [] if settings.base_kl_budget is None else [Leash("kl_base", 0.0, settings.base_kl_budget)]
    return [Leash("kl", settings.kl_weight, settings.kl_budget), *to_base]


def with_reference(
    trainer: PolicyTrainer, items: Sequence[Item], champion: Champion, run: Run, micro_batch: int
) -> list[Item]:
    """Items with the log-probabilities of their completions under the champion, which the trainer still is."""
    dtype = "bf16" if run.hardware.in_bf16() else "fp32"
    file = cache_file(_cache(run), champion.base_id, champion.adapter, dtype)
    found = _logprobs(trainer, items, file, micro_batch)
    items = [replace(item, reference=logps) for item, logps in zip(items, found, strict=True)]
    if not any(leash.name == "kl_base" for leash in trainer.leashes):
        return items
    with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
        found = _logprobs(trainer, items, cache_file(_cache(run), champion.base_id, None, dtype), micro_batch)
    return [replace(item, base=logps) for item, logps in zip(items, found, strict=True)]


def _logprobs(
    trainer: PolicyTrainer, items: Sequence[Item], file: Path, micro_batch: int
) -> list[tuple[Tensor, ...]]:
    """For each item, for each of its sequences that needs it, (T,) nats under the policy the model now is."""
    import torch

    sequences = [s for item in items for s in item.sequences[: item.referenced]]
    found = iter(
        reference_logprobs(
            trainer.model,
            sequences,
            file,
            batch_size=2 * micro_batch,
            autocast=trainer.compute_loss_context_manager,
        )
    )
    return [tuple(torch.from_numpy(next(found)) for _ in item.sequences[: item.referenced]) for item in items]


def _cache(run: Run) -> Path:
    """Over sharded weights all processes must find the same ones known: in a folder that no other run writes to."""
    own = run.cache is None or run.hardware.sharded
    return run.output / "reference" if own or run.cache is None else run.cache


def curve_of(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """One entry for each optimizer step: its number, loss and the method's own metrics."""
    skip = {"epoch", "step", "total_flos", "watched"}
    return [
        {"step": float(entry["step"]), **{k: float(v) for k, v in entry.items() if k not in skip}}
        for entry in history
        if "loss" in entry
    ]


def refuse_not_finite(curve: list[dict[str, float]], model: Any) -> None:
    """Raise unless every logged loss and every trained weight is a finite number.

    The weights are looked at too: the last step's update comes after the last logged loss.

    Raises:
        TrainingError: one is not.
    """
    from training.soundness import finite

    bad = [entry for entry in curve if not math.isfinite(entry["loss"])]
    if bad or not curve or not finite(model):
        raise TrainingError(
            "Training diverged: a loss or a weight is not a finite number. No adapter was written.",
            got=bad[:1] or ("a weight that is not finite" if curve else "no step was logged"),
            next_step="lower the learning_rate of the method in [train]",
        )
