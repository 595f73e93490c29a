"""Log-probabilities of completions, with logits made for their tokens alone.

A forward pass that makes logits for every position, prompt and padding included, spends much of a small model's time
on numbers nobody reads. Here the hidden states that matter are picked just before the output layer, by a hook on
that layer: it works the same under PEFT, DDP and FSDP, as the model is called as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from training.sequences import Padded, Tokens, padded

if TYPE_CHECKING:
    from torch import Tensor


def completion_logits(model: Any, batch: Padded) -> Tensor:
    """(N, V) logits at the completions' N tokens, in the order of the sequences.

    Args:
        model: a causal language model, wrapped or not.
        batch: on the model's device.
    """
    with _only(output_layer(model), batch):
        logits: Tensor = model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).logits
    return logits


def token_logprobs(model: Any, sequences: Sequence[Tokens]) -> list[Tensor]:
    """For each of B sequences (T_b,) nats: log-probability of each token that a loss reads, given all before it."""
    batch = padded(sequences, next(model.parameters()).device)
    return list(selected(completion_logits(model, batch), batch.targets).split(batch.lengths))


def selected(logits: Tensor, targets: Tensor) -> Tensor:
    """(N,) log-softmax of (N, V) logits at N targets, in single precision, without a second (N, V) matrix."""
    logits = logits.float()
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)


def output_layer(model: Any) -> Any:
    """The module that makes logits of hidden states, whatever the model is wrapped in."""
    while not hasattr(model, "get_output_embeddings"):
        model = model.module
    return model.get_output_embeddings()


@contextmanager
def _only(head: Any, batch: Padded) -> Iterator[None]:
    """Within the block the output layer sees the wanted positions alone: (B, T, H) becomes (N, H)."""

    def pick(_module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0][batch.rows, batch.places],)

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()
