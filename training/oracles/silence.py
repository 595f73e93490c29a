"""Settings that a library takes and does not follow, without a word."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping

from training.oracles.finding import Comparison, oracle

_AVOIDED = "palate refuses to start, and has a setting of its own"
_ASKED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}


@oracle(
    "dpo",
    "grpo",
    "kto",
    "online",
    "words",
    protects="a model that is said to be sharded and lies whole in every process",
    reference="measured on accelerate 1.15; FSDP on a CPU becomes plain data parallelism",
)
def fsdp_on_cpu(subject: Callable[..., None] | None) -> Iterator[Comparison]:
    """What accelerate makes of FSDP on a CPU, and whether palate starts; called as `hardware.refuse_unfit`."""
    from training.errors import TrainingError
    from training.hardware import Hardware, refuse_unfit

    cases: tuple[tuple[str, Mapping[str, str], bool], ...] = (
        ("launched with FSDP", _ASKED, True),
        ("launched without", {"ACCELERATE_USE_FSDP": "false"}, False),
        ("not launched by accelerate", {}, False),
    )
    for name, environment, refused in cases:
        try:
            (subject or refuse_unfit)(
                Hardware(processes=2), processes=2, method="dpo", environment=environment
            )
            outcome = "accepted"
        except TrainingError:
            outcome = "refused"
        yield Comparison(name, outcome, "refused" if refused else "accepted")
    yield Comparison("accelerate wraps the model in", _wrapped(), "FSDP", avoided=_AVOIDED)


def _wrapped() -> str:
    """What accelerate prepares a model as, in a process group of one that asks for FSDP on the CPU."""
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import FullyShardedDataParallelPlugin

    if torch.distributed.is_initialized():
        return "not measured within a process group"
    with _environment(_alone()):
        AcceleratorState._reset_state(reset_partial_state=True)
        try:
            made = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
            kind = type(made.prepare_model(torch.nn.Linear(2, 2))).__name__
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            AcceleratorState._reset_state(reset_partial_state=True)
    return "FSDP" if kind.startswith("FSDP") else kind


def _alone() -> dict[str, str]:
    """What a launcher tells the only process of a group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    return {**_ASKED, **group, "MASTER_PORT": str(port)}


@contextlib.contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
