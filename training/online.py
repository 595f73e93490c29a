"""Learning from the replies that were served, one per request, and what their users did: no pair, no reward model.

A reply's reward is what its user did: accepted or liked, rejected or disliked, said nothing, less what its style costs.
The policy gradient needs no critic: the advantage is the reward less the mean reward of the other replies of the same
agent. Loss of a reply, a mean over its tokens, with p the policy, c the champion:

    -w min(rho A, clip(rho, 1 - low, 1 + high) A) + kl_weight (exp(-d) - 1 + d),   rho = p/c, d = log p/c

    w = min(exp(log c(y|x) - logged log-probability), max_weight)

rho corrects, token by token, for how far this update has moved from the champion (Schulman et al. 2017, arXiv
1707.06347, eq. 7); w, for the whole reply, for how far the champion is from the policy that served it (truncated
importance sampling, Ionides 2008). A reply without a logged log-probability counts with w = 1, and only where the
champion itself served it. Kish's effective sample size of the weights is reported, and too small a one is refused: what
would be learned is chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from pydantic import Field, field_validator

from training.encoding import Encoder
from training.errors import TrainingError
from training.fit import fit
from training.result import RESULT, TrainResult, read_result
from training.served_rows import Row, ServedRow, choose_served, require
from training.settings import UpdateSettings
from training.update import Champion, Data, Need, Run

if TYPE_CHECKING:
    from reward_models.scorer import Scorer
    from training.policy_trainer import Item, Terms

NEEDS: frozenset[Need] = frozenset({"served"})


class Config(UpdateSettings):
    """Settings of an update from live replies."""

    accepted: float = 0.75
    """Reward of a reply that its user accepted or liked."""
    rejected: float = -0.25
    """Reward of a reply that its user rejected or disliked."""
    silence: float | None = 0.0
    """Reward of a reply that nobody said anything about; none leaves such replies out."""
    style_costs: dict[str, float] = Field(default_factory=dict)
    """Taken off for style: name of a text feature (`reward_models.features`, such as log_words) to cost per unit."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """How far below 1 the ratio to the champion may fall and still move the policy."""
    clip_high: float = Field(default=0.2, gt=0)
    """How far above."""
    kl_weight: float = Field(default=0.05, ge=0)
    """Penalty on the distance to the champion, per nat and token."""
    max_weight: float = Field(default=2.0, ge=1)
    """Importance weights are cut here: less variance for some bias."""
    min_effective_share: float = Field(default=0.25, ge=0, le=1)
    """With a smaller effective sample size, as a share of the replies, the update is refused (exit code 4)."""
    batch_rows: int = Field(default=16, ge=1)
    """Replies per optimizer step."""
    micro_batch_rows: int = Field(default=8, ge=1)
    """Replies per forward and backward pass."""
    max_rows: int = Field(default=8192, ge=1)
    """At most this many replies."""
    min_rows: int = Field(default=32, ge=1)
    """With fewer replies the update refuses to run (exit code 4)."""

    @field_validator("style_costs")
    @classmethod
    def _known(cls, costs: dict[str, float]) -> dict[str, float]:
        from reward_models.features import NAMES

        if unknown := sorted(set(costs) - set(NAMES)):
            raise ValueError(f"no text feature is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
        return costs


def train(
    config: Config,
    champion: Champion,
    data: Data,
    scorer: Scorer | None,
    run: Run,
) -> TrainResult:
    """Continue the champion's adapter on what was served and what users did; as safe to kill as DPO.

    Raises:
        NotEnoughPreferences: fewer than `min_rows` usable replies.
        TrainingError: the loss or a weight is not finite, the effective sample size is too small, or the disk is full.
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
        check=lambda known: effective(config, known),
        data=data,
        scorer=scorer,
    )


def reply_items(
    config: Config, champion: Champion, data: Data, seed: int
) -> tuple[list[Item], dict[str, int], dict[str, float]]:
    """The replies to train on, what was left out by reason, and what to say of them.

    Raises:
        NotEnoughPreferences: fewer than `min_rows`.
    """
    from training.policy_trainer import Item

    encoder = Encoder(champion.base, config)
    chosen = choose_served(
        data.served,
        encoder,
        most=config.max_rows,
        seed=seed,
        unusable=lambda row: _unusable(config, champion, row),
    )
    require(chosen, config.min_rows, "online", "a verdict or a logged log-probability")
    rewards = rewards_of(config, chosen.rows)
    gains = advantages(rewards, [one.row["agent"] for one in chosen.rows])
    items = [
        Item(
            (one.tokens,),
            {
                "advantage": float(gain),
                "reward": float(reward),
                "time": one.row["event_time"].timestamp(),
                "logged": math.nan if one.row["logprob"] is None else float(one.row["logprob"]),
                # Of silent replies perhaps only a sample was read.
                "weight": 1 / float(one.row["kept_share"] or 1.0),
            },
        )
        for one, gain, reward in zip(chosen.rows, gains, rewards, strict=True)
    ]
    metrics = {"rows": float(len(items)), "reward": float(np.mean(rewards)), **encoder.metrics}
    return items, chosen.left_out, metrics


def _unusable(config: Config, champion: Champion, row: Row) -> str | None:
    if row["verdict"] is None and config.silence is None:
        return "silence"
    if row["logprob"] is None and row["adapter_digest"] != champion.digest:
        return "served_by_another_policy_without_logprob"
    return None


def rewards_of(config: Config, rows: Sequence[ServedRow]) -> np.ndarray:
    """(B,) rewards of B replies: what the user did, less what the style costs."""
    from reward_models.features import NAMES, text_features

    said = {1: config.accepted, -1: config.rejected, None: config.silence or 0.0}
    rewards = np.array([said[one.row["verdict"]] for one in rows], dtype=float)
    if config.style_costs:
        prompts = [_last_user(orjson.loads(one.row["prompt"])) for one in rows]
        replies = [orjson.loads(one.row["completion"])["content"] for one in rows]
        cost = np.array([config.style_costs.get(name, 0.0) for name in NAMES])
        rewards -= text_features(prompts, replies) @ cost
    return rewards


def _last_user(messages: Sequence[dict[str, Any]]) -> str:
    return next((str(m["content"]) for m in reversed(messages) if m["role"] == "user"), "")


def advantages(rewards: np.ndarray, groups: Sequence[str | None]) -> np.ndarray:
    """(B,) rewards less the mean of the others of the same group; of a group of one, less the mean of all others.

    Leaving a reply out of its own baseline keeps the gradient unbiased (Kool et al. 2019, "Buy 4 REINFORCE samples").
    """
    gains = np.zeros(len(rewards))
    if len(rewards) < 2:
        return gains
    all_others = (rewards.sum() - rewards) / (len(rewards) - 1)
    names, place = np.unique([g or "" for g in groups], return_inverse=True)
    counts = np.bincount(place, minlength=len(names))[place]
    totals = np.bincount(place, rewards, minlength=len(names))[place]
    own = np.where(counts > 1, (totals - rewards) / np.maximum(counts - 1, 1), all_others)
    return np.asarray(rewards - own)


def importance(items: Sequence[Item], cap: float) -> np.ndarray:
    """(B,) weights of B replies: champion's probability over the logged one, cut at `cap`; 1 where none was logged."""
    champion = np.array([float(item.reference[0].sum()) for item in items])
    logged = np.array([item.values["logged"] for item in items])
    ratio = np.exp(np.minimum(champion - logged, 50.0))
    return np.where(np.isnan(logged), 1.0, np.minimum(ratio, cap))


def effective(config: Config, items: Sequence[Item]) -> dict[str, float]:
    """Effective sample size of the weights, and its share of the replies.

    Raises:
        TrainingError: the share is below `min_effective_share`.
    """
    weights = importance(items, config.max_weight)
    size = float(weights.sum() ** 2 / max((weights**2).sum(), 1e-30))
    share = size / max(len(items), 1)
    if share < config.min_effective_share:
        raise TooFewEffective(
            "The replies were served by policies too far from the champion to learn from.",
            got=f"an effective sample size of {size:.1f} of {len(items)} replies",
            allowed=f"a share of at least {config.min_effective_share:g} ([train.online] min_effective_share)",
            next_step="wait for replies that the champion served, or train with [train] method = 'kto'",
        )
    return {"effective_sample_size": size, "effective_share": share}


class TooFewEffective(TrainingError):
    """The importance weights leave too little to learn from."""

    exit_code = 4


@dataclass(frozen=True)
class Objective:
    """The clipped policy gradient of single replies, and their distance to the champion."""

    config: Config

    def prepare(self, model: Any, items: Sequence[Item]) -> None:
        """Nothing of the whole step is needed."""

    def terms(self, model: Any, items: Sequence[Item], step: Any) -> Terms:  # noqa: ARG002
        """Loss of each reply: a mean over its tokens."""
        import torch

        from training import losses
        from training.logprobs import token_logprobs
        from training.policy_trainer import Terms, mean_of

        config = self.config
        logps = token_logprobs(model, [item.sequences[0] for item in items])
        weights = importance(items, config.max_weight) * np.array([item.values["weight"] for item in items])
        per_reply, outside = [], []
        for logp, item, weight in zip(logps, items, weights, strict=True):
            champion = item.reference[0].to(logp)
            gain = torch.full_like(logp, item.values["advantage"])
            surrogate = losses.policy_gradient(
                logp, champion, gain, clip_low=config.clip_low, clip_high=config.clip_high
            )
            per_reply.append(float(weight) * surrogate.mean())
            ratio = torch.exp(logp.detach() - champion)
            outside.append(((ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)).float().mean())
        sums = {
            "clip_share": mean_of(torch.stack(outside)),
            "reward": (sum(item.values["reward"] for item in items), float(len(items))),
        }
        return Terms(torch.stack(per_reply), [(logp,) for logp in logps], sums)
