"""What every update is given, and how a method is found by its name.

A method is a module of this package with

    Config                                        pydantic, frozen: `[train.<method>]` of a project
    NEEDS                                         of `preferences`, `served`, `scorer`: what it learns from
    train(config, champion, data, scorer, run)    -> TrainResult

`train` continues the champion's adapter. It is safe to kill: a finished update is returned as it is, an
unfinished one goes on from its last complete checkpoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from training.errors import TrainingError
from training.hardware import Hardware

if TYPE_CHECKING:
    import pyarrow as pa

    from reward_models.scorer import Scorer
    from training.result import TrainResult

OnStep = Callable[[int, int, dict[str, float]], None]
Need = Literal["preferences", "served", "scorer"]
_MARKS = ("\nclass Config(", "\nNEEDS", "\ndef train(")
"""What the file of a method has; read as text, as importing one may import torch."""


@dataclass(frozen=True)
class Champion:
    """The policy an update starts from and is held close to."""

    base: Path
    """Directory of the base model."""
    base_id: str
    """The base model's id, written into the new adapter instead of a path."""
    adapter: Path
    """PEFT directory of the champion's adapter."""
    digest: str = ""
    """What interactions that it served carry as `adapter_digest`."""


@dataclass(frozen=True)
class Data:
    """What people said, of the split `train` alone as far as a method may read it."""

    preferences: pa.Table
    """PREFERENCES rows; methods read the split `train` and nothing else."""
    served: pa.Table
    """SERVED rows (`feedback.served`): what was served in the split `train` and what its user then did."""
    learned_until: datetime | None = None
    """Time of the newest signal that the champion has learned from; None where it has learned from none."""


@dataclass(frozen=True)
class Run:
    """Where an update keeps its files, what it is seeded with, and who watches."""

    output: Path
    """Directory for checkpoints, `adapter/` and `result.json`."""
    seed: int
    cache: Path | None = None
    """Directory of log-probabilities that do not change; None keeps them beside the checkpoints."""
    heldout: Scorer | None = None
    """Scorer apart from the one trained on: reward up and this one down is a hack, and stops the run."""
    on_step: OnStep | None = None
    """Called with (step, total steps, metrics) after every optimizer step."""
    on_samples: Callable[[int, list[dict[str, Any]]], None] | None = None
    """Called with (step, completions as plain rows) whenever completions were sampled."""
    hardware: Hardware = field(default_factory=Hardware)
    """Precision, sharding and processes."""


class Method(Protocol):
    """What the module of a method offers."""

    Config: type[Any]
    NEEDS: frozenset[Need]

    def train(
        self, config: Any, champion: Champion, data: Data, scorer: Scorer | None, run: Run
    ) -> TrainResult:
        """Continue the champion's adapter."""
        ...


def methods() -> list[str]:
    """Names of the methods that ship with palate."""
    files = {file.stem: file.read_text() for file in Path(__file__).parent.glob("*.py")}
    return sorted(name for name, text in files.items() if all(mark in text for mark in _MARKS))


def method(name: str) -> Method:
    """The module that implements a method.

    Raises:
        TrainingError: no method has that name.
    """
    if name not in methods():
        raise TrainingError(
            "No training method has that name.",
            got=name,
            allowed=", ".join(methods()),
            next_step="set [train] method",
        )
    module: Any = importlib.import_module(f"training.{name}")
    found: Method = module
    return found
