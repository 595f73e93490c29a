"""One generation of GRPO: sample groups, pay them, replace what teaches nothing, watch what is being learned."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from training.errors import TrainingError
from training.grpo_groups import Paid, paid, replies_of, sample_rows, summary
from training.grpo_prompts import Prompt, draw_seed, refills, scheduled
from training.hacking import HELDOUT, REWARD, Seen, decide, error_of, seen_of, text_features
from training.result import EVIDENCE
from training.reward_sources import RewardError, Source, scored
from training.rollout.engine import Engine, Sampling

if TYPE_CHECKING:
    from training.grpo import Config
    from training.update import Run

log = logging.getLogger(__name__)
PAID, WATCHED = "palate_paid", "watched"


class NothingToLearn(TrainingError):
    """Every group's replies are paid the same: there is no gradient."""


class Rollouts:
    """TRL's `rollout_func`. What it samples depends on the step, the seed and the policy, and on no state of its own.

    A generation is counted from the trainer's step, so that a resumed run goes on with the same prompts and draws.
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        prompts: Sequence[Prompt],
        engine: Engine,
        sources: Sequence[Source],
        tokenizer: Any,
        sampling: Sampling,
    ) -> None:
        """See the module; nothing is loaded before the first generation."""
        self.config, self.run, self.prompts = config, run, prompts
        self.engine, self.sources = engine, sources
        self.tokenizer, self.sampling = tokenizer, sampling
        self.figures: dict[str, Any] = {}
        """Of the generation at hand, for the log of its first step."""
        self.kept_share = 1.0
        """Share of the generation's completions that the loss reads, over all processes."""
        self._idle_generations = 0

    def __call__(self, _prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Completions of this process's share of one generation, in the form TRL asks for.

        Raises:
            RewardHacked: the reward is being gamed.
            RewardError: every group failed.
            NothingToLearn: for `dead_steps` generations no group taught anything.
        """
        began = time.perf_counter()
        step = trainer.state.global_step
        generation = step // self.config.iterations
        _refresh(self.engine, trainer, step)
        places = scheduled(len(self.prompts), generation, self.config.prompts_per_step, self.run.seed)
        world, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        share = len(places) // world
        first = self._sampled(places[rank * share : (rank + 1) * share], generation, rank)
        groups, further = self._refilled(first, places, generation, world, rank)
        self._refuse_all_failed([*first, *further])
        self._note(first, further, groups, time.perf_counter() - began)
        watch(first, step + 1, trainer, self)
        self._refuse_idle(groups)
        self.kept_share = _kept_share(groups, self.config.truncated == "mask", trainer.accelerator)
        return _for_trl(groups)

    def taken(self) -> dict[str, Any]:
        """The figures of the generation at hand, once."""
        figures, self.figures = self.figures, {}
        return figures

    def _sampled(self, places: Sequence[int], generation: int, turn: int) -> list[Paid]:
        """Groups of these prompts, in their order, sampled and paid."""
        if not places:
            return []
        chosen = [self.prompts[i] for i in places]
        seed = draw_seed(self.run.seed, generation, turn)
        found = self.engine.generate([p.ids for p in chosen], self.config.group_size, self.sampling, seed)
        groups = sorted(found, key=lambda g: g.prompt)
        texts = [
            [
                t.strip()
                for t in self.tokenizer.batch_decode([m.ids for m in g.members], skip_special_tokens=True)
            ]
            for g in groups
        ]
        replies = replies_of(chosen, groups, texts)
        return paid(chosen, groups, texts, scored(self.sources, replies, self.config.group_size))

    def _refilled(
        self, first: Sequence[Paid], places: Sequence[int], generation: int, world: int, rank: int
    ) -> tuple[list[Paid], list[Paid]]:
        """The groups to train on, and all that were sampled beyond the first ones.

        Groups that teach nothing give way to groups of further prompts, for a bounded number of turns: dynamic
        sampling of DAPO (Yu et al. 2025, arXiv 2503.14476, section 3.2), which goes on until the batch is full.
        """
        groups, further, taken = list(first), [], list(places)
        for turn in range(1, self.config.refill_rounds + 1):
            # Groups that failed go first: one that is merely flat costs nothing and may stay.
            idle = sorted(
                (i for i, g in enumerate(groups) if not g.teaches), key=lambda i: groups[i].fault is None
            )
            more = refills(
                len(self.prompts), generation, turn * world + rank, len(idle), taken, self.run.seed
            )
            taken += more
            tried = self._sampled(more, generation, turn * world + rank)
            further += tried
            for place, group in zip(idle, [g for g in tried if g.teaches], strict=False):
                groups[place] = group
        return groups, further

    def _refuse_all_failed(self, sampled: Sequence[Paid]) -> None:
        faults = [g.fault for g in sampled if g.fault is not None]
        if len(faults) < len(sampled):
            return
        names = sorted({name for name, _ in faults})
        raise RewardError(
            "No reply could be paid: a reward failed in every group.",
            got=f"{', '.join(names)}: {faults[0][1]}",
            allowed="a finite number for every reply",
            next_step="mend that reward, or leave it out of [train.grpo.rewards]",
        )

    def _refuse_idle(self, groups: Sequence[Paid]) -> None:
        self._idle_generations = 0 if any(g.teaches for g in groups) else self._idle_generations + 1
        if self._idle_generations >= self.config.dead_steps:
            raise nothing_to_learn(self._idle_generations, self.config)

    def _note(
        self, first: Sequence[Paid], further: Sequence[Paid], groups: Sequence[Paid], seconds: float
    ) -> None:
        sampled = [*first, *further]
        tokens = sum(len(m.ids) for g in sampled for m in g.group.members)
        self.figures = {
            **summary(first),
            "groups_sampled": float(len(sampled)),
            "groups_refilled": float(sum(a is not b for a, b in zip(first, groups, strict=True))),
            "groups_teaching": float(sum(g.teaches for g in groups)),
            "groups_failed": float(sum(g.fault is not None for g in sampled)),
            "rollout_s": seconds,
            "rollout_tokens_per_s": tokens / max(seconds, 1e-9),
        }
        for name in sorted({g.fault[0] for g in sampled if g.fault}):
            failed = [g for g in sampled if g.fault and g.fault[0] == name]
            self.figures[f"failed/{name}"] = float(len(failed))


def watch(groups: Sequence[Paid], step: int, trainer: Any, rollouts: Any) -> None:
    """Hand the samples over, note what they are like, and stop the run where the reward is being gamed.

    Args:
        groups: as the policy sampled them.
        step: the optimizer step they are for.
        trainer: its log holds what earlier steps noted, so that a resumed run remembers.
        rollouts: has `run`, `config` and `figures`.

    Raises:
        RewardHacked: see `training.hacking`.
    """
    run, config = rollouts.run, rollouts.config
    if run.on_samples:
        run.on_samples(step, sample_rows(groups, step))
    replies = replies_of([g.prompt for g in groups], [g.group for g in groups], [g.texts for g in groups])
    quantities = {REWARD: np.concatenate([g.total for g in groups]), **text_features(replies.texts)}
    if run.heldout is not None:
        quantities[HELDOUT] = np.asarray(
            run.heldout.score(replies.prompts, replies.texts, replies.user_ids, replies.agents).mean
        )
        rollouts.figures[HELDOUT] = float(np.nanmean(quantities[HELDOUT]))
    seen = seen_of(step, quantities, len(groups[0].texts))
    for name in text_features([]):
        rollouts.figures[f"text/{name}"] = float(np.mean(quantities[name]))
    rollouts.figures[WATCHED] = {"step": step, "means": seen.means, "spread": seen.spread}
    history = [Seen(**entry[WATCHED]) for entry in trainer.state.log_history if WATCHED in entry]
    alarm = decide([*history, seen], config.hacking, -(-config.steps // config.iterations))
    if alarm is not None:
        raise error_of(alarm, run.output / EVIDENCE)


def nothing_to_learn(generations: int, config: Config) -> NothingToLearn:
    """Every group's replies were paid the same."""
    return NothingToLearn(
        "There is nothing to learn from: within every group all replies are paid the same.",
        got=f"no group with different rewards in {generations} generations, "
        f"{config.refill_rounds} refills each",
        allowed="replies to one prompt that a reward tells apart",
        next_step="raise [train.grpo] temperature or group_size, let replies end (max_new_tokens), or add a reward "
        "that is not constant, such as length or finished",
    )


def _refresh(engine: Engine, trainer: Any, version: int) -> None:
    """Let the engine sample from the policy as it is now."""
    from peft import get_peft_model_state_dict

    policy = trainer.accelerator.unwrap_model(trainer.model)
    if engine.version < 0:
        engine.load(policy)
    # Embeddings are never adapted here; deciding it "auto"matically would look the base up on the hub.
    state = get_peft_model_state_dict(policy, adapter_name="default", save_embedding_layers=False)
    engine.update(state, version)


def _kept_share(groups: Sequence[Paid], mask_truncated: bool, accelerator: Any) -> float:
    """Share of the completions that the loss reads; 1 where it reads none, as there is nothing to scale then."""
    import torch

    members = [(g, m) for g in groups for m in g.group.members]
    kept = sum(g.fault is None and (m.finished or not mask_truncated) for g, m in members)
    counts = torch.tensor([kept, len(members)], dtype=torch.float64, device=accelerator.device)
    if accelerator.num_processes > 1:
        counts = accelerator.reduce(counts, reduction="sum")
    return float(counts[0] / counts[1]) or 1.0


def _for_trl(groups: Sequence[Paid]) -> dict[str, Any]:
    """The groups' members side by side, under the names that TRL reads."""
    members = [(g, i, m) for g in groups for i, m in enumerate(g.group.members)]
    out: dict[str, Any] = {
        "prompt_ids": [list(g.prompt.ids) for g, _, _ in members],
        "completion_ids": [list(m.ids) for _, _, m in members],
        "logprobs": [list(m.logprobs) for _, _, m in members],
        # One reward that failed leaves the whole group without any: None for all is what TRL gives no advantage.
        PAID: [None if g.fault else {n: float(v[i]) for n, v in g.values.items()} for g, i, _ in members],
    }
    if any(g.fault for g in groups):
        out["env_mask"] = [[int(g.fault is None)] * len(m.ids) for g, _, m in members]
    return out
