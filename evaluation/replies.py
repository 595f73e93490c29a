"""Sample replies from a policy, in batches, on whatever device it is on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from reward_models.hardware import inference_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Chat = list[dict[str, str]]


class SamplingConfig(BaseModel):
    """How replies are sampled, in service and in evaluation alike."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_new_tokens: int = Field(default=48, ge=1)
    """Longest reply, in tokens."""
    temperature: float = Field(default=0.7, ge=0)
    """0 is greedy."""
    top_k: int = Field(default=50, ge=0)
    """Sample among this many likeliest tokens; 0 is all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus size; below 1 every step sorts the vocabulary, which on a CPU can cost more than the model."""
    batch_size: int = Field(default=64, ge=1)
    """Prompts decoded together."""
    max_prompt_tokens: int = Field(default=512, ge=1)
    """A longer prompt keeps its end."""


@dataclass(frozen=True)
class Reply:
    """One sampled reply."""

    text: str
    tokens: int
    """Tokens sampled, the end-of-turn token included."""
    finished: bool
    """Whether the policy ended its turn before `max_new_tokens`."""
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Policy:
    """A model that answers: base plus, when given, a merged adapter."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_policy(base: Path, adapter: Path | None) -> Policy:
    """Load a base model and merge an adapter into it (in the format this machine is fast in)."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    model = model.to(inference_dtype()).eval()
    if torch.cuda.is_available():
        model = model.to("cuda")
    return Policy(model, tokenizer)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Chat, max_tokens: int) -> list[int]:
    """Token ids (T,) of a chat prompt as served, its end kept when it is longer than `max_tokens`."""
    ids = tokenizer.apply_chat_template(prompt, tokenize=True, add_generation_prompt=True, return_dict=False)
    return list(ids)[-max_tokens:]


def sample(
    policy: Policy,
    prompts: Sequence[Chat],
    config: SamplingConfig,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> list[Reply]:
    """Sample one reply per prompt, in the order given.

    Prompts are decoded in batches of similar length, so that little is spent on padding; the result does not
    depend on the order of the prompts within the call beyond that grouping.

    Args:
        prompts: chats, each ending with the turn to answer.
        seed: seed of the sampler; the same policy, prompts, config and seed give the same replies.
        progress: called with the number of prompts just done.
    """
    import torch

    tokenizer, model = policy.tokenizer, policy.model
    encoded = [encode_prompt(tokenizer, p, config.max_prompt_tokens) for p in prompts]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    ends = _end_tokens(policy)
    replies: list[Reply | None] = [None] * len(encoded)
    torch.manual_seed(seed)
    for start in range(0, len(order), config.batch_size):
        batch = order[start : start + config.batch_size]
        padded = tokenizer.pad(
            {"input_ids": [encoded[i] for i in batch]}, padding_side="left", return_tensors="pt"
        )
        padded = padded.to(model.device)
        sampling: dict[str, Any] = {"do_sample": False}
        if config.temperature > 0:
            sampling = {
                "do_sample": True,
                "temperature": config.temperature,
                "top_p": config.top_p,
                "top_k": config.top_k,
            }
        with torch.inference_mode():
            output = model.generate(  # type: ignore[operator]
                **padded,
                max_new_tokens=config.max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=ends,
                **sampling,
            )
        for i, row in zip(batch, output[:, padded["input_ids"].shape[1] :].tolist(), strict=True):
            replies[i] = _reply(tokenizer, row, ends)
        if progress:
            progress(len(batch))
    return [r for r in replies if r is not None]


def _end_tokens(policy: Policy) -> list[int]:
    """Every token that ends a turn: the tokenizer's, and those the model's own generation config names."""
    configured = policy.model.generation_config.eos_token_id
    several = configured if isinstance(configured, list) else [configured]
    return sorted({int(i) for i in [policy.tokenizer.eos_token_id, *several] if i is not None})


def _reply(tokenizer: PreTrainedTokenizerBase, row: list[int], ends: list[int]) -> Reply:
    stop = next((k for k, token in enumerate(row) if token in ends), None)
    ids = row if stop is None else row[: stop + 1]
    text = str(tokenizer.decode(ids, skip_special_tokens=True)).strip()
    return Reply(text, len(ids), stop is not None, tuple(ids))
