"""KTO's loss, and its KL where batches are odd or hold one row: palate's own and TRL's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from training.oracles import hand
from training.oracles.finding import Comparison, near, oracle, same
from training.oracles.given import ARGUMENTS, Given, quiet, rows

if TYPE_CHECKING:
    from torch import Tensor

BETA = 0.5
RATIOS, LIKED = (0.8, -0.4, -1.2), (True, False, True)
OF_OTHERS = (0.3, 0.5, -0.2)
"""Log-ratios of replies to other prompts: their mean, 0.2, is the KL."""
REFERENCE = "arXiv 2402.01306 eq. 7 and 8; trl#1911, trl#2554, trl PR#1380"


@oracle("kto", protects="a KTO that weighs liked and disliked replies wrongly", reference=REFERENCE)
def kto_loss(subject: Any) -> Iterator[Comparison]:
    """Loss, gradient and KL of three rows and of one; the subject has `kto` and `kto_kl` of `training.losses`."""
    import torch

    from training import losses

    losses_of = subject or losses
    for size in (3, 1):
        ratio = torch.tensor(RATIOS[:size], requires_grad=True)
        others = torch.tensor(OF_OTHERS[:size], requires_grad=True)
        kl = losses_of.kto_kl(others)
        found = losses_of.kto(ratio, torch.tensor(LIKED[:size]), kl, beta=BETA)
        found.sum().backward()
        z = sum(OF_OTHERS[:size]) / size
        right = [hand.kto(r, liked, z, BETA) for r, liked in zip(RATIOS[:size], LIKED, strict=False)]
        yield near(f"KL of {size} rows", kl.detach(), z)
        yield same(f"loss of {size} rows", found.detach(), torch.tensor([r.loss for r in right]), rel=1e-5)
        assert ratio.grad is not None
        yield same(f"gradient of {size} rows", ratio.grad, torch.tensor([r.by[0] for r in right]), rel=1e-5)
        yield Comparison("gradient through the KL", "none" if others.grad is None else "some", "none")
    yield near("KL of replies that became less likely", losses_of.kto_kl(torch.tensor([-0.3, -0.1])), 0.0)


@oracle(
    "kto",
    protects="a KL of a micro-batch, which changes with its size and is void at one row",
    reference=REFERENCE,
)
def kto_kl(subject: type[Any] | None) -> Iterator[Comparison]:
    """The KL of a step of five rows and of one, in whatever micro-batches; the subject is called as `kto.Objective`."""
    import torch

    from training import kto
    from training.oracles.items import objective, policy
    from training.oracles.plain import logprobs

    _, items = objective("kto")
    model = policy().eval()
    with torch.no_grad():
        ratios = [float((logprobs(model, i.sequences[1]) - i.reference[1]).sum()) for i in items]
        # Those that became likelier first: a KL below 0 would be cut to 0 and tell nothing.
        order = sorted(range(len(items)), key=lambda k: -ratios[k])
        for count in (5, 1):
            right = sum(ratios[k] for k in order[:count]) / count
            for size in (1, 2, 8):
                made = (subject or kto.Objective)(kto.Config(beta=BETA, micro_batch_rows=size))
                found = made.prepare(model, [items[k] for k in order[:count]])
                yield near(f"{count} rows by {size}", found, right, rel=1e-4)


_PROMPTS, _REPLIES = [[5, 6], [7], [8, 9, 4]], [[10, 11, 12], [20], [13, 14]]
_LOGPS = [[-0.5, -0.25, -0.25], [-2.0], [-1.0, -0.5]]
_KL_REPLIES, _KL_LOGPS = [[13, 14], [10, 11, 12], [20]], [[-1.0, -1.0], [-1.0, -0.5, -0.5], [-3.0]]


@oracle("kto", protects="thumbs judged against a KL that is their own reward", reference=REFERENCE)
def kto_trl(subject: type[Any] | None) -> Iterator[Comparison]:
    """TRL's loss at an odd batch, and what it does where a batch holds one row; the subject is its trainer's class."""
    from trl import KTOTrainer

    trainer_class = subject or KTOTrainer
    with quiet() as folder:
        trainer = kto_trainer(trainer_class, folder, beta=BETA, per_device_train_batch_size=3)
        yield from _odd_batch(trainer)
        try:
            kto_trainer(trainer_class, folder, per_device_train_batch_size=1)
            outcome = "accepted"
        except ValueError:
            outcome = "refused"
        yield Comparison("micro-batches of one row", outcome, "refused")
        last = kto_trainer(trainer_class, folder, per_device_train_batch_size=7).train_dataset[7]
        own = last["KL_completion_ids"] == last["completion_ids"]
        yield Comparison(
            "a last batch of one row: its KL is of",
            "its own reply" if own else "another's reply",
            "another's reply",
            avoided="palate draws the reply for the KL from all rows",
        )


def _odd_batch(trainer: Any) -> Iterator[Comparison]:
    import torch

    ids, mask, completion, logps = rows(_PROMPTS, _REPLIES, _LOGPS)
    kl_ids, kl_mask, kl_completion, kl_logps = rows(_PROMPTS, _KL_REPLIES, _KL_LOGPS)
    of_reference = _sums(_LOGPS) - torch.tensor(RATIOS), _sums(_KL_LOGPS) - torch.tensor(OF_OTHERS)
    trainer.precompute_ref_logps = True  # the reference is in the batch
    inputs = {
        "input_ids": ids, "attention_mask": mask, "completion_mask": completion,
        "KL_input_ids": kl_ids, "KL_attention_mask": kl_mask, "KL_completion_mask": kl_completion,
        "label": torch.tensor(LIKED), "ref_logps": of_reference[0], "ref_KL_logps": of_reference[1],
    }  # fmt: skip
    loss = trainer.compute_loss(Given((ids, logps), (kl_ids, kl_logps)), inputs)
    loss.backward()
    z = sum(OF_OTHERS) / 3
    right = [hand.kto(r, liked, z, BETA) for r, liked in zip(RATIOS, LIKED, strict=True)]
    yield near("loss of 3 rows", loss.detach(), sum(r.loss for r in right) / 3)
    expected = torch.zeros_like(logps)
    for row, slope in enumerate(right):
        start = len(_PROMPTS[row]) - 1
        expected[row, start : start + len(_REPLIES[row])] = slope.by[0] / 3
    assert logps.grad is not None
    yield same("gradient of 3 rows", logps.grad, expected, rel=1e-5)


def _sums(rows_of: list[list[float]]) -> Tensor:
    import torch

    return torch.tensor([sum(row) for row in rows_of])


def kto_trainer(trainer: type[Any], folder: Any, **settings: Any) -> Any:
    """TRL's trainer on the tiny model and eight replies of uneven length."""
    from datasets import Dataset
    from trl import KTOConfig

    from training import tiny
    from training.oracles.texts import singles

    return trainer(
        model=settings.pop("model", None) or tiny.policy(),
        args=KTOConfig(output_dir=str(folder), **{**ARGUMENTS, "per_device_train_batch_size": 8, **settings}),
        train_dataset=Dataset.from_list(singles()),
        processing_class=tiny.tokenizer(),
    )
