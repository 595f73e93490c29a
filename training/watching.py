"""An update from logged replies, watched by what the policy says while it learns.

The losses of `dpo`, `kto`, `online`, `words` and `mix` read replies that others wrote: none of them shows what the
policy has begun to say. So every so many steps it answers a few of the log's prompts. The replies are handed over to be
read, and looked at as those of `grpo` are: a reward that rises while the held-out scorer falls, or a feature of the
text that leaves its limits, stops the run (`training.hacking`).

What is drawn depends on the seed and the step alone, and touches no other dice: a run that is watched learns the same.
Importing this module imports transformers: do it inside functions.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerCallback

from training.grpo_prompts import Prompt, Row, choose
from training.grpo_rendering import attempt_prompt
from training.hacking import HELDOUT, REWARD, Alarm, Seen, decide, error_of, seen_of, text_features
from training.hardware import world
from training.rendering import RenderSettings
from training.result import EVIDENCE
from training.rollout.engine import Engine, Member, Sampling, ends_of

if TYPE_CHECKING:
    from reward_models.scorer import Scorer
    from training.settings import UpdateSettings, WatchSettings
    from training.update import Champion, Data, Run

log = logging.getLogger(__name__)
WATCHED = "watched"


class Watching(TrainerCallback):
    """Samples, hands over, judges; the log of the run holds what was seen, so that a resumed run remembers."""

    def __init__(
        self,
        settings: WatchSettings,
        prompts: Sequence[Prompt],
        engine: Engine,
        tokenizer: Any,
        scorer: Scorer | None,
        run: Run,
    ) -> None:
        """See the module."""
        self.settings, self.prompts, self.engine = settings, prompts, engine
        self.tokenizer, self.scorer, self.run = tokenizer, scorer, run
        self.alarm: Alarm | None = None
        self._owners = [prompt for prompt in prompts for _ in range(settings.replies)]

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """The champion's own replies are what later ones are compared with."""
        if not any(WATCHED in entry for entry in state.log_history):
            state.log_history.append({"step": 0})
            self._look(given["model"], state, control)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """After every so many steps, and after the last one."""
        step = state.global_step
        due = step % self.settings.every_steps == 0 or step == state.max_steps
        logs = given.get("logs") or {}
        if "loss" in logs and due and math.isfinite(logs["loss"]):
            self._look(given["model"], state, control)

    def _look(self, model: Any, state: Any, control: Any) -> None:
        """Sample, note in the newest entry of the log, and stop the run if need be.

        Raises:
            RewardHacked: the reward is being gamed, and that is not only to be marked.
        """
        members, texts = self._replies(model, state.global_step)
        quantities = {**self._scores(texts), **text_features(texts)}
        seen = seen_of(state.global_step, quantities, self.settings.replies)
        history = [Seen(**entry[WATCHED]) for entry in state.log_history if WATCHED in entry]
        entry = state.log_history[-1]
        entry[WATCHED] = {"step": seen.step, "means": seen.means, "spread": seen.spread}
        drawn = np.concatenate([np.asarray(m.logprobs) for m in members])
        entry |= {
            "sampled/tokens": float(np.mean([len(m.ids) for m in members])),
            "sampled/finished": float(np.mean([m.finished for m in members])),
            # What was drawn is likely under the policy by so much: its mean is an estimate of the entropy per token.
            "sampled/entropy": float(-drawn.mean()),
            **{f"sampled/{name}": float(np.nanmean(values)) for name, values in quantities.items()},
        }
        self._hand_over(state.global_step, members, texts, quantities)
        looks = -(-state.max_steps // self.settings.every_steps) + 1
        self.alarm = decide([*history, seen], self.settings.hacking, looks)
        if self.alarm is not None:
            if self.settings.hacking.action == "raise":
                raise error_of(self.alarm, self.run.output / EVIDENCE)
            control.should_training_stop = True

    def _replies(self, model: Any, step: int) -> tuple[list[Member], list[str]]:
        from peft import get_peft_model_state_dict

        policy = model.module if hasattr(model, "module") else model
        if self.engine.version < 0:
            self.engine.load(policy)
        adapter = get_peft_model_state_dict(policy, adapter_name="default", save_embedding_layers=False)
        self.engine.update(adapter, step)
        sampling = Sampling(
            self.settings.max_new_tokens, ends_of(policy, self.tokenizer), self.settings.temperature
        )
        asked = [prompt.ids for prompt in self.prompts]
        # The same dice for every look: what differs is the policy.
        groups = self.engine.generate(asked, self.settings.replies, sampling, self.run.seed)
        members = [m for group in sorted(groups, key=lambda g: g.prompt) for m in group.members]
        return members, self.tokenizer.batch_decode([m.ids for m in members], skip_special_tokens=True)

    def _scores(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        owners = self._owners
        asked = ([p.messages for p in owners], texts, [p.user_id for p in owners], [p.agent for p in owners])
        scorers = {REWARD: self.scorer, HELDOUT: self.run.heldout}
        return {
            name: np.asarray(scorer.score(*asked).mean)
            for name, scorer in scorers.items()
            if scorer is not None
        }

    def _hand_over(
        self, step: int, members: Sequence[Member], texts: Sequence[str], quantities: dict[str, np.ndarray]
    ) -> None:
        if not self.run.on_samples:
            return
        reward = quantities.get(REWARD, np.full(len(texts), np.nan))
        self.run.on_samples(
            step,
            [
                {
                    "step": step,
                    "prompt_key": prompt.key,
                    "prompt": prompt.messages,
                    "user_id": prompt.user_id,
                    "agent": prompt.agent,
                    "completion": text,
                    "tokens": len(member.ids),
                    "finished": member.finished,
                    "reward": float(value) if np.isfinite(value) else None,
                }
                for prompt, text, member, value in zip(self._owners, texts, members, reward, strict=True)
            ],
        )


def watching(
    settings: UpdateSettings, champion: Champion, data: Data, scorer: Scorer | None, run: Run, steps: int
) -> Watching | None:
    """What samples while an update runs; None where it is not asked for, or cannot be done.

    Args:
        settings: of the update.
        champion: whose tokenizer and shape the policy has.
        data: whose prompts are answered.
        scorer: what the reward is, where there is one.
        run: whom the samples are handed to.
        steps: optimizer steps of the update.
    """
    own = settings.watch
    rank, _ = world()
    if not own.every_steps or steps < own.every_steps or rank or run.hardware.sharded:
        return None
    if json.loads((champion.adapter / "adapter_config.json").read_text()).get("modules_to_save"):
        log.warning("full weights are trained: nothing is sampled meanwhile")
        return None
    from transformers import AutoTokenizer

    from training.rollout.transformers_engine import TransformersEngine

    tokenizer: Any = AutoTokenizer.from_pretrained(champion.base)

    rendering = RenderSettings(
        max_tokens=settings.max_tokens,
        overlong=settings.overlong,
        use_logged_tokens=settings.use_logged_tokens,
        template_options=settings.template_options,
    )

    def rendered(row: Row) -> Any:
        return attempt_prompt(
            tokenizer, row["messages"], settings=rendering, tools=row["tools"], logged_ids=row["prompt_ids"]
        )

    prompts = choose(data.served, data.preferences, rendered, max_prompts=own.prompts, seed=run.seed).prompts
    if len(prompts) < 2:
        log.warning("too few prompts can be answered: nothing is sampled while the update runs")
        return None
    dtype = torch.bfloat16 if run.hardware.in_bf16() else torch.float32
    engine = TransformersEngine(champion.base, dtype=dtype)
    return Watching(own, prompts, engine, tokenizer, scorer, run)
