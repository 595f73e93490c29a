"""One reward head per objective: which head a row trains, and the loss of its pair.

Loss of a pair whose objective has head k, with margin m, weight w and centring c:

    w * (-log sigmoid(r_k(chosen) - r_k(rejected) - m) + c * (r_k(chosen) + r_k(rejected))^2)

Sources: Ouyang et al. 2022 (arXiv 2203.02155), eq. 1; margin: Touvron et al. 2023 (Llama 2, arXiv 2307.09288), eq. 2;
centring: Eisenstein et al. 2023 (arXiv 2312.09244), eq. 2. A reward for each of several objectives, read from one
network: Wang et al. 2024 (ArmoRM, arXiv 2406.12845), who regress ratings where this compares pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reward_models.scorer import NotEnoughVotes

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from reward_models.preference_lm import Config


def heads_of_rows(
    rules: Sequence[str | None],
    agents: Sequence[str | None],
    objectives: Sequence[str],
    objective_of: Mapping[str, str],
) -> np.ndarray:
    """(N,) head that each row trains: by its rule, else by its agent, else the first one.

    Args:
        rules, agents: of N rows.
        objectives: names of the heads, in their order.
        objective_of: name of a rule or an agent to the name of an objective.
    """
    head = {name: number for number, name in enumerate(objectives)}
    first = objectives[0]
    return np.array(
        [
            head[objective_of.get(rule or "") or objective_of.get(agent or "") or first]
            for rule, agent in zip(rules, agents, strict=True)
        ],
        dtype=int,
    )


def to_trl(config: Config, decided: pa.Table, tokenizer: Any) -> list[dict[str, Any]]:
    """The pairs that fit `max_tokens` as TRL's examples, with what `pair_loss` needs.

    Raises:
        NotEnoughVotes: fewer than `min_rows` of an objective.
    """
    names = list(config.objectives)
    rows = decided.select(["prompt", "chosen", "rejected", "margin", "weight"]).to_pylist()
    heads = heads_of_rows(
        decided["rule"].to_pylist(), decided["agent"].to_pylist(), names, config.objective_of
    )
    examples = [
        {
            "prompt": row["prompt"],
            "chosen": [{"role": "assistant", "content": row["chosen"]}],
            "rejected": [{"role": "assistant", "content": row["rejected"]}],
            "margin": config.margin_scale * row["margin"],
            "weight": row["weight"],
            "head": int(head),
        }
        for row, head in zip(rows, heads, strict=True)
    ]
    template = tokenizer.apply_chat_template
    fitting = [
        e
        for e in examples
        if all(
            len(template(e["prompt"] + e[s], tokenize=True, return_dict=False)) <= config.max_tokens
            for s in ("chosen", "rejected")
        )
    ]
    for number, name in enumerate(names):
        fit, of = (sum(e["head"] == number for e in some) for some in (fitting, examples))
        if fit < config.min_rows:
            raise NotEnoughVotes(
                f"Too few decided pairs to fit a reward for {name!r}.",
                got=f"{fit} of {of} fit {config.max_tokens} tokens",
                allowed=f"at least {config.min_rows} ([reward.preference_lm] min_rows)",
                next_step='collect more votes, or set [reward] method = "bradley_terry"',
            )
    average = float(np.mean([e["weight"] for e in fitting]))
    return [e | {"weight": e["weight"] / average} for e in fitting]


def pair_loss(
    logits: torch.Tensor, head: torch.Tensor, margin: torch.Tensor, weight: torch.Tensor, center: float
) -> torch.Tensor:
    """Mean loss of B pairs; the gradient of a pair reaches its own head only.

    Args:
        logits: (2B, K) rewards of the B chosen replies, then of the B rejected ones.
        head: (B,) which of the K heads a pair trains.
        margin: (B,) by how much the chosen reply should win, in log-odds.
        weight: (B,) of the pairs, 1 on average over all pairs, not in each batch: divided by a batch's own sum, a
            batch of light pairs would count as much as one of heavy pairs.
        center: weight of the centring term.
    """
    from torch.nn.functional import logsigmoid

    own = logits.gather(1, head.repeat(2)[:, None])[:, 0]
    chosen, rejected = own.chunk(2)
    losses = -logsigmoid(chosen - rejected - margin) + center * (chosen + rejected) ** 2
    return (weight * losses).mean()


def heads_collator(pad_token_id: int) -> Any:
    """TRL's collator of pairs, which keeps `margin`, and beside it each pair's `head` and `weight`."""
    import torch
    from trl.trainer.reward_trainer import DataCollatorForPreference

    collate = DataCollatorForPreference(pad_token_id=pad_token_id)

    def with_heads(examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = collate(examples)
        batch["head"] = torch.tensor([e["head"] for e in examples], dtype=torch.long)
        batch["weight"] = torch.tensor([e["weight"] for e in examples], dtype=torch.float)
        return batch

    return with_heads


def heads_trainer(center: float) -> type[Any]:
    """TRL's RewardTrainer with `pair_loss`.

    The class is made here because TRL is imported late. Its arguments need `remove_unused_columns=False`: TRL would
    keep the column `margin`, but drop `head` and `weight`.
    """
    from trl import RewardTrainer

    class HeadsTrainer(RewardTrainer):  # type: ignore[misc,unused-ignore]
        def compute_loss(
            self,
            model: Any,
            inputs: dict[str, Any],
            return_outputs: bool = False,
            num_items_in_batch: Any = None,  # noqa: ARG002 - the weights are already 1 on average
        ) -> Any:
            about = {name: inputs.pop(name) for name in ("head", "margin", "weight")}
            outputs = model(**inputs, use_cache=False)
            loss = pair_loss(outputs.logits.float(), **about, center=center)
            return (loss, outputs) if return_outputs else loss

    return HeadsTrainer
