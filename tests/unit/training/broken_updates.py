"""Copies of whole updates, of their loop and of what they keep, each broken in one way."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from training.adapter import save_adapter
from training.fit import fit, load_champion
from training.grpo_trainer import make_trainer as make_grpo
from training.policy_trainer import make_trainer
from training.reference import reference_logprobs

# palate's loop


def mean_of_micro_batches(*given: Any, **named: Any) -> Any:
    """Each part normalised by itself, so that a part of one row counts as much as one of many."""
    trainer = make_trainer(*given, **named)
    own = trainer._part

    def part(items: Any, *more: Any) -> Any:
        loss, sums = own(items, *more)
        return loss * 3 / len(items), sums

    trainer._part = part  # type: ignore[method-assign]
    return trainer


def divided_again(*given: Any, **named: Any) -> Any:
    """Divides by the number of micro-batches once more."""
    trainer = make_trainer(*given, **named)
    own = trainer._part
    cuts = 8 / trainer.micro_batch

    def part(*more: Any) -> Any:
        loss, sums = own(*more)
        return loss / cuts, sums

    trainer._part = part  # type: ignore[method-assign]
    return trainer


def weights_dropped(model: Any, items: Any, *more: Any, **named: Any) -> Any:
    return make_trainer(
        model, [replace(i, values={**i.values, "weight": 1.0}) for i in items], *more, **named
    )


def adapter_in_bf16(model: Any, *more: Any, **named: Any) -> Any:
    return make_trainer(model.to(torch.bfloat16), *more, **named)


def adapter_cast_on_the_way(*given: Any, **named: Any) -> Any:
    """As continuous batching does: the trained model is cast when the first batch comes."""
    trainer = make_trainer(*given, **named)
    own = trainer.training_step

    def step(model: Any, *more: Any) -> Any:
        loss = own(model, *more)
        model.to(torch.bfloat16)
        return loss

    trainer.training_step = step  # type: ignore[method-assign]
    return trainer


def grpo_twice(*given: Any, **named: Any) -> Any:
    trainer = make_grpo(*given, **named)
    own = trainer.compute_loss
    trainer.compute_loss = lambda *a, **k: 2 * own(*a, **k)  # type: ignore[method-assign]
    return trainer


def grpo_counts_the_truncated(*given: Any, **named: Any) -> Any:
    """Truncated replies stay in the denominator."""
    trainer = make_grpo(*given, **named)
    own = trainer.compute_loss
    trainer.compute_loss = lambda *a, **k: own(*a, **k) * trainer.rollouts.kept_share  # type: ignore[method-assign,union-attr]
    return trainer


# What is kept


def saves_zeros(model: Any, base_id: str, output: Path) -> None:
    """An adapter whose B is zero answers as the base."""
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.zero_()
    save_adapter(model, base_id, output)


def saves_no_weights(model: Any, base_id: str, output: Path) -> None:
    save_adapter(model, base_id, output)
    (output / "adapter_model.safetensors").unlink()


def saves_under_other_names(model: Any, base_id: str, output: Path) -> None:
    """Whoever loads it finds none of its weights, and starts with a fresh adapter."""
    from safetensors.torch import load_file, save_file

    save_adapter(model, base_id, output)
    file = output / "adapter_model.safetensors"
    save_file({f"wrapped.{name}": t for name, t in load_file(file).items()}, file, {"format": "pt"})


def trains_no_b(champion: Any) -> Any:
    """B stays zero, so that the adapter never says anything."""
    model = load_champion(champion)
    for name, weight in model.named_parameters():
        weight.requires_grad = "lora_A" in name
    return model


def trains_the_base(champion: Any) -> Any:
    return load_champion(champion).requires_grad_()


def with_dropout(model: Any, sequences: Any, file: Path, **given: Any) -> Any:
    """References with dropout on."""
    real = model.eval
    model.eval = lambda: model
    try:
        return reference_logprobs(model, sequences, file, **given)
    finally:
        model.eval = real


def computed_anew(model: Any, sequences: Any, file: Path, **given: Any) -> Any:
    """References of the policy as it is now."""
    file.unlink(missing_ok=True)
    return reference_logprobs(model, sequences, file, **given)


def of_the_base(model: Any, sequences: Any, file: Path, **given: Any) -> Any:
    with model.disable_adapter():
        return reference_logprobs(model, sequences, file, **given)


def _resumed(change: Any) -> Any:
    def broken(settings: Any, champion: Any, run: Any, *more: Any, **named: Any) -> Any:
        for checkpoint in run.output.glob("checkpoint-*"):
            change(checkpoint)
        return fit(settings, champion, run, *more, **named)

    return broken


def _optimizer_afresh(checkpoint: Path) -> None:
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    torch.save({**state, "state": {}}, checkpoint / "optimizer.pt")


RESUMES_FROM_THE_START = _resumed(shutil.rmtree)
RESUMES_WITH_OTHER_DRAWS = _resumed(lambda checkpoint: (checkpoint / "rng_state.pth").unlink())
RESUMES_WITH_A_FRESH_OPTIMIZER = _resumed(_optimizer_afresh)


def resumes_with_other_rows(
    settings: Any, champion: Any, run: Any, items: Any, *more: Any, **named: Any
) -> Any:
    """After a stop the rows come in another order."""
    stopped = any(run.output.glob("checkpoint-*"))
    return fit(settings, champion, run, items[::-1] if stopped else items, *more, **named)
