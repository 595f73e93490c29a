"""DPO's loss and gradient on log-probabilities written down by hand: palate's own and TRL's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from training.oracles import hand
from training.oracles.finding import Comparison, near, oracle, same
from training.oracles.given import ARGUMENTS, Given, quiet, rows

BETA, NOISE = 0.5, 0.1
BETTER, WORSE = (1.0, -0.5, 0.2), (-0.5, 0.25, 0.2)
"""Log-ratios of policy to champion of three pairs: one that is right already, one that is wrong, one undecided."""
TOKENS = ((3, 2), (1, 4), (2, 2))
KINDS = ("sigmoid", "ipo", "robust")


@oracle(
    "dpo",
    protects="a DPO that learns with another strength, sign or label noise than was set",
    reference="arXiv 2305.18290 eq. 7, 2310.12036 eq. 17, 2403.00409 eq. 12",
)
def dpo_loss(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """Loss and gradient of each pair; the subject is called as `training.losses.dpo`."""
    import torch

    from training import losses

    loss: Callable[..., Any] = subject or losses.dpo
    for kind, offset in [*((kind, 0.0) for kind in KINDS), ("sigmoid", 0.25)]:
        better, worse = (torch.tensor(side, requires_grad=True) for side in (BETTER, WORSE))
        found = loss(
            better,
            worse,
            beta=BETA,
            kind=kind,
            label_noise=NOISE,
            offset=torch.full((3,), offset),
            chosen_tokens=torch.tensor([t[0] for t in TOKENS]),
            rejected_tokens=torch.tensor([t[1] for t in TOKENS]),
        )
        found.sum().backward()
        right = [
            hand.dpo(kind, b, w, t, BETA, NOISE, offset)
            for b, w, t in zip(BETTER, WORSE, TOKENS, strict=True)
        ]
        name = f"{kind} with offset" if offset else kind
        assert better.grad is not None and worse.grad is not None
        yield same(f"{name} loss", found.detach(), torch.tensor([r.loss for r in right]), rel=1e-5)
        gradient = torch.stack([better.grad, worse.grad], 1)
        yield same(f"{name} gradient", gradient, torch.tensor([r.by for r in right]), rel=1e-5)


# Two pairs for TRL: prompts, then the chosen replies, then the rejected ones, as its collator puts them.
_PROMPTS = [[5, 6], [7], [5, 6], [7]]
_REPLIES = [[10, 11, 12], [20], [13, 14], [21, 22, 23, 24]]
_LOGPS = [[-0.5, -0.25, -0.25], [-2.0], [-1.0, -0.5], [-0.5, -0.25, -0.75, -0.5]]
_REFERENCE = [-2.0, -1.5, -1.0, -2.25]  # log-ratios 1.0 and -0.5 of the chosen, -0.5 and 0.25 of the rejected


@oracle(
    "dpo",
    protects="a TRL whose DPO is another loss than the paper's",
    reference="arXiv 2305.18290 eq. 7, 2310.12036 eq. 17, 2403.00409 eq. 12",
)
def dpo_trl(subject: type[Any] | None) -> Iterator[Comparison]:
    """Loss and gradient of TRL's trainer on two pairs; the subject is its class."""
    import torch
    from trl import DPOTrainer

    ids, mask, completion, logps = rows(_PROMPTS, _REPLIES, _LOGPS)
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "completion_mask": completion,
        "ref_chosen_logps": torch.tensor(_REFERENCE[:2]),
        "ref_rejected_logps": torch.tensor(_REFERENCE[2:]),
    }
    with quiet() as folder:
        for kind in KINDS:
            trainer = dpo_trainer(
                subject or DPOTrainer,
                folder,
                loss_type=[kind],
                beta=BETA,
                label_smoothing=NOISE if kind == "robust" else 0.0,
            )
            trainer.precompute_ref_logps = True  # the reference is in the batch
            logps.grad = None
            loss = trainer.compute_loss(Given((ids, logps)), dict(inputs))
            loss.backward()
            right = [hand.dpo(kind, BETTER[k], WORSE[k], TOKENS[k], BETA, NOISE, 0.0) for k in range(2)]
            assert logps.grad is not None
            yield near(f"{kind} loss", loss.detach(), sum(r.loss for r in right) / 2)
            expected = torch.zeros_like(logps)
            for row in range(4):
                slope, start = right[row % 2].by[row // 2] / 2, len(_PROMPTS[row]) - 1
                expected[row, start : start + len(_REPLIES[row])] = slope
            yield same(f"{kind} gradient", logps.grad, expected, rel=1e-5)


def dpo_trainer(trainer: type[Any], folder: Any, **settings: Any) -> Any:
    """TRL's trainer on the tiny model and eight pairs of uneven length."""
    from datasets import Dataset
    from trl import DPOConfig

    from training import tiny
    from training.oracles.texts import pairs

    return trainer(
        model=settings.pop("model", None) or tiny.policy(),
        args=DPOConfig(output_dir=str(folder), **{**ARGUMENTS, "per_device_train_batch_size": 8, **settings}),
        train_dataset=Dataset.from_list(pairs()),
        processing_class=tiny.tokenizer(),
    )
