"""On which hardware an update runs, and over how many processes: asked for, checked, and never silently something else.

Every process runs the same code. With `fsdp_size = 1` each holds the whole model and takes its share of every step's
passes (data parallel: gradients are averaged). With more, the frozen base model's weights are split over that many
processes (FSDP2, which gathers a layer's weights just before they are used) and the small adapter is whole in each.

Adam's state is of the adapter alone, so a checkpoint of a sharded run is a plain one, and resumes like any other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from training.errors import TrainingError

if TYPE_CHECKING:
    from transformers import DistributedConfig, TrainingArguments

Switch = Literal["auto", "on", "off"]
ELSEWHERE = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")
"""What `accelerate launch` sets to shard a model after its own settings; on a CPU the first is ignored in silence."""
ALONE = frozenset({"grpo"})
"""Methods that run in one process."""
UNEVEN = frozenset({"words", "mix"})
"""Methods whose forward passes depend on which rows a process has: over sharded weights they would wait for ever."""


class Hardware(BaseModel):
    """How an update uses the hardware. None of it changes what is learned, beyond rounding."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    processes: int = Field(default=1, ge=1)
    """Processes of this machine that share an update, one for each GPU. `palate train` starts them."""
    bf16: Switch = "auto"
    """Compute in bfloat16, weights stay in single precision. `auto` does where this machine is fast in it."""
    gradient_checkpointing: Switch = "auto"
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third more time.
    `auto` does on a CUDA device."""
    fsdp_size: int = Field(default=1, ge=1)
    """Split the base model's weights over so many processes (FSDP2); 1 holds them whole in each. It must divide the
    number of processes: what is left over are replicas."""
    ep_size: int = Field(default=1, ge=1)
    """Split the experts of a mixture-of-experts model over so many of these processes. The adapter must then leave the
    experts alone: name the attention's layers in [model.lora] target_modules."""

    @model_validator(mode="after")
    def _sizes(self) -> Hardware:
        if self.processes % self.fsdp_size:
            raise ValueError(f"fsdp_size ({self.fsdp_size}) must divide processes ({self.processes})")
        if self.fsdp_size % self.ep_size:
            raise ValueError(f"ep_size ({self.ep_size}) must divide fsdp_size ({self.fsdp_size})")
        return self

    @property
    def sharded(self) -> bool:
        """Whether no process holds the whole model."""
        return self.fsdp_size > 1

    def alone(self) -> Hardware:
        """The same precision in one process, which holds the model whole."""
        return self.model_copy(update={"processes": 1, "fsdp_size": 1, "ep_size": 1})

    def in_bf16(self) -> bool:
        """Whether forward passes run in bfloat16 here."""
        from reward_models.hardware import fast_bf16

        return self.bf16 == "on" or (self.bf16 == "auto" and fast_bf16())

    def checkpoints_gradients(self) -> bool:
        """Whether activations are computed again in the backward pass here."""
        import torch

        chosen = self.gradient_checkpointing
        return chosen == "on" or (chosen == "auto" and torch.cuda.is_available())


def refuse_unfit(
    hardware: Hardware, *, processes: int, method: str, environment: Mapping[str, str] = os.environ
) -> None:
    """Refuse what would not run, or would run as something else than was asked for.

    Args:
        hardware: what is asked for.
        processes: how many there are.
        method: name of the method.
        environment: of this process.

    Raises:
        TrainingError: sharding that accelerate was asked for, another number of processes, or a method whose passes
            cannot wait for each other.
    """
    if asked := [name for name in ELSEWHERE if environment.get(name, "").lower() in {"true", "1", "yes"}]:
        raise TrainingError(
            "accelerate was told to shard the model, which it ignores in silence on a CPU; palate has its own setting.",
            got=", ".join(f"{name}={environment[name]}" for name in asked),
            allowed="[train.hardware] fsdp_size",
            next_step="unset it, and set [train.hardware] processes and fsdp_size",
        )
    if processes != hardware.processes:
        raise TrainingError(
            "There are not as many processes as were asked for.",
            got=f"{processes} of them",
            allowed=f"{hardware.processes} ([train.hardware] processes)",
            next_step="run `palate train`, which starts them; not torchrun or accelerate launch",
        )
    if processes > 1 and method in ALONE:
        raise TrainingError(
            "This method runs in one process.",
            got=f"method {method}, processes = {processes}",
            allowed="processes = 1",
            next_step="set [train.hardware] processes = 1",
        )
    if hardware.sharded and method in UNEVEN:
        raise TrainingError(
            "This method cannot run over sharded weights: its forward passes depend on the rows of each process.",
            got=f"method {method}, fsdp_size = {hardware.fsdp_size}",
            allowed="fsdp_size = 1",
            next_step="set [train.hardware] fsdp_size = 1",
        )


def sharding(hardware: Hardware, processes: int) -> DistributedConfig | None:
    """How transformers is to split the model while it loads it; None holds it whole."""
    if not hardware.sharded:
        return None
    from transformers import DistributedConfig

    return DistributedConfig(
        fsdp_size=hardware.fsdp_size,
        dp_replicate_size=processes // hardware.fsdp_size,
        ep_size=hardware.ep_size,
    )


def refuse_whole(model: Any, hardware: Hardware) -> None:
    """Refuse a model that was to be split and is not: each process must hold less than all of the frozen weights.

    Raises:
        TrainingError: it holds them all.
    """
    if not hardware.sharded:
        return
    frozen = [p for p in model.parameters() if not p.requires_grad]
    held = sum(_local(p).numel() for p in frozen)
    whole = sum(p.numel() for p in frozen)
    # A tensor with fewer rows than there are processes is not split evenly: the bound leaves room for such.
    if held > 0.75 * whole:
        raise TrainingError(
            "The model was to be sharded and is not: every process holds it nearly whole.",
            got=f"{held:,} of {whole:,} weights in this process, fsdp_size = {hardware.fsdp_size}",
            allowed="a model class with an FSDP plan of transformers",
            next_step="set [train.hardware] fsdp_size = 1, or use another base model",
        )


def _local(parameter: Any) -> Any:
    """What this process holds of a parameter."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def world() -> tuple[int, int]:
    """(rank of this process, how many there are)."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def is_main() -> bool:
    """Whether this process writes files and speaks to whoever watches."""
    return world()[0] == 0


def together(arguments: TrainingArguments) -> Any:
    """A block that the main process runs first; the others follow when it is through."""
    return arguments.main_process_first(local=False)


def over_processes(sums: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Metrics as (sum, count), added over all processes; every process must call it, and gets the same."""
    import torch.distributed as dist

    processes = world()[1]
    if processes == 1:
        return dict(sums)
    parts: list[Any] = [None] * processes
    dist.all_gather_object(parts, dict(sums))
    total: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (value, count) in part.items():
            before = total.get(name, (0.0, 0.0))
            total[name] = (before[0] + value, before[1] + count)
    return total
