"""Replies as vectors: frozen embeddings of the base model beside named text features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from reward_models import embedding, embedding_cache, model_files
from reward_models.features import text_features
from reward_models.hardware import inference_dtype
from reward_models.scorer import Chat


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
    the reply). It depends on the text and the base alone, so vectors are cached by both, and the same reply to the
    same message is embedded once.
    """
    identity = identity_of(base)
    messages = [last_user_message(prompt) for prompt in prompts]
    keys = [_key(identity, m, c, max_tokens) for m, c in zip(messages, completions, strict=True)]
    if not keys:
        embeddings = np.zeros((0, 1))
        return np.concatenate([embeddings, text_features([], [])], axis=1)
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    known = embedding_cache.read(cache_dir, first)
    missing = sorted(i for key, i in first.items() if key not in known)
    if missing:
        vectors = embedding.embed(
            embedding.loaded(base, identity),
            [messages[i] for i in missing],
            [completions[i] for i in missing],
            max_tokens=max_tokens,
            progress=progress,
        )
        fresh = {keys[i]: v for i, v in zip(missing, vectors, strict=True)}
        known.update(fresh)
        embedding_cache.write(cache_dir, fresh)
    place = {key: n for n, key in enumerate(first)}
    named = text_features([messages[i] for i in first.values()], [completions[i] for i in first.values()])
    embeddings = np.stack([known[key] for key in first]).astype(np.float64)
    return np.concatenate([embeddings, named], axis=1)[[place[key] for key in keys]]


def last_user_message(prompt: Chat) -> str:
    """Text of the turn that is being answered."""
    return next((m["content"] for m in reversed(prompt) if m["role"] == "user"), "")


def identity_of(base: Path) -> str:
    """What makes vectors comparable: the base's files and the number format they are run in."""
    about = f"{inference_dtype()} {embedding.DEPTH_SHARE} {model_files.digest(base)}"
    return hashlib.sha256(about.encode()).hexdigest()


def _key(identity: str, message: str, completion: str, max_tokens: int) -> str:
    text = f"{identity}\0{max_tokens}\0{message}\0{completion}"
    return hashlib.sha256(text.encode()).hexdigest()
