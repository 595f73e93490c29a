"""The one optimiser loop of updates that learn from logged replies: transformers' Trainer, one loss for a whole step.

An optimizer step takes a batch of items; they are cut into micro-batches of like length, each normalised by the items
of the whole step. So the gradient is that of the batch however it is cut (accumulation of means over uneven parts is
not), nothing is computed for padding that sorting can save, and what a loss needs to know about the whole batch
(KTO's KL, importance weights) is known before the first of its parts.

Of several processes each is given the whole step and takes its passes of it: so the step has the rows it would have
with one process, and an uneven rest is no special case.

Importing this module imports torch and transformers: do it inside functions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from accelerate.data_loader import prepare_data_loader
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from training.hardware import over_processes, world
from training.leash import Leash
from training.sequences import Tokens, own_batches
from training.update import OnStep

Sums = dict[str, tuple[float, float]]
"""Metrics as (sum, count), so that parts of a batch can be added."""


@dataclass(frozen=True)
class Item:
    """What one row gives to a loss."""

    sequences: tuple[Tokens, ...]
    """Its completions: chosen and rejected, or one alone; the loss knows which."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Weight, label, reward and what else the loss reads."""
    reference: tuple[Tensor, ...] = ()
    """(T,) log-probability of each completion's tokens under the champion, filled in before training."""
    base: tuple[Tensor, ...] = ()
    """(T,) likewise under the base model, where its distance is bounded."""
    part: str = ""
    """Which loss it is for, where several are mixed."""
    inner: str = ""
    """`part` within that loss."""
    referenced: int | None = None
    """How many of its sequences, from the first, need the champion's log-probabilities; None is all."""

    @property
    def tokens(self) -> int:
        """Tokens of all its sequences."""
        return sum(len(s) for s in self.sequences)


@dataclass(frozen=True)
class Terms:
    """What a loss says of B items."""

    losses: Tensor
    """(B,) loss of each item."""
    logps: Sequence[Sequence[Tensor]]
    """For each item, for its first sequences, (T,) log-probabilities under the policy: what distances are taken of."""
    sums: Sums


class Objective(Protocol):
    """A loss over items."""

    def prepare(self, model: Any, items: Sequence[Item]) -> Any:
        """What the loss must know of the whole step; called without gradients, in every process with all items."""
        ...

    def terms(self, model: Any, items: Sequence[Item], step: Any) -> Terms:
        """Losses of some of the step's items, one each."""
        ...


class PolicyTrainer(Trainer):
    """Trainer whose batch is an optimizer step of items, cut into micro-batches of like length."""

    def __init__(
        self, *, objective: Objective, micro_batch: int, leashes: Sequence[Leash], **given: Any
    ) -> None:
        """See the module; `given` is the Trainer's own."""
        super().__init__(data_collator=_as_they_are, **given)
        self.objective: Objective = objective
        self.micro_batch = micro_batch
        self.leashes = leashes
        self.tokens_seen = 0
        self._sums: Sums = {}

    def training_step(
        self,
        model: Any,
        inputs: Any,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> Tensor:
        """Forward and backward of one optimizer step; returns its loss."""
        model.train()
        items: list[Item] = [_on(item, self.args.device) for item in inputs["items"]]
        weights = {leash.name: leash.weight(self.state.log_history) for leash in self.leashes}
        rank, processes = world()
        with torch.no_grad(), self.compute_loss_context_manager():
            step = self.objective.prepare(model, items)
        total = torch.zeros((), device=self.args.device)
        for part, counts in own_batches([item.tokens for item in items], self.micro_batch, rank, processes):
            with self.compute_loss_context_manager():
                loss, sums = self._part([items[i] for i in part], model, step, weights)
                # Gradients are averaged over the processes, and each has a part of the step's rows.
                loss = loss * (counts * processes / len(items))
            self.accelerator.backward(loss)
            total += loss.detach()
            self._sums = added(self._sums, sums) if counts else self._sums
        self._sums |= {f"{name}_weight": (weight, 1.0) for name, weight in weights.items()}
        self.tokens_seen += sum(item.tokens for item in items)
        return total

    def _part(
        self, items: Sequence[Item], model: Any, step: Any, weights: Mapping[Any, float]
    ) -> tuple[Tensor, Sums]:
        """Sum of the losses of some items, and of what their distances cost."""
        terms = self.objective.terms(model, items, step)
        loss, sums = terms.losses.sum(), dict(terms.sums)
        for leash in self.leashes:
            far = torch.stack(
                [leash.distance(item, logps) for item, logps in zip(items, terms.logps, strict=True)]
            )
            sums[leash.name] = mean_of(far)
            if weights[leash.name] > 0:
                loss = loss + weights[leash.name] * far.sum()
        return loss, sums

    def get_train_dataloader(self) -> DataLoader:
        """Whole steps, the same in every process."""
        if self.args.world_size == 1:
            return super().get_train_dataloader()
        loader: Any = DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_size=self._train_batch_size,
            sampler=self._get_train_sampler(),
            collate_fn=self.data_collator,
        )
        return prepare_data_loader(
            loader, num_processes=1, process_index=0, use_seedable_sampler=True, data_seed=self.args.data_seed
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the step's own metrics to what the Trainer logs."""
        if "loss" in logs:
            sums = over_processes(self._sums)
            logs |= {name: total / max(n, 1e-12) for name, (total, n) in sums.items()}
            self._sums = {}
        super().log(logs, start_time)


def added(first: Sums, second: Sums) -> Sums:
    """Sums of both."""
    out = dict(first)
    for name, (total, count) in second.items():
        before = out.get(name, (0.0, 0.0))
        out[name] = (before[0] + total, before[1] + count)
    return out


def mean_of(values: Tensor) -> tuple[float, float]:
    """A metric's (sum, count)."""
    return float(values.detach().float().sum()), float(values.numel())


def _as_they_are(batch: list[Item] | list[list[Item]]) -> dict[str, list[Item]]:
    """A batch of items, or of steps that were put together before."""
    return {"items": [item for one in batch for item in (one if isinstance(one, list) else [one])]}


def _on(item: Item, device: torch.device) -> Item:
    if device.type == "cpu":
        return item
    return replace(
        item,
        reference=tuple(t.to(device) for t in item.reference),
        base=tuple(t.to(device) for t in item.base),
    )


class Watch(TrainerCallback):
    """Tells each step to whoever watches, and stops a run whose loss is no number."""

    def __init__(self, on_step: OnStep | None) -> None:
        """Watch for `on_step`."""
        self.on_step = on_step
        self.trainer: PolicyTrainer | None = None
        self._before = (time.perf_counter(), 0)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """After every optimizer step."""
        if not logs or "loss" not in logs:
            return
        now, tokens = time.perf_counter(), getattr(self.trainer, "tokens_seen", 0)
        rate = (tokens - self._before[1]) / max(now - self._before[0], 1e-9)
        self._before = (now, tokens)
        if self.on_step:
            self.on_step(state.global_step, state.max_steps, {**logs, "tokens_per_s": rate})
        if not math.isfinite(logs["loss"]):
            control.should_training_stop = True


def make_trainer(
    model: Any,
    items: Sequence[Item],
    objective: Objective,
    arguments: TrainingArguments,
    *,
    micro_batch: int,
    leashes: Sequence[Leash],
    on_step: OnStep | None,
) -> PolicyTrainer:
    """A trainer over items; `train_dataset` may be replaced (references filled in) until `train` is called."""
    watch = Watch(on_step)
    trainer = PolicyTrainer(
        objective=objective,
        micro_batch=micro_batch,
        leashes=leashes,
        model=model,
        args=arguments,
        train_dataset=items,
        callbacks=[watch],
    )
    watch.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    return trainer
