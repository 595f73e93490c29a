"""Fixed-width keys in sorted numpy arrays: how thousands of things are looked up among millions at once.

A group key is the 32 bytes of a SHA-256, an id key the first 16 of one: enough that two ids never share it.
numpy strips zero bytes from the end of a *single* `S` value, so single values are never taken out; whole
arrays compare exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

GROUP = np.dtype("S32")
ID = np.dtype("S16")


def group_keys(hex_keys: Sequence[str]) -> np.ndarray:
    """(N,) S32 of N keys of 64 hex digits."""
    return np.frombuffer(bytes.fromhex("".join(hex_keys)), GROUP)


def hex_keys(keys: np.ndarray) -> list[str]:
    """The hex digits of (N,) S32 keys."""
    text = keys.tobytes().hex()
    return [text[at : at + 64] for at in range(0, len(text), 64)]


def id_keys(kind: str, ids: Iterable[str]) -> np.ndarray:
    """(N,) S16 of N ids; ids of different kinds (interaction, feedback, session) never meet."""
    prefix = kind.encode() + b"\0"
    digests = [hashlib.sha256(prefix + name.encode()).digest()[:16] for name in ids]
    return np.frombuffer(b"".join(digests), ID)


def find(ordered: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(N,) int64: where each of N wanted keys stands in an ordered array of distinct keys; -1 if nowhere."""
    if len(ordered) == 0 or len(wanted) == 0:
        return np.full(len(wanted), -1, np.int64)
    at = np.searchsorted(ordered, wanted)
    inside = np.minimum(at, len(ordered) - 1)
    return np.where((at < len(ordered)) & (ordered[inside] == wanted), at, -1).astype(np.int64)


def union(*arrays: np.ndarray) -> np.ndarray:
    """Distinct keys of some arrays, in order."""
    return np.unique(np.concatenate([np.zeros(0, GROUP), *arrays]))


def spans(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers of all members of some ranges: (3, 7), (2, 1) gives 3, 4, 7."""
    counts = counts.astype(np.int64)
    if counts.sum() == 0:
        return np.zeros(0, np.int64)
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts.astype(np.int64) - before, counts)
