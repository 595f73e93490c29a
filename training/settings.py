"""Settings that every update by gradient descent has."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from training.hacking import HackingSettings


class WatchSettings(BaseModel):
    """How often the policy answers a few prompts while it learns, so that people and gates see what it has become."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    every_steps: int = Field(default=25, ge=0)
    """Sample before the first step, after every so many and after the last; 0 samples nothing. An update of fewer
    steps than this is not sampled: its candidate is evaluated at once."""
    prompts: int = Field(default=8, ge=2)
    """How many of the log's prompts are answered, each time the same."""
    replies: int = Field(default=1, ge=1)
    """Replies to each."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Longest of these replies, in tokens."""
    temperature: float = Field(default=1.0, gt=0)
    """What logits are divided by when they are drawn."""
    hacking: HackingSettings = HackingSettings()
    """When the run is stopped because the replies game the reward."""


class UpdateSettings(BaseModel):
    """Optimizer, schedule, checkpoints and limits. A method's own `Config` adds its loss.

    The one base class here: it keeps the same setting under the same name in every `[train.<method>]`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate of AdamW on the adapter."""
    epochs: float = Field(default=1.0, gt=0)
    """Passes over the rows."""
    max_tokens: int = Field(default=512, ge=16)
    """Longest prompt and reply together, in tokens."""
    overlong: Literal["cut", "leave_out"] = "cut"
    """`cut` leaves out the oldest turns of a prompt that is too long; the system message and the last question stay."""
    reasoning: Literal["keep", "mask", "drop"] = "keep"
    """Of a reply's reasoning: train on it, keep it as context that no loss reads, or leave it out."""
    use_logged_tokens: bool = True
    """Take token ids as they were logged instead of rendering the messages."""
    template_options: dict[str, Any] = Field(default_factory=dict)
    """Switches of the chat template that the product sets, such as { enable_thinking = false }."""
    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0; 0 starts at the peak."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """A gradient longer than this is shortened to it."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Penalty on the distance to the champion, per nat and token; 0 asks for none beyond the method's own."""
    kl_budget: float | None = Field(default=None, gt=0)
    """Nats per token that the penalty's weight is adapted to keep; none keeps the weight as it is."""
    base_kl_budget: float | None = Field(default=None, gt=0)
    """The same for the distance to the base model; none does not look at it."""
    watch: WatchSettings = WatchSettings()
    """Replies that are sampled while the update runs."""
    save_every_steps: int = Field(default=10, ge=1)
    """A checkpoint every so many steps; a killed run goes on from the last complete one."""
