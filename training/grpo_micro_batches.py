"""Micro-batches of like length for TRL's GRPO, and passes without gradients likewise.

TRL 1.16 shuffles a generation's completions and pads every micro-batch as wide as the longest completion of all. Within
the block they are sorted instead and every micro-batch is as wide as its own longest; whatever counts in the loss
still counts. The gradient of an optimizer step is a sum over its completions, so it stays what it was, up to the order
of additions. That holds for the losses whose divisor does not depend on the micro-batch: `bnpo` divides by each
micro-batch's own tokens and is left alone.

These are private names: they are touched for this exact version only, for the duration of a `with`, and a test
compares loss and gradient with and without.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PATCHED_TRL = "1.16.0"
BY_SUM = frozenset({"dr_grpo", "dapo", "grpo"})
_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
)


@contextmanager
def length_sorted(trainer: Any) -> Iterator[bool]:
    """Within the block the trainer's micro-batches are alike in length; yields whether the switch was made."""
    if importlib.metadata.version("trl") != PATCHED_TRL or trainer.loss_type not in BY_SUM:
        yield False
        return
    import trl.trainer.grpo_trainer as trl_module

    module: Any = trl_module
    before = (module.shuffle_sequence_dict, module.split_tensor_dict)
    parts = trainer.args.steps_per_generation
    try:
        module.shuffle_sequence_dict = lambda batch: reordered(batch, order_of(batch, parts))
        module.split_tensor_dict = lambda batch, count: [trimmed(p) for p in before[1](batch, count)]
        trainer._get_per_token_logps_and_entropies = _by_length(trainer)
        yield True
    finally:
        module.shuffle_sequence_dict, module.split_tensor_dict = before
        del trainer._get_per_token_logps_and_entropies  # the method of the class shows again


def widths(batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(B,) prompt tokens and (B,) columns of the completion up to the last that the loss reads, at least one."""
    counted = batch["completion_mask"].bool()
    if batch.get("tool_mask") is not None:
        counted = counted & batch["tool_mask"].bool()
    return batch["prompt_mask"].sum(1), _last(counted)


def _last(mask: Tensor) -> Tensor:
    """(B,) columns up to the last true one, at least one."""
    import torch

    columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * columns).amax(1).clamp(min=1)


def order_of(batch: dict[str, Any], parts: int) -> list[int]:
    """The order of rows whose micro-batches hold the fewest columns, out of three.

    A micro-batch is as wide as its longest prompt and its longest completion together: which of the two should be
    alike depends on the data. The wider micro-batches come first, lest memory runs out late.
    """
    prompt, completion = (w.tolist() for w in widths(batch))
    size = len(prompt) // parts
    keys = [
        lambda i: (-(prompt[i] + completion[i]), -completion[i], i),
        lambda i: (-completion[i], -prompt[i], i),
        lambda i: (-prompt[i], -completion[i], i),
    ]

    def columns(order: list[int]) -> int:
        cuts = [order[start : start + size] for start in range(0, len(order), size)]
        return sum(max(prompt[i] for i in cut) + max(completion[i] for i in cut) for cut in cuts)

    return min((sorted(range(len(prompt)), key=key) for key in keys), key=columns)


def reordered(batch: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """All values that have a row for each completion, in this order."""
    import torch

    def moved(value: Any) -> Any:
        if value is None or (isinstance(value, torch.Tensor) and value.ndim == 0):
            return value
        if isinstance(value, torch.Tensor):
            return value[torch.tensor(order, device=value.device)]
        return [value[i] for i in order]

    return {name: moved(value) for name, value in batch.items()}


def trimmed(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch without the columns that none of its rows needs: prompts on the left, completions on the right."""
    prompt, completion = (int(w.max()) for w in widths(batch))
    out = dict(batch)
    for name in _PROMPT:
        out[name] = batch[name][:, batch[name].shape[1] - prompt :]
    for name in _COMPLETION:
        if batch.get(name) is not None:
            out[name] = batch[name][:, :completion]
    return out


def _by_length(trainer: Any) -> Any:
    """TRL's pass over a whole generation, without gradients: sorted, and as wide as each part's longest.

    Of a pass with gradients the log-probabilities are noted as `scored` of the trainer.
    """
    compute = trainer._get_per_token_logps_and_entropies

    def passed(
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **given: Any,
    ) -> Any:
        import torch

        if torch.is_grad_enabled() or any(
            value is not None and value is not False for value in given.values()
        ):
            found = compute(model, input_ids, attention_mask, logits_to_keep, batch_size, **given)
            trainer.scored = found[0].detach()
            return found
        start = input_ids.shape[1] - logits_to_keep
        prompt, completion = attention_mask[:, :start].sum(1), _last(attention_mask[:, start:].bool())
        order = sorted(range(len(input_ids)), key=lambda i: -int(prompt[i] + completion[i]))
        logps = torch.zeros((len(input_ids), logits_to_keep), device=input_ids.device)
        size = batch_size or len(input_ids)
        for first in range(0, len(order), size):
            rows = torch.tensor(order[first : first + size], device=input_ids.device)
            wide = int(completion[rows].max())
            cut = slice(start - int(prompt[rows].max()), start + wide)
            part, _, _ = compute(model, input_ids[rows, cut], attention_mask[rows, cut], wide)
            logps[rows, :wide] = part.to(logps.dtype)
        return logps, None, None

    return passed
