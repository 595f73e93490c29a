"""What belongs to a row reaches its loss: its weight and its reference; and in which number format it is learned."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.oracles.accumulation import OWN
from training.oracles.finding import Comparison, oracle, same
from training.oracles.given import ARGUMENTS, quiet

if TYPE_CHECKING:
    from torch import Tensor

    from training.policy_trainer import Item, Objective


@oracle(
    *OWN,
    protects="rows that all count the same because their weights were dropped on the way to the loss",
    reference="trl#1139",
)
def columns(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """With weights of 1 and 0 the gradient is that of half the rows; the subject is called as `make_trainer`."""
    from training.oracles.items import objective, policy
    from training.oracles.plain import gradient, one_step

    with quiet() as folder:
        for method in OWN:
            loss, items = objective(method)
            weighed = [_weighed(item, float(k % 2)) for k, item in enumerate(items)]
            model = policy().train()
            step = loss.prepare(model, weighed)
            right = gradient(model, functools.partial(_of_half, loss, weighed, step))
            yield same(f"{method}: half the rows", one_step(_trainer(subject, folder, loss, weighed)), right)


def _of_half(loss: Objective, items: Sequence[Item], step: Any, model: Any) -> Tensor:
    """The step's loss made of the rows with a weight alone."""
    counted = [item for item in items if item.values["weight"]]
    return loss.terms(model, counted, step).losses.sum() / len(items)


def _weighed(item: Item, weight: float) -> Item:
    return replace(item, values={**item.values, "weight": weight})


def _trainer(
    make: Callable[..., Any] | None, folder: Path, loss: Any, items: list[Item], **changes: Any
) -> Any:
    from transformers import TrainingArguments

    from training.leash import Leash
    from training.oracles.items import policy
    from training.policy_trainer import make_trainer

    arguments = {**ARGUMENTS, "per_device_train_batch_size": 8, "remove_unused_columns": False, **changes}
    return (make or make_trainer)(
        policy(),
        items,
        loss,
        TrainingArguments(output_dir=str(folder), **arguments),
        micro_batch=4,
        leashes=[Leash("kl", 0.0, None)],
        on_step=None,
    )


@oracle(
    *OWN,
    protects="an adapter that is kept in bf16, where small steps are rounded to nothing",
    reference="trl 1.16 continuous batching, which casts the trained model for good",
)
def adapter_precision(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """One step with bf16 autocast and a learning rate that bf16 weights would not feel; called as `make_trainer`."""
    from transformers import PrinterCallback

    from training.oracles.items import objective
    from training.oracles.plain import weights

    with quiet() as folder:
        loss, items = objective("dpo")
        trainer = _trainer(subject, folder, loss, items, bf16=True, learning_rate=1e-6, max_steps=1)
        trainer.remove_callback(PrinterCallback)
        before, base = weights(trainer.model, trained=True), weights(trainer.model, trained=False)
        trainer.train()
        kinds = {str(p.dtype) for p in trainer.model.parameters()}
        yield Comparison("number formats after a step in bf16", " ".join(sorted(kinds)), "torch.float32")
        moved = (weights(trainer.model, trained=True) != before).float().mean()
        yield Comparison("share of the adapter that moved", float(moved), 1.0, 0.05)
        still = (weights(trainer.model, trained=False) == base).float().mean()
        yield Comparison("share of the base that did not", float(still), 1.0)


@oracle("dpo", protects="precomputed references of other rows, or of another policy", reference="trl#1139")
def reference_trl(subject: type[Any] | None) -> Iterator[Comparison]:
    """TRL's gradient with references computed before and while it trains, and what it does to a column of weights."""
    from datasets import Dataset
    from trl import DPOTrainer

    from training import tiny
    from training.oracles.dpo import dpo_trainer
    from training.oracles.plain import one_step

    def gradient(folder: Path, precompute: bool) -> Tensor:
        with contextlib.redirect_stderr(io.StringIO()):  # a bar that no setting switches off
            trainer = dpo_trainer(
                subject or DPOTrainer, folder, precompute_ref_log_probs=precompute, beta=0.5
            )
        # TRL's reference is the adapter as it was given; the policy moves away from it.
        tiny.move(trainer.model.base_model, 0.05)
        return one_step(trainer)

    with quiet() as folder:
        yield same("gradient with precomputed references", gradient(folder, True), gradient(folder, False))
        trainer = dpo_trainer(subject or DPOTrainer, folder)
        rows = trainer.train_dataset
        weighed = Dataset.from_list([{**row, "weight": 0.5} for row in rows])
        kept = "weight" in trainer._remove_unused_columns(weighed, "training").column_names
        yield Comparison(
            "TRL: a column of weights is",
            "kept" if kept else "dropped",
            "kept",
            avoided="palate's items carry their weights to the loss",
        )
