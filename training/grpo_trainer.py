"""TRL's GRPOTrainer with palate's rollouts, made from the settings of an update.

Importing this module imports trl: do it inside functions.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from training.errors import TrainingError
from training.grpo_rollout import PAID, Rollouts
from training.update import OnStep, Run

if TYPE_CHECKING:
    from torch import Tensor

    from training.grpo import Config

SCALES_WITH_ROWS = frozenset({"dr_grpo", "grpo"})
"""Losses that TRL divides by the number of completions, those masked out included."""


class Trainer(GRPOTrainer):
    """GRPOTrainer whose denominator counts the completions that the loss reads, and no others."""

    rollouts: Rollouts | None = None
    scored: Tensor | None = None
    """(B, T) log-probabilities of the last forward pass with gradients, where `length_sorted` notes them."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """As GRPOTrainer."""
        self._gaps: list[tuple[float, float]] = []
        with warnings.catch_warnings():
            # TRL says of rollout_func and environments that they may change: the version is pinned and tested.
            warnings.filterwarnings("ignore", message="You are using '(rollout_func|environment_factory)'")
            super().__init__(*given, **named)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """TRL's loss; where it is a mean over completions, over those that are not masked out."""
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.rollouts is not None and self.loss_type in SCALES_WITH_ROWS:
            loss = loss / self.rollouts.kept_share
        drawn = inputs.get("sampling_per_token_logps")
        if self.scored is not None and drawn is not None and self.num_iterations == 1:
            counted = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            gap = ((self.scored - drawn).abs() * counted).sum()
            self._gaps.append((float(gap), float(counted.sum())))
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add how far the engine's log-probabilities are from the trainer's, in nats a token.

        The loss takes a completion to be sampled from the policy that is trained. A gap says by how much it was not.
        """
        if "loss" in logs and self._gaps:
            total, tokens = (sum(column) for column in zip(*self._gaps, strict=True))
            logs["engine_gap"] = total / max(tokens, 1.0)
            self._gaps = []
        super().log(logs, start_time)


class Progress(TrainerCallback):
    """Adds each generation's figures to the log, tells whoever watches, stops a run whose loss is no number."""

    def __init__(self, figures: Callable[[], dict[str, Any]], on_step: OnStep | None) -> None:
        """`figures` gives those of the generation at hand, once."""
        self.figures, self.on_step = figures, on_step
        self._since = time.perf_counter()
        self._tokens = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Count from here, also where a run resumes."""
        self._since, self._tokens = time.perf_counter(), float(state.num_input_tokens_seen)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """After every optimizer step."""
        if not logs or "loss" not in logs:
            return
        now, tokens = time.perf_counter(), float(state.num_input_tokens_seen)
        entry = state.log_history[-1]
        entry |= self.figures()
        entry["tokens_per_s"] = (tokens - self._tokens) / max(now - self._since, 1e-9)
        self._since, self._tokens = now, tokens
        if self.on_step:
            self.on_step(state.global_step, state.max_steps, curve_entry(entry))
        if not math.isfinite(logs["loss"]):
            control.should_training_stop = True


_FROM_TRL = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "kl": "kl",
    "entropy": "entropy",
    "clip_share": "clip_ratio/region_mean",
    "length": "completions/mean_length",
    "reward": "reward",
    "reward_std": "reward_std",
    "zero_variance_share": "frac_reward_zero_std",
    "truncated_share": "completions/clipped_ratio",
    "learning_rate": "learning_rate",
}
"""Our name to TRL's; what a generation noted itself goes before what TRL says of the groups after refilling."""
_PREFIXES = ("failed/", "text/", "groups_", "rollout_", "tools/")
_OWN = ("heldout", "failed_share", "length_std", "tokens_per_s", "engine_gap")


def curve_entry(entry: dict[str, Any]) -> dict[str, float]:
    """One step's log as plain figures."""
    found: dict[str, Any] = {"step": entry["step"]}
    found |= {ours: entry.get(theirs) for ours, theirs in _FROM_TRL.items()}
    rewards = {name: v for name, v in entry.items() if name.startswith("rewards/")}
    found |= {name.removesuffix("/mean"): v for name, v in rewards.items() if name.endswith("/mean")}
    found |= {f"{name[:-4]}_std": v for name, v in rewards.items() if name.endswith("/std")}
    found |= {name: v for name, v in rewards.items() if name.count("/") == 1}
    found |= {ours: entry[ours] for ours in (*_FROM_TRL, *_OWN) if ours in entry}
    found |= {name: v for name, v in entry.items() if name.startswith(_PREFIXES)}
    return {name: float(value) for name, value in found.items() if value is not None}


def make_trainer(
    config: Config,
    run: Run,
    model: Any,
    tokenizer: Any,
    rows: Sequence[dict[str, Any]],
    reward_names: Sequence[str],
    weights: Sequence[float],
    *,
    rollouts: Rollouts | None = None,
    figures: Callable[[], dict[str, Any]],
    **environment: Any,
) -> Trainer:
    """The trainer of one update.

    Args:
        config: settings of the update.
        run: where it writes and who watches.
        model: PEFT model of the champion.
        tokenizer: padding on the left.
        rows: one for each prompt of each generation, in order; `prompt` and what else an environment reads.
        reward_names: what the rewards are logged as.
        weights: of the rewards, in the same order.
        rollouts: samples and pays; None lets TRL sample, and `environment` say how.
        figures: a generation's own figures, for the log.
        environment: `environment_factory`, `tools` and `reward_funcs` of a run with turns.
    """
    from datasets import Dataset

    from training.soundness import SavesOnlySound

    functions = environment.pop("reward_funcs", None) or [_paid(name) for name in reward_names]
    trainer = Trainer(
        model=model,
        reward_funcs=functions,
        args=_arguments(config, run, weights),
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer,
        callbacks=[Progress(figures, run.on_step), SavesOnlySound()],
        rollout_func=rollouts,
        **environment,
    )
    trainer.rollouts = rollouts
    trainer.remove_callback(PrinterCallback)
    return trainer


def _paid(name: str) -> Callable[..., list[float | None]]:
    """What a source gave, as a reward function of TRL: it was asked when the groups were sampled."""

    def reward(**columns: Any) -> list[float | None]:
        return [None if values is None else values[name] for values in columns[PAID]]

    reward.__name__ = name
    return reward


def _arguments(config: Config, run: Run, weights: Sequence[float]) -> GRPOConfig:
    import torch

    gpu = torch.cuda.is_available()
    completions = config.prompts_per_step * config.group_size
    schedule = "constant_with_warmup" if config.schedule == "constant" else config.schedule
    world = _world()
    if config.prompts_per_step % world or completions // world % config.micro_batch:
        raise TrainingError(
            "A generation does not divide among the processes.",
            got=f"{config.prompts_per_step} prompts of {config.group_size} replies, {world} processes",
            allowed="whole groups and whole micro-batches for each process",
            next_step="change [train.grpo] prompts_per_step or micro_batch",
        )
    return GRPOConfig(
        output_dir=str(run.output),
        # The loss
        beta=config.beta,
        use_bias_correction_kl=True,
        loss_type=config.loss,
        scale_rewards=config.advantage_scale or ("none" if config.loss == "dr_grpo" else "group"),
        epsilon=config.clip_low,
        epsilon_high=config.clip_high,
        num_iterations=config.iterations,
        mask_truncated_completions=config.truncated == "mask",
        reward_weights=list(weights),
        disable_dropout=True,
        # Completions
        num_generations=config.group_size,
        max_completion_length=config.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_tool_calling_iterations=config.max_turns - 1,
        chat_template_kwargs=dict(config.template_options) or None,
        shuffle_dataset=False,
        # The optimizer: one step reads one generation
        max_steps=config.steps,
        per_device_train_batch_size=config.micro_batch,
        gradient_accumulation_steps=completions // config.micro_batch // world,
        steps_per_generation=completions // config.micro_batch // world,
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_share,
        lr_scheduler_type=schedule,
        max_grad_norm=config.max_grad_norm,
        gradient_checkpointing=gpu,
        bf16=config.in_bf16(),
        use_cpu=not gpu,
        # The files. A checkpoint between two uses of one generation would resume with another generation.
        logging_steps=1,
        logging_nan_inf_filter=False,  # on, it logs a loss that is not a number as 0
        save_strategy="steps",
        save_steps=-(-config.save_every_steps // config.iterations) * config.iterations,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        seed=run.seed,
        data_seed=run.seed,
        dataloader_pin_memory=False,
    )


def _world() -> int:
    from accelerate import PartialState

    return int(PartialState().num_processes)
