"""Arguments of TRL's own trainers that run into a known fault: named before anything is trained.

    faults_of_arguments("grpo", {"top_p": 0.8}, machine)   -> one Fault: the importance ratio is biased

The arguments are those of TRL's own configurations (GRPOConfig, DPOConfig, KTOConfig and transformers' beneath
them), as a project with a training script of its own has them; what is not given counts as TRL's default. palate's own
settings are looked at by `training.known_faults`, its launch by `training.hardware`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from training.errors import TrainingError
from training.known_faults import Fault

Arguments = Mapping[str, Any]
TRAINERS = ("dpo", "grpo", "kto", "reward", "rloo", "sft")
_SAMPLERS = ("grpo", "rloo")


@dataclass(frozen=True)
class Machine:
    """Where it would run."""

    cuda: bool
    """Whether a CUDA device is used."""
    environment: Mapping[str, str]
    """Environment variables; `accelerate launch` speaks through them."""


@dataclass(frozen=True)
class Rule:
    """One known fault of the verified versions."""

    name: str
    trainers: tuple[str, ...]
    settings: tuple[str, ...]
    """What is shown of the arguments."""
    hit: Callable[[Arguments, Machine], bool]
    fault: str
    reference: str
    instead: str


def faults_of_arguments(trainer: str, arguments: Arguments, machine: Machine) -> list[Fault]:
    """The known faults that a TRL trainer would run into.

    Args:
        trainer: one of `TRAINERS`.
        arguments: of its configuration, flat.
        machine: where it would run.

    Raises:
        TrainingError: no such trainer.
    """
    if trainer not in TRAINERS:
        raise TrainingError("No TRL trainer of that name is known.", got=trainer, allowed=", ".join(TRAINERS))
    found = []
    for rule in RULES:
        if trainer in rule.trainers and rule.hit(arguments, machine):
            given = {name: arguments[name] for name in rule.settings if arguments.get(name) is not None}
            values = tuple(given.values())
            got = values[0] if len(values) == 1 else values or "not set"
            name = " / ".join(given or rule.settings)
            found.append(Fault(name, got, rule.fault, rule.reference, rule.instead))
    return found


def _truncates(given: Arguments, _: Machine) -> bool:
    return bool(
        _number(given, "top_p", 1.0) < 1
        or _number(given, "top_k", 0) > 0
        or _number(given, "min_p", 0.0) > 0
        or _number(given, "repetition_penalty", 1.0) != 1
    )


def _casts_the_adapter(given: Arguments, _: Machine) -> bool:
    batching = given.get("use_transformers_continuous_batching") or given.get("use_transformers_paged")
    return bool(batching) and _bf16(given)


def _off_the_boundary(given: Arguments, _: Machine) -> bool:
    """Whether a checkpoint may fall between two uses of one generation: its rest is not saved."""
    accumulated = _number(given, "gradient_accumulation_steps", 1)
    used = _number(given, "steps_per_generation", accumulated) * _number(given, "num_iterations", 1)
    every = _number(given, "save_steps", 500)
    if str(given.get("save_strategy", "steps")) != "steps" or used <= accumulated:
        return False
    return every < 1 or (every * accumulated) % used != 0


def _micro_batches_count(given: Arguments, _: Machine) -> bool:
    return given.get("loss_type") == "bnpo" and _number(given, "gradient_accumulation_steps", 1) > 1


def _keeps_the_masked(given: Arguments, _: Machine) -> bool:
    return bool(given.get("mask_truncated_completions")) and given.get("loss_type", "dapo") in (
        "dr_grpo",
        "grpo",
    )


def _single_rows(given: Arguments, _: Machine) -> bool:
    return (
        given.get("loss_type", "kto") != "apo_zero_unpaired"
        and _number(given, "per_device_train_batch_size", 8) <= 1
    )


def _kl_by_micro_batch(given: Arguments, _: Machine) -> bool:
    return (
        given.get("loss_type", "kto") != "apo_zero_unpaired"
        and _number(given, "gradient_accumulation_steps", 1) > 1
    )


def _asks_for_fsdp(given: Arguments, machine: Machine) -> bool:
    launched = machine.environment.get("ACCELERATE_USE_FSDP", "false").lower() in ("true", "1")
    return launched or bool(given.get("fsdp"))


def _on_cpu(given: Arguments, machine: Machine) -> bool:
    return _asks_for_fsdp(given, machine) and (not machine.cuda or bool(given.get("use_cpu")))


def _precomputes_sharded(given: Arguments, machine: Machine) -> bool:
    own = given.get("fsdp_config")
    own = own if isinstance(own, Mapping) else {}
    version = own.get("version", own.get("fsdp_version", machine.environment.get("FSDP_VERSION", 2)))
    return (
        bool(given.get("precompute_ref_log_probs")) and _asks_for_fsdp(given, machine) and str(version) == "2"
    )


def _number(given: Arguments, name: str, default: float) -> float:
    """A number of the arguments; what is not set, or none, is TRL's default."""
    value = given.get(name)
    return default if value is None else float(value)


def _bf16(given: Arguments) -> bool:
    """TRL's default is bf16 unless fp16 is set."""
    value = given.get("bf16")
    return not given.get("fp16") if value is None else bool(value)


_UNSHARDED = (
    "accelerate takes FSDP on a CPU for plain data parallelism and says nothing: every process holds it all"
)
_ACCELERATE = "measured on accelerate 1.15: MULTI_CPU, the model wrapped in DistributedDataParallel"
_SHARD = "run on CUDA devices, or leave FSDP out"
RULES = (
    Rule(
        "sampling_bias", _SAMPLERS, ("top_p", "top_k", "min_p", "repetition_penalty"), _truncates,
        "importance ratios are biased: tokens come from another distribution than the one that is trained",
        "trl#6789, trl PR#7269",
        "top_p = 1.0, top_k = 0, no min_p, repetition_penalty = 1.0",
    ),
    Rule(
        "adapter_cast_to_bf16", _SAMPLERS, ("use_transformers_continuous_batching", "bf16"), _casts_the_adapter,
        "continuous batching casts the trained model and its adapter to bf16 for good: small steps are rounded away",
        "measured on trl 1.16: every parameter fp32 before, bf16 after two steps",
        "bf16 = false, or use_transformers_continuous_batching = false",
    ),
    Rule(
        "checkpoint_inside_a_generation", _SAMPLERS,
        ("save_steps", "num_iterations", "steps_per_generation", "gradient_accumulation_steps"), _off_the_boundary,
        "a checkpoint between two uses of a generation resumes with another one: its rest is not saved",
        "verl PR#4199; measured on trl 1.16",
        "save_steps a multiple of steps_per_generation x num_iterations / gradient_accumulation_steps",
    ),
    Rule(
        "bnpo_by_micro_batch", ("grpo",), ("loss_type", "gradient_accumulation_steps"), _micro_batches_count,
        "the denominator is that of the micro-batch: the gradient changes with its size",
        "trl#3021, ms-swift#10117",
        'loss_type = "dapo" or "dr_grpo", or gradient_accumulation_steps = 1',
    ),
    Rule(
        "masked_replies_count", ("grpo",), ("mask_truncated_completions", "loss_type"), _keeps_the_masked,
        "replies that are masked out still count in the denominator and thin the gradient of the others",
        "trl#6369",
        'loss_type = "dapo", or mask_truncated_completions = false',
    ),
    Rule(
        "kl_of_one_row", ("kto",), ("per_device_train_batch_size",), _single_rows,
        "the KL of a micro-batch of one row is that row's own reward",
        "trl#1911, trl#2554, trl PR#1380",
        "per_device_train_batch_size of at least 2, and no last batch of one row",
    ),
    Rule(
        "kl_by_micro_batch", ("kto",), ("gradient_accumulation_steps", "per_device_train_batch_size"),
        _kl_by_micro_batch,
        "the KL is estimated in each micro-batch: the gradient changes with its size",
        "trl#3021; oracle accumulation_trl_kto",
        "gradient_accumulation_steps = 1 and the whole step in per_device_train_batch_size",
    ),
    Rule(
        "padding_free_ignored", ("dpo",), ("padding_free",), lambda given, _: bool(given.get("padding_free")),
        "padding_free is taken and ignored: the batch is padded all the same",
        "trl 1.16, DPOTrainer",
        "padding_free = false",
    ),
    Rule(
        "fsdp_on_cpu", TRAINERS, ("fsdp",), _on_cpu,
        _UNSHARDED, _ACCELERATE, _SHARD,
    ),
    Rule(
        "precompute_under_fsdp2", ("dpo",), ("precompute_ref_log_probs", "fsdp"), _precomputes_sharded,
        "reference log-probabilities cannot be computed of sharded weights: the run ends in a RuntimeError",
        "measured on trl 1.16: .numpy() is not supported for tensor subclasses",
        "precompute_ref_log_probs = false",
    ),
)  # fmt: skip
