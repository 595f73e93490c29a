"""Three steps of an update from items, in the process at hand, which looks at itself: see `training.probe`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.errors import TrainingError
from training.probe import Probe, Step, Told, Work
from training.probe_memory import before, memory
from training.update import Run

if TYPE_CHECKING:
    from training.policy_trainer import Item, Objective, Terms


def attempt(work: Work, folder: Path, started: float, tell: Told) -> Probe:
    """Run the steps.

    Args:
        work: cut to the items of its steps.
        folder: where checkpoints go.
        started: when it was asked for, seconds since 1970.
        tell: who watches.
    """
    from training.fit import fit

    quiet()
    watch = Watched(work.objective, work.micro_batch, folder)
    notes: list[str] = []

    def step(number: int, total: int, _metrics: dict[str, float]) -> None:
        watch.step_ended()
        tell(number, total, watch.steps[-1].tokens / watch.steps[-1].seconds)

    def check(items: Sequence[Item]) -> dict[str, float]:
        try:
            return {} if work.check is None else work.check(items)
        except TrainingError as error:
            notes.append(f"{error.what} Of the rows that were tried: {error.got}.")
            return {}

    # So small a rate cannot diverge in a schedule that is not the update's; what a step costs it does not change.
    settings = work.settings.model_copy(
        update={"learning_rate": 1e-9, "epochs": 1.0, "save_every_steps": 1, "schedule": "constant"}
    )
    fit(
        settings,
        work.champion,
        Run(folder, work.seed, on_step=step, hardware=work.hardware),
        work.items,
        watch,
        per_step=1,
        micro_batch=work.micro_batch,
        metrics={},
        left_out={},
        check=check,
        steps=work.steps,
    )
    once = sum({s.key: len(s) for item in work.items for s in item.sequences[: item.referenced]}.values())
    return Probe(
        tuple(watch.steps),
        max(0.0, watch.first - started - once * watch.reference_s_per_token),
        watch.reference_s_per_token,
        watch.save_s,
        watch.checkpoint_bytes,
        memory(watch.before, watch.weights, watch.optimizer),
        "; ".join(notes),
    )


class Watched:
    """An objective that is measured from within: when steps start and end, and what lies in memory and on disk."""

    def __init__(self, objective: Objective, micro_batch: int, folder: Path) -> None:
        """Watch `objective` in the process at hand, whose checkpoints go to `folder`."""
        self.objective, self.micro_batch, self.folder = objective, micro_batch, folder
        self.before = before()
        self.steps: list[Step] = []
        self.weights = self.optimizer = self.checkpoint_bytes = 0
        self.reference_s_per_token = self.save_s = self.first = 0.0
        self._started, self._tokens, self._ended = 0.0, 0, 0.0

    def prepare(self, model: Any, items: Sequence[Item]) -> Any:
        """The objective's own, after a look around; the step is timed from here."""
        if self.steps:
            self.save_s = time.perf_counter() - self._ended
            self.checkpoint_bytes, self.optimizer = checkpoint(self.folder)
        else:
            self.first = time.time()
            self.weights = sum(p.numel() * p.element_size() for p in model.parameters())
        self._time_reference(model, items)
        self._tokens = sum(item.tokens for item in items)
        self._started = time.perf_counter()
        return self.objective.prepare(model, items)

    def terms(self, model: Any, items: Sequence[Item], step: Any) -> Terms:
        """The objective's own."""
        return self.objective.terms(model, items, step)

    def step_ended(self) -> None:
        """Called after the optimizer's step."""
        self._ended = time.perf_counter()
        self.steps.append(Step(self._tokens, self._ended - self._started))

    def _time_reference(self, model: Any, items: Sequence[Item]) -> None:
        """Time what is done before training, on a step's own sequences; the first time warms up."""
        import contextlib

        from training.reference import reference_logprobs

        sequences = list({s.key: s for i in items for s in i.sequences[: i.referenced]}.values())
        started = time.perf_counter()
        reference_logprobs(
            model,
            sequences,
            self.folder / f"timed-{len(self.steps)}.arrow",
            batch_size=2 * self.micro_batch,
            autocast=contextlib.nullcontext,  # the trainer's own is on
        )
        self.reference_s_per_token = (time.perf_counter() - started) / sum(map(len, sequences))


def checkpoint(folder: Path) -> tuple[int, int]:
    """Bytes of the newest checkpoint there, and those of its optimizer's state; 0 where there is none."""
    newest = max(folder.glob("checkpoint-*"), key=lambda p: p.stat().st_mtime, default=None)
    if newest is None:
        return 0, 0
    sizes = {file.name: file.stat().st_size for file in newest.rglob("*") if file.is_file()}
    return sum(sizes.values()), sizes.get("optimizer.pt", 0)


def quiet() -> None:
    """What libraries warn of is said by the update itself, if at all."""
    import logging
    import warnings

    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in ("accelerate", "peft", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
