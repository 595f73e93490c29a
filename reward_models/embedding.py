"""Mean hidden states of replies, from a base model that stays loaded between calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reward_models.hardware import inference_dtype
from reward_models.shared_prefix import passes, shares_prefixes
from reward_models.text_batches import Text

# The middle layers of a language model tell texts apart at least as well as the last ones, which serve the next
# token (Skean et al. 2025, Layer by layer, arXiv 2502.02013), and cost half.
DEPTH_SHARE = 0.5
_GPU_SHARE = (
    0.1  # of a GPU's memory; a larger base is not kept, as training in the same process needs the room
)


@dataclass(frozen=True)
class Base:
    """The lower layers of a base model and its tokenizer, ready to embed.

    Attributes:
        path, identity: which model, and which version of its files.
        share: whether replies to one prompt can share what is computed of the prompt.
    """

    path: Path
    identity: str
    tokenizer: Any
    model: Any
    share: bool


_held: Base | None = None
_lock = threading.Lock()


def loaded(path: Path, identity: str) -> Base:
    """The base model in `path`, read once as long as no other one is asked for; any thread may ask.

    Args:
        path: directory of the model.
        identity: of its files; another one means that they were replaced.
    """
    global _held
    with _lock:
        if _held is None or (_held.path, _held.identity) != (path, identity):
            _held = None  # before the next one is read: never two of them in memory
            base = _read(path, identity)
            if not _fits_beside_training(base.model):
                return base
            _held = base
        return _held


def release() -> None:
    """Let go of the base model that is kept, for its memory."""
    global _held
    with _lock:
        _held = None


def token_ids(base: Base, messages: Sequence[str], completions: Sequence[str], max_tokens: int) -> list[Text]:
    """What is read of each reply: the end of the message it answers, then its own beginning.

    Args:
        base: whose tokenizer cuts the texts.
        messages: B texts that are answered.
        completions: B replies.
        max_tokens: of both; a quarter of them, at most, is the message.
    """
    with _lock:  # a fast tokenizer refuses to be used while another thread sets it up
        asked = base.tokenizer(list(messages), add_special_tokens=False)["input_ids"] if messages else []
        replies = (
            base.tokenizer(["\n" + c for c in completions], add_special_tokens=False)["input_ids"]
            if completions
            else []
        )
    cut = [tuple(ids[-max_tokens // 4 :]) for ids in asked]
    return [Text(a, tuple(r[: max_tokens - len(a)])) for a, r in zip(cut, replies, strict=True)]


def embed(
    base: Base,
    messages: Sequence[str],
    completions: Sequence[str],
    *,
    max_tokens: int,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """(B, E) float32 mean hidden state over each reply given what it answers; zero for a reply without tokens."""
    texts = token_ids(base, messages, completions, max_tokens)
    out = np.zeros((len(texts), base.model.config.get_text_config().hidden_size), dtype=np.float32)
    said = [i for i, text in enumerate(texts) if text.rest]
    pad = base.tokenizer.pad_token_id
    pad = pad if pad is not None else base.tokenizer.eos_token_id
    done = len(texts) - len(said)
    for rows, output, is_rest in passes(base.model, [texts[i] for i in said], pad=pad, share=base.share):
        of = is_rest.float()[..., None]
        means = (output.last_hidden_state.float() * of).sum(1) / of.sum(1)
        out[[said[k] for k in rows]] = means.cpu().numpy()
        done += len(rows)
        if progress:
            progress(done, len(texts))
    return out


def _read(path: Path, identity: str) -> Base:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, dtype=inference_dtype()).eval()
    if hasattr(model, "layers"):
        model.layers = model.layers[: max(1, round(DEPTH_SHARE * len(model.layers)))]
    if torch.cuda.is_available():
        model = model.to("cuda")
    return Base(path, identity, tokenizer, model, shares_prefixes(model))


def _fits_beside_training(model: Any) -> bool:
    import torch

    if model.device.type != "cuda":
        return True
    taken = sum(p.numel() * p.element_size() for p in model.parameters())
    return bool(taken < _GPU_SHARE * torch.cuda.get_device_properties(model.device).total_memory)
