"""GRPO with turns: an environment or tools answer the policy, and it goes on. TRL samples these rollouts itself.

    class Shop:
        def reset(self, **row) -> str | None: ...     # text that is added to the prompt, if any
        def price(self, name: str) -> str: ...        # any public method is a tool; types and docstring tell how
        def get_reward(self) -> float: ...            # optional: paid beside the configured rewards

What the environment wrote is not trained on. Sources of rewards see the policy's last message. Groups whose replies are
all paid the same are counted but not refilled here, and the base model's chat template must know tool calls.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from training.errors import TrainingError
from training.grpo_groups import Paid, paid, replies_of, summary
from training.grpo_prompts import Prompt
from training.grpo_rollout import watch
from training.reward_sources import Source, scored
from training.rollout.engine import Group, Member

if TYPE_CHECKING:
    from training.grpo import Config
    from training.update import Run


class Turns:
    """Pays what TRL sampled, a whole generation at once, and notes what it was like."""

    def __init__(
        self, config: Config, run: Run, prompts: Sequence[Prompt], sources: Sequence[Source], tokenizer: Any
    ) -> None:
        """Nothing is imported yet."""
        self.config, self.run, self.prompts = config, run, prompts
        self.sources, self.tokenizer = sources, tokenizer
        self.trainer: Any = None
        self.figures: dict[str, Any] = {}
        self._paid_for: Any = None
        self._groups: list[Paid] = []

    def for_trl(self) -> dict[str, Any]:
        """The trainer's arguments: environment, tools and reward functions.

        Raises:
            TrainingError: one cannot be imported.
        """
        given: dict[str, Any] = {"reward_funcs": [self._function(source.name) for source in self.sources]}
        if self.config.environment:
            given["environment_factory"] = imported(self.config.environment, "environment")
        if self.config.tools:
            given["tools"] = [imported(name, "tools") for name in self.config.tools]
        return given

    def taken(self) -> dict[str, Any]:
        """The figures of the generation at hand, once."""
        figures, self.figures = self.figures, {}
        return figures

    def _function(self, name: str) -> Callable[..., list[float | None]]:
        def reward(
            completions: Sequence[Any], completion_ids: Sequence[Any], place: Sequence[int], **_: Any
        ) -> list[float | None]:
            groups = self._pay(completions, completion_ids, place)
            return [None if g.fault else float(v) for g in groups for v in g.values[name]]

        reward.__name__ = name
        return reward

    def _pay(
        self, completions: Sequence[Any], completion_ids: Sequence[Any], place: Sequence[int]
    ) -> list[Paid]:
        """All sources at once: TRL asks for one after the other, with the same completions."""
        if self._paid_for is completions:
            return self._groups
        size = self.config.group_size
        ends = set(self.trainer.eos_token_ids)
        members = [Member(tuple(ids), (), ids[-1] in ends) for ids in completion_ids]
        starts = range(0, len(members), size)
        prompts = [self.prompts[place[start]] for start in starts]
        version = self.trainer.state.global_step
        groups = [Group(n, tuple(members[s : s + size]), version) for n, s in enumerate(starts)]
        said = [_last_words(turns) for turns in completions]
        texts = [said[start : start + size] for start in starts]
        what = scored(self.sources, replies_of(prompts, groups, texts), size)
        self._groups, self._paid_for = paid(prompts, groups, texts, what), completions
        self.figures = summary(self._groups)
        self._own_reward_apart()
        watch(self._groups, version + 1, self.trainer, self)
        return self._groups

    def _own_reward_apart(self) -> None:
        """What the environment pays is known to TRL alone: the sum is then TRL's, and ours would mislead."""
        if any(hasattr(one, "get_reward") for one in self.trainer.environments or ()):
            for name in ("reward", "reward_std", "zero_variance_share"):
                self.figures.pop(name, None)


def refused(error: ValueError) -> TrainingError:
    """TRL's refusal of an environment or tools, which it finds when the trainer is made."""
    return TrainingError(
        "TRL cannot run this environment or these tools with this base model.",
        got=str(error).splitlines()[0],
        allowed="methods with types and docstrings, `reset` in an environment, a chat template that renders tool calls "
        "of a family that TRL knows, such as Qwen3's",
        next_step="use a base model that was trained to call tools, or leave [train.grpo] environment and tools unset",
    )


def imported(name: str, setting: str) -> Any:
    """The object of `module:object`.

    Raises:
        TrainingError: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TrainingError(
            "It cannot be imported.",
            got=f"{name}: {error}",
            allowed="module:object",
            next_step=f"correct [train.grpo] {setting}",
        ) from error


def _last_words(turns: Any) -> str:
    """Text of the policy's last message."""
    spoken = [m.get("content") for m in turns if m.get("role") == "assistant"]
    return str(spoken[-1] or "").strip() if spoken else ""
