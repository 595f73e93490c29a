"""Kahneman-Tversky optimisation of the champion's adapter: from single replies that people liked or disliked.

Loss, per reply y to x, with r = log p(y|x) - log p_champion(y|x) and z the KL of the policy to the champion:

    liked:     w_liked    (1 - s(beta (r - z)))
    disliked:  w_disliked (1 - s(beta (z - r)))

Ethayarajh et al. 2024 (arXiv 2402.01306), eq. 7 and 8. z is estimated on replies to other prompts, drawn from the
whole data set, so that odd batches and batches of one row have it like any other. Thumbs go straight in: no pair and
no reward model is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from training.encoding import AsServed, Encoder
from training.errors import NotEnoughPreferences
from training.fit import fit
from training.pairs import Chosen, choose_unpaired, mean_one, uniform
from training.result import RESULT, TrainResult, read_result
from training.settings import UpdateSettings
from training.update import Champion, Data, Need, Run

if TYPE_CHECKING:
    from torch import Tensor

    from reward_models.scorer import Scorer
    from training.policy_trainer import Item, Terms
    from training.sequences import Tokens

NEEDS: frozenset[Need] = frozenset({"preferences", "served"})


class Config(UpdateSettings):
    """Settings of a KTO update."""

    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the champion (the paper's beta)."""
    balance: Literal["even", "none"] = "even"
    """`even` weighs liked and disliked replies so that both sides have the same sum (the paper advises 1 to 4/3)."""
    max_balance: float = Field(default=20.0, ge=1)
    """The rarer side's weight is at most this many times the other's."""
    liked_weight: float = Field(default=1.0, gt=0)
    """Further weight of liked replies (the paper's lambda_D)."""
    disliked_weight: float = Field(default=1.0, gt=0)
    """Further weight of disliked replies (lambda_U)."""
    batch_rows: int = Field(default=16, ge=1)
    """Replies per optimizer step."""
    micro_batch_rows: int = Field(default=8, ge=1)
    """Replies per forward and backward pass."""
    max_rows: int = Field(default=8192, ge=1)
    """At most this many replies, heavier rows first in expectation."""
    min_rows: int = Field(default=16, ge=1)
    """With fewer replies the update refuses to run (exit code 4)."""

    @model_validator(mode="after")
    def _micro(self) -> Config:
        if self.micro_batch_rows > self.batch_rows:
            raise ValueError(
                f"micro_batch_rows ({self.micro_batch_rows}) must not exceed batch_rows ({self.batch_rows})"
            )
        return self


def train(
    config: Config,
    champion: Champion,
    data: Data,
    scorer: Scorer | None,
    run: Run,
) -> TrainResult:
    """Continue the champion's adapter on the single replies of the train split; as safe to kill as DPO.

    Raises:
        NotEnoughPreferences: fewer than `min_rows` usable rows.
        TrainingError: the loss or a weight is not finite, or the disk is full.
    """
    if (run.output / RESULT).is_file():
        return read_result(run.output / RESULT)
    items, left_out, metrics = reply_items(config, champion, data, run.seed)
    return fit(
        config,
        champion,
        run,
        items,
        Objective(config),
        per_step=config.batch_rows,
        micro_batch=config.micro_batch_rows,
        metrics=metrics,
        left_out=left_out,
        data=data,
        scorer=scorer,
    )


def reply_items(
    config: Config, champion: Champion, data: Data, seed: int
) -> tuple[list[Item], dict[str, int], dict[str, float]]:
    """The replies to train on, each with another prompt's reply for the KL; what was left out; what to say of them.

    Raises:
        NotEnoughPreferences: fewer than `min_rows`.
    """
    from training.policy_trainer import Item

    encoder = Encoder(champion.base, config)
    served = AsServed(data.preferences, data.served)

    def tokens(row_id: str) -> Tokens | None:
        return encoder.single(served.context(row_id))

    chosen = choose_unpaired(
        data.preferences, most=config.max_rows, seed=seed, fits=lambda row_id: tokens(row_id) is not None
    )
    _enough(config, chosen)
    rows = chosen.rows.select(["preference_id", "label", "event_time"]).to_pylist()
    replies = [reply for row in rows if (reply := tokens(row["preference_id"])) is not None]
    others = mismatched(replies, [row["preference_id"] for row in rows], config.max_tokens, seed)
    sides = _sides(config, [row["label"] for row in rows])
    weights = mean_one([w * sides[row["label"]] for w, row in zip(chosen.weights, rows, strict=True)])
    items = [
        Item(
            (reply,) if other is None else (reply, other),
            {"weight": weight, "liked": float(row["label"]), "time": row["event_time"].timestamp()},
        )
        for reply, other, weight, row in zip(replies, others, weights, rows, strict=True)
    ]
    liked = sum(item.values["liked"] for item in items)
    about = {"rows": float(len(items)), "liked": float(liked)}
    return items, chosen.left_out, {**about, **served.metrics, **encoder.metrics}


def mismatched(replies: list[Tokens], ids: list[str], max_tokens: int, seed: int) -> list[Tokens | None]:
    """For each prompt the reply to another one, by a fixed rotation of a seeded order; None where none fits."""
    from dataclasses import replace

    order = sorted(range(len(replies)), key=lambda k: uniform(seed + 1, ids[k]))
    found: list[Tokens | None] = [None] * len(replies)
    for place, k in enumerate(order):
        for step in range(1, min(len(order), 16)):
            other = replies[order[(place + step) % len(order)]]
            short = len(replies[k].prompt) + len(other.completion) <= max_tokens
            if short and other.prompt != replies[k].prompt:
                found[k] = replace(replies[k], completion=other.completion, trained=other.trained)
                break
    return found


def _enough(config: Config, chosen: Chosen) -> None:
    if chosen.rows.num_rows >= config.min_rows:
        return
    unused = ", ".join(f"{reason}: {n}" for reason, n in chosen.left_out.items())
    raise NotEnoughPreferences(
        "Too few replies that somebody liked or disliked.",
        got=f"{chosen.rows.num_rows} usable rows ({unused or 'no others'})",
        allowed=f"at least {config.min_rows} ([train.kto] min_rows)",
        next_step="switch the rule `unpaired` on ([prefer.rules.unpaired]) or collect more thumbs, then `palate build`",
    )


def _sides(config: Config, labels: list[bool]) -> dict[bool, float]:
    """Weight of a liked and of a disliked reply."""
    liked, disliked = sum(labels), len(labels) - sum(labels)
    even = {True: 1.0, False: 1.0}
    if config.balance == "even" and liked and disliked:
        rarer = liked < disliked
        even[rarer] = min(max(liked, disliked) / min(liked, disliked), config.max_balance)
    return {True: even[True] * config.liked_weight, False: even[False] * config.disliked_weight}


@dataclass(frozen=True)
class Objective:
    """The loss of single replies: sequence 0 of an item is the reply, sequence 1 another prompt's."""

    config: Config

    def prepare(self, model: Any, items: Sequence[Item]) -> Tensor:
        """() KL of the policy to the champion, over the items of the whole step and of all processes."""
        import torch

        from training.hardware import over_processes, world
        from training.logprobs import token_logprobs
        from training.losses import kto_kl
        from training.sequences import own_batches

        with_other = [item for item in items if len(item.sequences) > 1]
        lengths = [len(item.sequences[1]) for item in with_other]
        total, count = 0.0, 0.0
        for batch, counts in own_batches(lengths, 2 * self.config.micro_batch_rows, *world()):
            found = token_logprobs(model, [with_other[i].sequences[1] for i in batch])
            if counts:
                ratios = [
                    t.sum() - with_other[i].reference[1].sum() for i, t in zip(batch, found, strict=True)
                ]
                total, count = total + float(torch.stack(ratios).sum()), count + len(ratios)
        total, count = over_processes({"kl": (total, count)})["kl"]
        return kto_kl(torch.tensor([total / count])) if count else torch.zeros(())

    def terms(self, model: Any, items: Sequence[Item], step: Tensor) -> Terms:
        """Loss of each reply."""
        import torch

        from training import losses
        from training.logprobs import token_logprobs
        from training.policy_trainer import Terms, mean_of

        beta = self.config.beta
        logps = token_logprobs(model, [item.sequences[0] for item in items])
        policy = torch.stack([t.sum() for t in logps])
        ratio = policy - torch.stack([item.reference[0].sum() for item in items]).to(policy)
        liked = torch.tensor([item.values["liked"] > 0 for item in items], device=policy.device)
        weight = torch.tensor([item.values["weight"] for item in items], device=policy.device)
        per_row = losses.kto(ratio, liked, step.to(policy), beta=beta)
        rewards = beta * ratio.detach()
        sums = {
            "reward_liked": mean_of(rewards[liked]),
            "reward_disliked": mean_of(rewards[~liked]),
            "kl_of_others": (float(step), 1.0),
        }
        return Terms(per_row * weight, [(logp,) for logp in logps], sums)
