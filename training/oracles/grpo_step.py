"""One whole optimizer step of palate's GRPO on replies that are known: advantages, denominator, micro-batches, patches.

What is sampled is given by a stand-in for the engine; everything behind it is what an update runs. The gradient is
compared with one that a plain loop over replies gives.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.oracles.finding import Comparison, oracle, same
from training.oracles.given import quiet

if TYPE_CHECKING:
    from torch import Tensor

    from training.grpo import Config
    from training.grpo_prompts import Prompt
    from training.rollout.engine import Group, Sampling

LIMIT, TEMPERATURE = 12, 1.3
_LENGTHS = ((3, 12), (12, 5), (1, 9), (7, 4))
"""Tokens of two replies to each of four prompts; those of 12 were cut off."""
_CASES = (("dr_grpo", "mask", (8, 2, 1)), ("dapo", "mask", (4,)), ("grpo", "keep", (2,)))
"""Loss, what becomes of replies that were cut off, and replies in a micro-batch."""


@oracle(
    "grpo",
    protects="an update whose gradient is not the one of its replies: advantage, truncation, accumulation, patches",
    reference="trl#3021, trl#6369; arXiv 2503.20783, 2503.14476",
)
def grpo_step(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """The gradient of eight replies in four groups, whole and cut; the subject is called as `make_trainer`."""
    from training.oracles.plain import gradient, one_step

    with quiet() as folder:
        for kind, truncated, sizes in _CASES:
            for size in sizes:
                trainer, groups = grpo_case(folder, subject, loss=kind, truncated=truncated, micro_batch=size)
                right = gradient(trainer.model, functools.partial(_plain, groups, kind, truncated))
                trainer.model.zero_grad()
                with _as_in_an_update(trainer):
                    yield same(f"{kind}, {size} a micro-batch", one_step(trainer), right)


def _as_in_an_update(trainer: Any) -> Any:
    from training.grpo import _faster

    return _faster(trainer)


def grpo_case(
    folder: Path, make: Callable[..., Any] | None = None, **changes: Any
) -> tuple[Any, list[tuple[Prompt, Group]]]:
    """A trainer of one step, and the groups that it will be given.

    Args:
        folder: where it may write.
        make: called as `training.grpo_trainer.make_trainer`.
        changes: of the settings.
    """
    from training import tiny
    from training.grpo import Config
    from training.grpo_rollout import Rollouts
    from training.grpo_trainer import make_trainer
    from training.reward_sources import Source
    from training.rollout.engine import Sampling
    from training.update import Run

    config = Config.model_validate(
        {
            "steps": 1, "prompts_per_step": 4, "group_size": 2, "max_new_tokens": LIMIT, "precision": "fp32",
            "temperature": TEMPERATURE, "refill_rounds": 0, "hacking": {"action": "off"}, "warmup_share": 0.0,
            "learning_rate": 1e-4, "max_grad_norm": 1e9, **changes,
        }
    )  # fmt: skip
    prompts, replies = _prompts(), _Canned()
    tokens = tiny.tokenizer()
    run = Run(folder, 0)
    paid = Source("length", 1.0, lambda r: -0.1 * r.tokens)
    sampling = Sampling(LIMIT, (tokens.eos_token_id,), TEMPERATURE)
    rollouts = Rollouts(config, run, prompts, replies, [paid], tokens, sampling)
    trainer = (make or make_trainer)(
        config, run, _policy(), tokens, _rows(config, prompts), ["length"], [1.0],
        rollouts=rollouts, figures=rollouts.taken,
    )  # fmt: skip
    return trainer, [(p, g) for p, g in zip(prompts, replies.groups(prompts), strict=True)]


def _policy() -> Any:
    from training import tiny

    return tiny.policy()


def _prompts() -> list[Prompt]:
    from training import tiny
    from training.grpo_prompts import Prompt
    from training.oracles.texts import pairs

    tokens = tiny.tokenizer()
    chats = [[{"role": "user", "content": row["prompt"]}] for row in pairs()[:4]]
    return [
        Prompt(
            str(k),
            chat,
            tuple(tokens.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)),
            None,
            None,
        )
        for k, chat in enumerate(chats)
    ]


def _rows(config: Config, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    from training.grpo_prompts import scheduled

    places = scheduled(len(prompts), 0, config.prompts_per_step, 0)
    return [{"prompt": prompts[i].messages, "place": i} for i in places]


class _Canned:
    """An engine that gives the same replies to a prompt whatever the policy."""

    version = -1

    def load(self, policy: Any) -> None:
        """Nothing is loaded."""

    def update(self, adapter: Any, version: int) -> None:  # noqa: ARG002
        """Only the version is noted."""
        self.version = version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,  # noqa: ARG002 - always two
        sampling: Sampling,  # noqa: ARG002
        seed: int,  # noqa: ARG002
    ) -> Iterator[Group]:
        """See `Engine.generate`."""
        from training.rollout.engine import Group, Member

        known = [p.ids for p in _prompts()]
        for place, prompt in enumerate(prompts):
            which = known.index(tuple(prompt))
            members = []
            for member, length in enumerate(_LENGTHS[which]):
                finished = length < LIMIT
                ids = [300 + (17 * which + 5 * member + 11 * t) % 180 for t in range(length)]
                members.append(Member((*ids[:-1], 2) if finished else tuple(ids), (-1.0,) * length, finished))
            yield Group(place, tuple(members), self.version)

    def groups(self, prompts: Sequence[Prompt]) -> list[Group]:
        """What `generate` gives."""
        from training.rollout.engine import Sampling

        return list(self.generate([p.ids for p in prompts], 2, Sampling(LIMIT, (2,)), 0))


def _plain(groups: Sequence[tuple[Prompt, Group]], kind: str, truncated: str, model: Any) -> Tensor:
    """The loss whose gradient a first step has: -A log p over the denominator; the ratio is 1 and the KL 0."""
    import torch

    from training.oracles.plain import logprobs
    from training.sequences import Tokens

    rows = []
    for prompt, group in groups:
        paid = [-0.1 * len(m.ids) for m in group.members]
        scale = 1.0 if kind == "dr_grpo" else statistics.stdev(paid) + 1e-4
        for member, reward in zip(group.members, paid, strict=True):
            if member.finished or truncated == "keep":
                logps = logprobs(model, Tokens(prompt.ids, member.ids), TEMPERATURE)
                rows.append((logps, (reward - statistics.mean(paid)) / scale))
    tokens = sum(len(logps) for logps, _ in rows)
    divisors = [
        {"dr_grpo": len(rows) * LIMIT, "grpo": len(rows) * len(logps)}.get(kind, tokens) for logps, _ in rows
    ]
    return torch.stack([-(a * logps).sum() / d for (logps, a), d in zip(rows, divisors, strict=True)]).sum()
