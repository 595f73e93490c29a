"""What every rollout engine promises: completions of the policy as it is now, one finished group after the other.

A group is handed over as soon as its last member has ended, while others are still being sampled: whoever trains may
start on it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from training.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor


class RolloutError(TrainingError):
    """Completions cannot be sampled as asked."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: from softmax(logits / temperature), over the whole vocabulary."""

    max_new_tokens: int
    """A completion ends here at the latest."""
    ends: tuple[int, ...]
    """Token ids that end a completion; the one that did is part of it."""
    temperature: float = 1.0
    """What logits are divided by. The loss must divide by the same."""
    top_p: float = 1.0
    """Below 1 only the likeliest tokens that together have this probability are drawn."""
    top_k: int = 0
    """Above 0 only so many of the likeliest tokens are drawn."""
    accept_bias: bool = False
    """Whether `top_p` and `top_k` may be used although they bias what is learned."""


def ends_of(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a turn: the tokenizer's, and those the model's generation config names."""
    configured = model.generation_config.eos_token_id
    several = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({int(i) for i in [tokenizer.eos_token_id, *several] if i is not None}))


@dataclass(frozen=True)
class Member:
    """One completion."""

    ids: tuple[int, ...]
    """(T,) its token ids, T >= 1, the end token included."""
    logprobs: tuple[float, ...]
    """(T,) nats: log of the probability that each token was drawn with."""
    finished: bool
    """Whether it ended by itself, before `max_new_tokens`."""


@dataclass(frozen=True)
class Group:
    """All completions of one prompt."""

    prompt: int
    """Place of the prompt in the list that was given."""
    members: tuple[Member, ...]
    version: int
    """The policy they were sampled from, as `update` called it."""


class Engine(Protocol):
    """Samples completions from a policy that changes."""

    @property
    def version(self) -> int:
        """Version of the policy that is sampled from now; -1 before the first `update`."""
        ...

    def load(self, policy: Any) -> None:
        """Take over a policy's weights and the shape of its adapter.

        Args:
            policy: PEFT model of the policy, in this process.
        """
        ...

    def update(self, adapter: Mapping[str, Tensor], version: int) -> None:
        """Sample from this adapter from now on.

        Args:
            adapter: what `peft.get_peft_model_state_dict` gives.
            version: what the groups sampled from it shall carry.
        """
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], group_size: int, sampling: Sampling, seed: int
    ) -> Iterator[Group]:
        """Sample `group_size` completions of each prompt and hand each group over when it is finished.

        Groups come in the order in which they end. The same prompts, sizes, policy and seed give the same groups.

        Args:
            prompts: token ids of each, at least one.
            group_size: completions of each prompt.
            sampling: how.
            seed: of all that is drawn.

        Raises:
            RolloutError: the engine cannot sample so.
        """
        ...


def check(sampling: Sampling, prompts: Sequence[Sequence[int]]) -> None:
    """Refuse what would be sampled wrongly.

    A token drawn under top-p or top-k was drawn from another distribution than the one the loss differentiates: the
    importance ratio is then off from 1 before any update was made, and always to the same side.

    Raises:
        RolloutError: a setting out of range, a bias that was not accepted, or an empty prompt.
    """
    if sampling.temperature <= 0:
        raise RolloutError(
            "A policy gradient needs sampled tokens; at this temperature there is nothing to sample.",
            got=sampling.temperature,
            allowed="above 0",
            next_step="set [train.grpo] temperature = 1.0",
        )
    if (sampling.top_p < 1 or sampling.top_k > 0) and not sampling.accept_bias:
        raise RolloutError(
            "top_p and top_k bias the importance ratio: tokens are drawn from another distribution than is trained.",
            got=f"top_p {sampling.top_p}, top_k {sampling.top_k}",
            allowed="top_p 1.0 and top_k 0",
            next_step="leave both, or set [train.grpo] accept_sampling_bias = true",
        )
    if not all(prompts):
        raise RolloutError("A prompt has no tokens.", got=f"prompt {[len(p) for p in prompts].index(0)}")
