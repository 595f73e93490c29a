"""Padding on either side, and more of it, changes no log-probability and no gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from training.oracles.finding import Comparison, oracle, same
from training.oracles.given import PAD, quiet

if TYPE_CHECKING:
    from torch import Tensor

PROTECTS = "a reply that is learned differently because of which others share its batch"
REFERENCE = "by definition: a log-probability is of the reply, not of its batch"
WIDER = 23
"""Columns of padding added on a side."""


@oracle("dpo", "kto", "online", "words", protects=PROTECTS, reference=REFERENCE)
def padding(subject: Callable[[Any, Sequence[Any]], list[Any]] | None) -> Iterator[Comparison]:
    """Replies alone and beside longer ones; the subject is called as `training.logprobs.token_logprobs`."""
    import torch

    from training.logprobs import token_logprobs
    from training.oracles.items import objective, policy
    from training.oracles.plain import gradient, logprobs

    score = subject or token_logprobs
    sequences = [s for item in objective("dpo")[1] for s in item.sequences]
    model = policy()

    def total(scored: Sequence[Tensor]) -> Tensor:
        return torch.stack([(k % 3 - 0.7) * logps.sum() for k, logps in enumerate(scored)]).sum()

    with torch.no_grad():
        alone = torch.cat([logprobs(model, s) for s in sequences])
        beside = torch.cat(score(model, sequences))
    yield same("log-probabilities side by side", beside, alone)
    right = gradient(model, lambda m: total([logprobs(m, s) for s in sequences]))
    yield same("gradient side by side", gradient(model, lambda m: total(score(m, sequences))), right)


@oracle("grpo", protects=PROTECTS, reference=REFERENCE)
def padding_trl(subject: type[Any] | None) -> Iterator[Comparison]:
    """TRL's log-probabilities and their gradient with prompts wider on the left, replies on the right."""
    import torch
    from trl import GRPOTrainer

    from training.oracles.grpo import PROMPTS, REPLIES, batch, grpo_trainer
    from training.oracles.plain import gradient, logprobs
    from training.sequences import Tokens

    sequences = [Tokens(tuple(PROMPTS[i // 2]), tuple(r)) for i, r in enumerate(REPLIES)]
    inputs = batch()
    real = inputs["completion_mask"].bool()
    with quiet() as folder:
        trainer = grpo_trainer(subject or GRPOTrainer, folder)
        plain = gradient(trainer.model, lambda m: torch.cat([logprobs(m, s) for s in sequences]).sum())
        alone = torch.cat([logprobs(trainer.model, s) for s in sequences]).detach()
        for left, right in ((0, 0), (WIDER, 0), (0, WIDER)):
            found = _of_trl(trainer, inputs, left, right)[:, : real.shape[1]][real]
            trainer.model.zero_grad()
            found.sum().backward()
            name = f"{left} columns more on the left, {right} on the right"
            yield same(f"log-probabilities, {name}", found.detach(), alone)
            yield same(f"gradient, {name}", gradient(trainer.model), plain)


def _of_trl(trainer: Any, inputs: dict[str, Tensor], left: int, right: int) -> Tensor:
    """(B, C + right) log-probabilities as TRL's trainer computes them."""
    import torch
    from torch.nn.functional import pad

    ids = torch.cat(
        [
            pad(inputs["prompt_ids"], (left, 0), value=PAD),
            pad(inputs["completion_ids"], (0, right), value=PAD),
        ],
        1,
    )
    mask = torch.cat([pad(inputs["prompt_mask"], (left, 0)), pad(inputs["completion_mask"], (0, right))], 1)
    columns = inputs["completion_ids"].shape[1] + right
    logps: Tensor = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, columns)[0]
    return logps
