"""What every reward model offers, and how one is found by name."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from feedback.errors import PalateError

if TYPE_CHECKING:
    import numpy as np

Chat = list[dict[str, str]]
_MARKS = ("\nclass Config(", "\ndef fit(", "\ndef load(")
"""What the file of a reward model has; read as text, as importing one may import torch."""
WRAPPERS = {"length_bias": "load_length_controlled", "temperature": "load_tempered"}
"""What can be wrapped around a reward model: the module, and what loads it."""
INNER = "scorer"
"""The folder of a wrapper's directory that holds what it is wrapped around."""


class RewardModelError(PalateError, ValueError):
    """A reward model is unknown, unreadable, or would be misused."""


class NotEnoughVotes(RewardModelError):
    """Too few preference rows to fit a reward model."""

    exit_code = 4


@dataclass(frozen=True)
class Rewards:
    """Scores of B replies; only differences between replies to one prompt mean anything."""

    mean: np.ndarray
    """(B,) expected reward, in log-odds of being preferred."""
    std: np.ndarray
    """(B,) standard deviation of that expectation; NaN where the model cannot tell."""


class Scorer(Protocol):
    """A fitted reward model."""

    @property
    def trained_on(self) -> frozenset[str]:
        """`preference_id`s it was fitted on."""
        ...

    def score(
        self,
        prompts: Sequence[Chat],
        completions: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> Rewards:
        """Score B completions of B prompts, for the people who asked and the agents that answered, if known."""
        ...

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) probabilities of win, tie, loss for N reward differences (first minus second)."""
        ...

    def save(self, directory: Path) -> None:
        """Write the model to `directory`, complete or not at all."""
        ...


def methods() -> list[str]:
    """Names of the reward models that ship with palate."""
    files = {file.stem: file.read_text() for file in Path(__file__).parent.glob("*.py")}
    return sorted(name for name, text in files.items() if all(mark in text for mark in _MARKS))


def method(name: str) -> object:
    """The module that implements reward model `name` (`fit`, `load`, `Config`).

    Raises:
        RewardModelError: no such reward model.
    """
    if name not in methods():
        raise RewardModelError(
            "No reward model has that name.",
            got=name,
            allowed=", ".join(methods()),
            next_step="set [reward] method",
        )
    return importlib.import_module(f"reward_models.{name}")


def method_in(directory: Path) -> str:
    """Name of the reward model that `save` wrote there.

    Raises:
        RewardModelError: the directory holds no reward model.
    """
    try:
        return str(json.loads((directory / "reward_model.json").read_text())["method"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RewardModelError(
            "The directory holds no readable reward model.", got=directory, next_step="palate train"
        ) from error


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> Scorer:
    """Load a reward model, or what wraps one, that `save` wrote; `cache_dir` keeps embeddings between calls.

    Raises:
        RewardModelError: the directory holds no reward model.
    """
    name = method_in(directory)
    if name in WRAPPERS:
        wrapper = importlib.import_module(f"reward_models.{name}")
        loaded: Scorer = getattr(wrapper, WRAPPERS[name])(directory, base, cache_dir)
        return loaded
    scorer: Scorer = method(name).load(directory, base, cache_dir)  # type: ignore[attr-defined]
    return scorer


def inner(directory: Path) -> Path:
    """Where the reward model itself lies: the directory, or a folder of it where something is wrapped around it.

    Raises:
        RewardModelError: the directory holds no reward model.
    """
    while method_in(directory) in WRAPPERS:
        directory = directory / INNER
    return directory


def refuse_shared_rows(training: Scorer, evaluation: Scorer) -> None:
    """Raise unless the two scorers were fitted on disjoint preference rows.

    A candidate judged by what it was trained with proves nothing.

    Raises:
        RewardModelError: they share rows.
    """
    shared = training.trained_on & evaluation.trained_on
    if shared:
        raise RewardModelError(
            "The evaluation scorer shares training rows with the training scorer.",
            got=f"{len(shared)} shared rows, e.g. {min(shared)}",
            allowed="disjoint rows: the splits `train` and `evaluation`",
            next_step="rebuild the dataset with `palate build`",
        )
