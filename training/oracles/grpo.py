"""GRPO's loss and gradient on log-probabilities written down by hand, on-policy and where replies are masked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from training.oracles import hand
from training.oracles.finding import Comparison, near, oracle, same
from training.oracles.given import ARGUMENTS, PAD, Given, quiet

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("dr_grpo", "dapo", "grpo", "bnpo")
BETA, LOW, HIGH, LIMIT = 0.3, 0.2, 0.28, 6
PROMPTS = [[5, 9, 77], [14, 3, 60, 61, 62]]
REPLIES = [[40, 41, 42, 2], [50, 51], [60, 61, 62], [70, 71, 72, 73, 74, 75]]  # two of each prompt
ADVANTAGES = [1.5, -0.5, 0.25, -2.0]
LOGPS = [[-0.5, -1.5, -0.25, -2.0], [-0.75, -1.0], [-1.25, -0.5, -3.0], [-0.1, -2.5, -1.0, -0.4, -0.9, -1.6]]
_STEP = (0.5, -0.1, 0.15, -0.6, 0.0, 0.35)
"""How much likelier tokens have become since they were sampled: beyond either bound, and within."""
OLD = [[x - _STEP[(i + t) % 6] for t, x in enumerate(row)] for i, row in enumerate(LOGPS)]
CHAMPION = [[x + 0.3 * _STEP[(2 * i + t) % 6] for t, x in enumerate(row)] for i, row in enumerate(LOGPS)]
ALL = (True, True, True, True)
REFERENCE = "arXiv 2402.03300 eq. 3 and 4, 2503.20783, 2503.14476 eq. 8, 2512.02556 section 3.1"


@oracle(
    "grpo", protects="replies that count by another measure than the chosen loss says", reference=REFERENCE
)
def grpo_trl(subject: type[Any] | None) -> Iterator[Comparison]:
    """TRL's loss and gradient, clipped and with its KL, by each kind of denominator; the subject is its class."""
    from trl import GRPOTrainer

    with quiet() as folder:
        for kind in KINDS:
            trainer = grpo_trainer(subject or GRPOTrainer, folder, loss_type=kind, beta=BETA)
            loss, slope = loss_of(trainer, batch(old=OLD, champion=CHAMPION))
            right, slopes = hand.grpo(
                kind, LOGPS, OLD, CHAMPION, ADVANTAGES, beta=BETA, clip=(LOW, HIGH), limit=LIMIT, kept=ALL
            )
            yield near(f"{kind} loss", loss, right)
            yield same(f"{kind} gradient", slope, _padded(slopes), rel=1e-5)


@oracle(
    "grpo",
    protects="a first step that is clipped or reweighted although its replies were just sampled",
    reference="arXiv 2402.03300 eq. 3; trl#6789",
)
def grpo_on_policy(subject: type[Any] | None) -> Iterator[Comparison]:
    """Without old log-probabilities the ratio is 1: a token's loss is -A, its gradient -A / D."""
    from trl import GRPOTrainer

    with quiet() as folder:
        trainer = grpo_trainer(subject or GRPOTrainer, folder, loss_type="dapo")
        loss, slope = loss_of(trainer, batch())
        tokens = sum(map(len, REPLIES))
        weighed = sum(a * len(r) for a, r in zip(ADVANTAGES, REPLIES, strict=True))
        yield near("loss", loss, -weighed / tokens)
        gains = [[-a / tokens] * len(r) for a, r in zip(ADVANTAGES, REPLIES, strict=True)]
        yield same("gradient", slope, _padded(gains), rel=1e-5)
        yield near("share of clipped tokens", trainer._metrics["train"]["clip_ratio/region_mean"][-1], 0.0)


@oracle(
    "grpo",
    protects="replies that are masked out but still thin the gradient of the others",
    reference="trl#6369",
)
def grpo_truncated(subject: type[Any] | None) -> Iterator[Comparison]:
    """Of four replies one is masked out: it counts neither above nor below the line; the subject is called as palate's.

    TRL itself divides dr_grpo and grpo by all replies; palate's trainer by those that are read.
    """
    from trl import GRPOTrainer

    from training.grpo_trainer import Trainer

    kept = (True, False, True, True)
    with quiet() as folder:
        for kind in KINDS:
            right, slopes = hand.grpo(
                kind, LOGPS, OLD, CHAMPION, ADVANTAGES, beta=BETA, clip=(LOW, HIGH), limit=LIMIT, kept=kept
            )
            for name, trainer_class in (("palate", subject or Trainer), ("TRL", GRPOTrainer)):
                trainer = grpo_trainer(trainer_class, folder, loss_type=kind, beta=BETA)
                trainer.rollouts = SimpleNamespace(kept_share=3 / 4)
                loss, slope = loss_of(trainer, batch(old=OLD, champion=CHAMPION, kept=kept))
                yield same(
                    f"{name}: {kind} gradient",
                    slope,
                    _padded(slopes),
                    rel=1e-5,
                    avoided="palate's trainer divides by the replies it reads" if name == "TRL" else "",
                )
                if name == "palate":
                    yield near(f"{kind} loss", loss, right)


def grpo_trainer(trainer: type[Any], folder: Any, **settings: Any) -> Any:
    """TRL's trainer on the tiny model, one micro-batch a step."""
    from datasets import Dataset
    from trl import GRPOConfig

    from training import tiny

    given: dict[str, Any] = {
        **ARGUMENTS, "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": LIMIT,
        "epsilon": LOW, "epsilon_high": HIGH, "use_bias_correction_kl": True, "beta": 0.0, **settings,
    }  # fmt: skip
    made = trainer(
        model=tiny.policy(),
        reward_funcs=_unused,
        args=GRPOConfig(output_dir=str(folder), **given),
        train_dataset=Dataset.from_list([{"prompt": "unused"}] * 4),
        processing_class=tiny.tokenizer(),
    )
    made.current_gradient_accumulation_steps = made.args.gradient_accumulation_steps
    made.model.train()
    return made


def _unused(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def batch(
    *,
    old: Sequence[Sequence[float]] | None = None,
    champion: Sequence[Sequence[float]] | None = None,
    kept: Sequence[bool] = ALL,
) -> dict[str, Tensor]:
    """The four replies as TRL gives them to its loss: prompts padded on the left, completions on the right."""
    import torch

    width, longest = max(map(len, PROMPTS)), max(map(len, REPLIES))
    heads = [PROMPTS[i // 2] for i in range(4)]
    counted = [[int(keep)] * len(r) + [0] * (longest - len(r)) for r, keep in zip(REPLIES, kept, strict=True)]
    given = {"old_per_token_logps": old, "ref_per_token_logps": champion}
    return {
        "prompt_ids": torch.tensor([[PAD] * (width - len(p)) + p for p in heads]),
        "prompt_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in heads]),
        "completion_ids": torch.tensor([r + [PAD] * (longest - len(r)) for r in REPLIES]),
        "completion_mask": torch.tensor(counted),
        "advantages": torch.tensor(ADVANTAGES),
        "num_items_in_batch": torch.tensor(counted).sum(),
        **{name: _padded(values) for name, values in given.items() if values is not None},
    }


def loss_of(trainer: Any, inputs: dict[str, Tensor]) -> tuple[float, Tensor]:
    """The trainer's loss where the model says `LOGPS`, and (B, C) its gradient by them."""
    import torch

    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    columns = inputs["completion_ids"].shape[1]
    logps = torch.full((ids.shape[0], ids.shape[1] - 1), 9.0)
    for row, values in enumerate(LOGPS):
        start = logps.shape[1] - columns
        logps[row, start : start + len(values)] = torch.tensor(values)
    logps.requires_grad_()
    loss = trainer.compute_loss(Given((ids, logps)), dict(inputs))
    loss.backward()
    assert logps.grad is not None
    return float(loss.detach()), logps.grad[:, -columns:]


def _padded(rows: Sequence[Sequence[float]]) -> Tensor:
    import torch

    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (longest - len(row))] for row in rows])
