"""Replies as vectors: frozen embeddings of the base model beside named text features."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from reward_models import model_files
from reward_models.features import text_features
from reward_models.hardware import inference_dtype
from reward_models.scorer import Chat

# The middle layers of a language model tell texts apart at least as well as the last ones, which serve the next
# token (Skean et al. 2025, Layer by layer, arXiv 2502.02013), and cost half.
DEPTH_SHARE = 0.5


def represent(
    base: Path,
    prompts: Sequence[Chat],
    completions: Sequence[str],
    *,
    max_tokens: int,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """(B, E + F) vectors: mean hidden state over the reply given its prompt, then the named features.

    The embedding reads at most `max_tokens` tokens of prompt and reply (the end of the prompt, the start of
    the reply). It depends on the text and the base alone, so vectors are cached by both.
    """
    identity = _identity(base)
    keys = [_key(identity, p, c, max_tokens) for p, c in zip(prompts, completions, strict=True)]
    known = _read_cache(cache_dir, keys)
    missing = [i for i in range(len(keys)) if keys[i] not in known]
    first_of_key = list({keys[i]: i for i in reversed(missing)}.values())
    if first_of_key:
        vectors = _embed(
            base,
            [prompts[i] for i in first_of_key],
            [completions[i] for i in first_of_key],
            max_tokens,
            progress,
        )
        fresh = {keys[i]: v for i, v in zip(first_of_key, vectors, strict=True)}
        known.update(fresh)
        _write_cache(cache_dir, fresh)
    embeddings = np.stack([known[k] for k in keys]) if keys else np.zeros((0, 1), dtype=np.float32)
    named = text_features([last_user_message(p) for p in prompts], completions)
    return np.concatenate([embeddings.astype(np.float64), named], axis=1)


def last_user_message(prompt: Chat) -> str:
    """Text of the turn that is being answered."""
    return next((m["content"] for m in reversed(prompt) if m["role"] == "user"), "")


def _embed(
    base: Path,
    prompts: list[Chat],
    completions: list[str],
    max_tokens: int,
    progress: Callable[[int, int], None] | None,
) -> np.ndarray:
    """(B, E) float32, texts of similar length together."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModel.from_pretrained(base, dtype=inference_dtype()).eval()
    if hasattr(model, "layers"):
        model.layers = model.layers[: max(1, round(DEPTH_SHARE * len(model.layers)))]
    if torch.cuda.is_available():
        model = model.to("cuda")
    encoded = []
    for prompt, completion in zip(prompts, completions, strict=True):
        asked = tokenizer(last_user_message(prompt), add_special_tokens=False)["input_ids"][
            -max_tokens // 4 :
        ]
        reply = tokenizer("\n" + completion, add_special_tokens=False)["input_ids"][: max_tokens - len(asked)]
        encoded.append((asked + reply, len(asked)))
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i][0]))
    out = np.zeros((len(encoded), model.config.hidden_size), dtype=np.float32)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    for start in range(0, len(order), 16):
        batch = order[start : start + 16]
        width = max(len(encoded[i][0]) for i in batch)
        ids = torch.tensor(
            [encoded[i][0] + [pad] * (width - len(encoded[i][0])) for i in batch], device=model.device
        )
        places = torch.arange(width, device=model.device)[None]
        ends = torch.tensor([[len(encoded[i][0])] for i in batch], device=model.device)
        starts = torch.tensor([[encoded[i][1]] for i in batch], device=model.device)
        with torch.inference_mode():
            hidden = model(input_ids=ids, attention_mask=(places < ends).long()).last_hidden_state.float()
        reply_mask = ((places >= starts) & (places < ends)).float()[..., None]
        out[batch] = ((hidden * reply_mask).sum(1) / reply_mask.sum(1).clamp(min=1)).cpu().numpy()
        if progress:
            progress(min(start + 16, len(order)), len(order))
    return out


def _identity(base: Path) -> str:
    """What makes vectors comparable: the base's files and the number format they are run in."""
    about = f"{inference_dtype()} {DEPTH_SHARE} {model_files.digest(base)}"
    return hashlib.sha256(about.encode()).hexdigest()


def _key(identity: str, prompt: Chat, completion: str, max_tokens: int) -> str:
    text = f"{identity}\0{max_tokens}\0{last_user_message(prompt)}\0{completion}"
    return hashlib.sha256(text.encode()).hexdigest()


def _read_cache(cache_dir: Path | None, keys: Sequence[str]) -> dict[str, np.ndarray]:
    if cache_dir is None or not cache_dir.is_dir():
        return {}
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(cache_dir, format="parquet").to_table(filter=pc.field("key").isin(list(set(keys))))
    return {
        k: np.asarray(v, dtype=np.float32)
        for k, v in zip(table["key"].to_pylist(), table["vector"].to_pylist(), strict=True)
    }


def _write_cache(cache_dir: Path | None, fresh: dict[str, np.ndarray]) -> None:
    """One immutable Parquet file per call, named by what is in it; readers never see half a file."""
    if cache_dir is None:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    cache_dir.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256("".join(sorted(fresh)).encode()).hexdigest()[:24]
    table = pa.table(
        {"key": list(fresh), "vector": pa.array([v.tolist() for v in fresh.values()], pa.list_(pa.float32()))}
    )
    partial = cache_dir.parent / f".{cache_dir.name}-{name}-{os.getpid()}.partial"
    pq.write_table(table, partial)
    partial.replace(cache_dir / f"{name}.parquet")
