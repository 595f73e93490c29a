"""The slow, plain way to what faster code computes: one sequence at a time, no padding, no hook, no patch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from training.sequences import Tokens


def logprobs(model: Any, sequence: Tokens, temperature: float = 1.0) -> Tensor:
    """(T,) nats of the tokens that a loss reads, from one forward pass over one sequence."""
    import torch

    ids = torch.tensor([[*sequence.prompt, *sequence.completion]])
    logp = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, -1)
    start = len(sequence.prompt)
    found = logp[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
    return found if sequence.trained is None else found[torch.tensor(sequence.trained)]


def gradient(model: Any, loss: Callable[[Any], Tensor] | None = None) -> Tensor:
    """(P,) gradient by all that is trained, side by side; of `loss(model)` where that is given."""
    import torch

    trained = [p for p in model.parameters() if p.requires_grad]
    if loss is not None:
        model.zero_grad()
        loss(model).backward()
    return torch.cat(
        [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().clone() for p in trained]
    )


def weights(model: Any, *, trained: bool) -> Tensor:
    """(P,) all weights that are trained, or all that are not."""
    import torch

    return torch.cat([p.detach().flatten().clone() for p in model.parameters() if p.requires_grad == trained])


class _Seen(Exception):
    """Ends training before the optimizer moves anything."""


def one_step(trainer: Any) -> Tensor:
    """(P,) the gradient of a trainer's first optimizer step, as its own loop makes it; nothing is moved or saved."""
    from transformers import PrinterCallback, TrainerCallback

    seen: list[Tensor] = []

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(
            self,
            args: Any,  # noqa: ARG002
            state: Any,  # noqa: ARG002
            control: Any,  # noqa: ARG002
            model: Any = None,
            **_: Any,
        ) -> None:
            seen.append(gradient(model))
            raise _Seen

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Keep())
    with contextlib.suppress(_Seen):
        trainer.train()
    return seen[0]
