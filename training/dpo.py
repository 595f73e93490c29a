"""Direct preference optimisation of the champion's adapter.

Loss, per pair (x, y_w, y_l), with policy p, reference r (the champion), sigmoid s:

    L = -log s(beta * [log p(y_w|x)/r(y_w|x) - log p(y_l|x)/r(y_l|x)]) + sft_weight * (-log p(y_w|x) / |y_w|)

First term: Rafailov et al. 2023 (arXiv 2305.18290), eq. 7; `loss` names others. Second: the regularised form of
Pang et al. 2024 (arXiv 2404.19733) and Liu et al. 2024 (arXiv 2405.16436), which keeps the chosen text likely instead
of only making the rejected one unlikely. A row's weight multiplies its loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from training.encoding import AsServed, Encoder
from training.errors import NotEnoughPreferences
from training.fit import fit
from training.pairs import Chosen, choose_pairs, mean_one
from training.result import RESULT, TrainResult, read_result
from training.settings import UpdateSettings
from training.update import Champion, Data, Need, Run

if TYPE_CHECKING:
    from reward_models.scorer import Scorer
    from training.policy_trainer import Item, Terms
    from training.sequences import Tokens

NEEDS: frozenset[Need] = frozenset({"preferences", "served"})


class Config(UpdateSettings):
    """Settings of a DPO update."""

    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the champion (the paper's beta)."""
    loss: Literal["sigmoid", "ipo", "robust"] = "sigmoid"
    """`sigmoid` is DPO; `ipo` does not push pairs apart without end; `robust` allows for wrong labels."""
    label_noise: float = Field(default=0.1, ge=0, lt=0.5)
    """Share of pairs whose label is wrong, for `robust`."""
    margins: Literal["weight", "offset", "ignore"] = "weight"
    """What a row's margin does: multiply its weight, or ask for a lead of `margin_offset` times the margin."""
    margin_offset: float = Field(default=0.5, ge=0)
    """Lead asked for at margin 1, in units of reward, for margins = "offset"."""
    sft_weight: float = Field(default=0.0, ge=0)
    """Weight of the likelihood term on the chosen reply; 0 is plain DPO."""
    batch_pairs: int = Field(default=8, ge=1)
    """Pairs per optimizer step."""
    micro_batch_pairs: int = Field(default=8, ge=1)
    """Pairs per forward and backward pass; must divide `batch_pairs`."""
    max_pairs: int = Field(default=4096, ge=1)
    """At most this many pairs, heavier rows first in expectation."""
    min_pairs: int = Field(default=16, ge=1)
    """With fewer pairs the update refuses to run (exit code 4)."""

    @model_validator(mode="after")
    def _batches_divide(self) -> Config:
        if self.batch_pairs % self.micro_batch_pairs:
            raise ValueError(
                f"micro_batch_pairs ({self.micro_batch_pairs}) must divide batch_pairs ({self.batch_pairs})"
            )
        return self


def train(
    config: Config,
    champion: Champion,
    data: Data,
    scorer: Scorer | None,
    run: Run,
) -> TrainResult:
    """Continue the champion's adapter on the pairs of the train split.

    Safe to kill at any moment: a finished update is returned as it is, an unfinished one resumes from its
    last complete checkpoint and, on the same machine, gives the adapter that an undisturbed run gives.

    Raises:
        NotEnoughPreferences: fewer than `min_pairs` usable pairs.
        TrainingError: the loss or a weight is not finite, or the disk is full.
    """
    if (run.output / RESULT).is_file():
        return read_result(run.output / RESULT)
    items, left_out, metrics = pair_items(config, champion, data, run.seed)
    return fit(
        config,
        champion,
        run,
        items,
        Objective(config),
        per_step=config.batch_pairs,
        micro_batch=config.micro_batch_pairs,
        metrics=metrics,
        left_out=left_out,
        data=data,
        scorer=scorer,
    )


def pair_items(
    config: Config, champion: Champion, data: Data, seed: int
) -> tuple[list[Item], dict[str, int], dict[str, float]]:
    """The pairs to train on, what was left out by reason, and what to say of them.

    Raises:
        NotEnoughPreferences: fewer than `min_pairs`.
    """
    from training.policy_trainer import Item

    encoder = Encoder(champion.base, config)
    rows = AsServed(data.preferences, data.served)

    def tokens(row_id: str) -> tuple[Tokens, Tokens] | None:
        return encoder.pair(rows.place[row_id], rows.context(row_id))

    chosen = choose_pairs(
        data.preferences, most=config.max_pairs, seed=seed, fits=lambda row_id: tokens(row_id) is not None
    )
    _enough(config, chosen)
    items = []
    kept = chosen.rows.select(["preference_id", "margin", "event_time"]).to_pylist()
    for row, weight in zip(kept, _weights(config, chosen), strict=True):
        pair = tokens(row["preference_id"])
        assert pair is not None
        values = {"weight": weight, "margin": row["margin"], "time": row["event_time"].timestamp()}
        items.append(Item(pair, values))
    return items, chosen.left_out, {"pairs": float(len(items)), **rows.metrics, **encoder.metrics}


def _enough(config: Config, chosen: Chosen) -> None:
    if chosen.rows.num_rows >= config.min_pairs:
        return
    unused = ", ".join(f"{reason}: {n}" for reason, n in chosen.left_out.items())
    raise NotEnoughPreferences(
        "Too few preference pairs to learn from.",
        got=f"{chosen.rows.num_rows} usable pairs ({unused or 'no others'})",
        allowed=f"at least {config.min_pairs} ([train.dpo] min_pairs)",
        next_step="collect more feedback, then run again; `palate show dataset` lists what there is",
    )


def _weights(config: Config, chosen: Chosen) -> list[float]:
    """What each pair's loss is multiplied by: 1 on average."""
    if config.margins != "weight":
        return mean_one(chosen.weights)
    margins = chosen.rows["margin"].to_pylist()
    return mean_one([w * m for w, m in zip(chosen.weights, margins, strict=True)])


@dataclass(frozen=True)
class Objective:
    """The loss of pairs: of each item, sequence 0 is the chosen reply and sequence 1 the rejected one."""

    config: Config

    def prepare(self, model: Any, items: Sequence[Item]) -> None:
        """Nothing of the whole step is needed."""

    def terms(self, model: Any, items: Sequence[Item], step: Any) -> Terms:  # noqa: ARG002
        """Loss of each pair."""
        import torch

        from training import losses
        from training.logprobs import token_logprobs
        from training.policy_trainer import Terms, mean_of

        config = self.config
        logps = token_logprobs(model, [s for item in items for s in item.sequences])
        policy = torch.stack([t.sum() for t in logps])
        reference = torch.stack([t.sum() for item in items for t in item.reference]).to(policy)
        tokens = torch.tensor([len(t) for t in logps], device=policy.device)
        ratio = policy - reference
        margin = torch.tensor([item.values["margin"] for item in items], device=policy.device)
        weight = torch.tensor([item.values["weight"] for item in items], device=policy.device)
        per_pair = losses.dpo(
            ratio[0::2],
            ratio[1::2],
            beta=config.beta,
            kind=config.loss,
            label_noise=config.label_noise,
            offset=config.margin_offset * margin if config.margins == "offset" else 0.0,
            chosen_tokens=tokens[0::2],
            rejected_tokens=tokens[1::2],
        )
        if config.sft_weight:
            per_pair = per_pair - config.sft_weight * policy[0::2] / tokens[0::2]
        rewards = config.beta * ratio.detach()
        lead = rewards[0::2] - rewards[1::2]
        sums = {
            "margin": mean_of(lead),
            "accuracy": mean_of((lead > 0).float() + 0.5 * (lead == 0)),
            "reward_chosen": mean_of(rewards[0::2]),
            "reward_rejected": mean_of(rewards[1::2]),
        }
        return Terms(per_pair * weight, list(zip(logps[0::2], logps[1::2], strict=True)), sums)
