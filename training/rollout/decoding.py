"""Rows that are decoded side by side: begun with one shared prefill, dropped when they end, joined by later ones.

Rows are padded on the left, so that their newest tokens stand in the same column. Positions are each row's own, and
keys are turned by their position before they are kept: columns may be added or cut on the left at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from training.rollout.engine import RolloutError, Sampling

if TYPE_CHECKING:
    from torch import Tensor

Name = tuple[int, int]
"""Place of the prompt, and member of its group."""
ATTENTION = {"full_attention", "sliding_attention"}


@dataclass
class Rows:
    """R rows between two tokens."""

    names: list[Name]
    cache: Any
    """DynamicCache of keys and values, (R, heads, L, size) in each layer."""
    mask: Tensor
    """(R, L) 1 where the cache holds a real token."""
    logits: Tensor
    """(R, V) of each row's next token."""


def prefilled(model: Any, prompts: Sequence[Sequence[int]], places: Sequence[int], members: int) -> Rows:
    """Read each of P prompts once; R = P * members rows begin from what was read.

    Args:
        model: causal language model in evaluation mode.
        prompts: token ids of each.
        places: what the prompts are called.
        members: rows of each prompt.

    Raises:
        RolloutError: the model keeps something else than keys and values of past tokens.
    """
    import torch
    from transformers import DynamicCache

    kinds = set(getattr(model.config, "layer_types", None) or ATTENTION)
    if not kinds <= ATTENTION:
        raise RolloutError(
            "The engine cannot drop rows of this model: it has layers that are not plain attention.",
            got=", ".join(sorted(kinds - ATTENTION)),
            allowed=", ".join(sorted(ATTENTION)),
            next_step="use another base model, or the engine vllm",
        )
    width = max(len(p) for p in prompts)
    ids = torch.zeros((len(prompts), width), dtype=torch.long, device=model.device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, device=model.device)
        mask[row, width - len(prompt) :] = 1
    cache = DynamicCache()
    with torch.inference_mode():
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_repeat_interleave(members)
        logits = output.logits[:, -1].repeat_interleave(members, 0)
        mask = mask.repeat_interleave(members, 0)
    names = [(place, member) for place in places for member in range(members)]
    return Rows(names, cache, mask, logits)


def advanced(model: Any, rows: Rows, tokens: Tensor) -> Rows:
    """The rows one token later.

    Args:
        model: the same as before.
        rows: R rows; their cache is written to.
        tokens: (R,) what was drawn.
    """
    import torch

    with torch.inference_mode():
        mask = torch.cat([rows.mask, torch.ones_like(rows.mask[:, :1])], 1)
        output = model(
            input_ids=tokens[:, None],
            attention_mask=mask,
            position_ids=rows.mask.sum(-1, keepdim=True),
            cache=rows.cache,
            use_cache=True,
        )
    return Rows(rows.names, rows.cache, mask, output.logits[:, -1])


def kept(rows: Rows, keep: Sequence[int]) -> Rows:
    """Some of the rows; columns that none of them uses are cut.

    Args:
        rows: their cache is written to.
        keep: at least one row.
    """
    import torch

    with torch.inference_mode():
        index = torch.tensor(keep, device=rows.mask.device)
        mask = rows.mask[index]
        first = int(mask.argmax(1).min())
        _change(rows.cache, lambda t: t[index, :, first:])
        return Rows([rows.names[i] for i in keep], rows.cache, mask[:, first:], rows.logits[index])


def joined(old: Rows | None, new: Rows) -> Rows:
    """Both: the shorter ones are padded on the left. The caches are written to."""
    import torch
    from torch.nn.functional import pad

    if old is None:
        return new
    width = max(old.mask.shape[1], new.mask.shape[1])
    with torch.inference_mode():
        for rows in (old, new):
            by = width - rows.mask.shape[1]
            if by:
                _change(rows.cache, partial(pad, pad=(0, 0, by, 0)))
                rows.mask = pad(rows.mask, (by, 0))
        for before, more in zip(old.cache.layers, new.cache.layers, strict=True):
            before.keys = torch.cat([before.keys, more.keys])
            before.values = torch.cat([before.values, more.values])
        mask, logits = torch.cat([old.mask, new.mask]), torch.cat([old.logits, new.logits])
    return Rows(old.names + new.names, old.cache, mask, logits)


def _change(cache: Any, change: Callable[[Tensor], Tensor]) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = change(layer.keys), change(layer.values)


def drawn(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """(R,) tokens and (R,) log of the probability each was drawn with, in nats.

    The token is the one in whose stretch of the cumulative distribution the row's own uniform number falls: a row
    needs one number for each token, and which other rows there are does not matter.

    Args:
        logits: (R, V)
        uniform: (R,) in [0, 1), double precision.
        sampling: temperature, top_p, top_k.

    Raises:
        RolloutError: the logits are not finite.
    """
    import torch

    with torch.inference_mode():
        logp = torch.log_softmax(logits.float() / sampling.temperature, -1)
        if sampling.top_k or sampling.top_p < 1:
            logp = torch.log_softmax(_truncated(logp, sampling), -1)
        cumulative = logp.double().exp().cumsum(-1)
        if not bool(torch.isfinite(cumulative[:, -1]).all()):
            raise RolloutError(
                "The policy gives no probabilities: its logits are not finite.",
                next_step="lower [train.grpo] learning_rate and run again",
            )
        # right=True: the first token whose stretch ends above the number, so never one of probability 0.
        at = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
        tokens = at.clamp(max=logits.shape[-1] - 1)
        return tokens[:, 0], logp.gather(-1, tokens)[:, 0]


def _truncated(logp: Tensor, sampling: Sampling) -> Tensor:
    """(R, V) log-probabilities, minus infinity where top_k and top_p forbid a token."""
    ordered, order = logp.sort(-1, descending=True)
    # A token stays while those before it have less than top_p together: at least one always does.
    out = (ordered.exp().cumsum(-1) - ordered.exp()) >= sampling.top_p
    if sampling.top_k:
        out[:, sampling.top_k :] = True
    return logp.masked_fill(out.scatter(-1, order, out), float("-inf"))
