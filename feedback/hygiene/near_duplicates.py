"""Prompts that are nearly the same text, found by MinHash: the expected share of equal slots is the Jaccard index.

A text is folded (case, compatibility forms, punctuation, white space) and cut into shingles of five characters;
characters and not words, because many languages do not write spaces. Texts too short for the estimate to mean
anything are one shingle, so they match themselves only. Shingles are hashed here, vectorised over all texts;
`rensa` (Rust) makes the signatures from these hashes: of the libraries tried it was the fastest by far, and its
signatures depend on the hashes, the seed and its algorithm's version only, never on the process or the number of
threads. `benchmarks/hygiene.py` prints the speed of it and of datasketch.

    Jaccard   J(A, B) = |A ∩ B| / |A ∪ B|          Broder, "On the resemblance and containment of documents", 1997
    banding   P(candidates) = 1 - (1 - J^r)^b      b bands of r slots; Leskovec et al., "Mining of Massive
                                                   Datasets", section 3.4

With 16 bands of 8 slots a pair of J = 0.85 is found with probability 0.994; whether a pair that is found counts is
then decided on its whole signatures.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from feedback.hygiene import HygieneError

SHINGLE_CHARS = 5
MIN_CHARS = 32
"""Shorter texts, folded, match exactly or not at all: with so few shingles one word decides."""
ALGORITHM_VERSION = 2
"""Version of rensa's signatures; another one would give every prompt another signature."""
_SEED = 20_260_301
_BETWEEN_WORDS = re.compile(r"[\W_]+")
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FINAL = np.uint64(0xD6E8FEB86659FD93)

UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]


class NearDuplicateConfig(BaseModel):
    """When two prompts are the same for learning and for measuring."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    enabled: bool = True
    """False keeps every prompt; exact copies (up to case and white space) are one prompt in any case."""
    threshold: float = Field(default=0.85, gt=0, le=1)
    """Least share of equal signature slots, which estimates the Jaccard index of the prompts' shingles."""
    num_perm: int = Field(default=128, ge=16, le=1024)
    """Slots of a signature; the estimate's standard error is sqrt(J (1 - J) / num_perm)."""
    bands: int = Field(default=16, ge=1)
    """Groups of slots of which one must be equal for a pair to be looked at."""

    @model_validator(mode="after")
    def _bands_fit(self) -> Self:
        if self.num_perm % self.bands:
            raise ValueError(f"bands = {self.bands} does not divide num_perm = {self.num_perm}")
        return self


def fold(text: str) -> str:
    """The text as it is compared: without case, compatibility forms, punctuation and repeated white space."""
    if text.isascii():
        folded = text.casefold()
    else:
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _BETWEEN_WORDS.sub(" ", folded).strip()


def signatures(texts: Sequence[str], num_perm: int = 128) -> UInt32:
    """MinHash signatures.

    Args:
        texts: N texts, as people wrote them.
        num_perm: slots of each.

    Returns:
        (N, num_perm); a row depends on its own text and on num_perm only.

    Raises:
        HygieneError: another version of the library, whose signatures would differ.
    """
    if not texts:
        return np.empty((0, num_perm), np.uint32)
    from rensa import RMinHash

    if RMinHash.ALGORITHM_VERSION != ALGORITHM_VERSION:
        raise HygieneError(
            "The installed rensa makes other signatures, so near-copies would be found differently than before.",
            got=f"algorithm version {RMinHash.ALGORITHM_VERSION}",
            allowed=ALGORITHM_VERSION,
            next_step="pip install -c constraints.txt rensa",
        )
    parts = []
    for first in range(0, len(texts), 4096):  # bounds the memory of the shingles, not the result
        hashes, counts = _shingles([fold(text) for text in texts[first : first + 4096]])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        rows = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, num_perm, _SEED).to_rows()
        parts.append(np.array(rows, np.uint32))
    return np.concatenate(parts)


def _shingles(folded: Sequence[str]) -> tuple[UInt64, npt.NDArray[np.int64]]:
    """Hashes of the shingles of all texts one after another, and how many each text has (at least one)."""
    long = np.array([len(text) >= MIN_CHARS for text in folded], bool)
    lengths = np.array([len(text) for text in folded], np.int64)
    counts = np.where(long, lengths - SHINGLE_CHARS + 1, 1)
    starts = np.concatenate([[0], np.cumsum(counts)])
    hashes = np.empty(int(starts[-1]), np.uint64)
    short = np.flatnonzero(~long)
    hashes[starts[short]] = [_whole(folded[int(i)]) for i in short]
    if long.any():
        joined = "".join(text for text, is_long in zip(folded, long, strict=True) if is_long)
        windows = _windows(np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32))
        # Windows that reach over the end of a text into the next one are left out.
        ends = np.cumsum(lengths[long])
        inside = np.ones(len(windows), bool)
        for back in range(1, SHINGLE_CHARS):
            inside[ends[:-1] - back] = False
        hashes[np.repeat(long, counts)] = windows[inside]
    return hashes, counts


def _windows(codepoints: UInt32) -> UInt64:
    """A 64-bit hash of every run of SHINGLE_CHARS code points."""
    count = len(codepoints) - SHINGLE_CHARS + 1
    hashed = np.zeros(count, np.uint64)
    for at in range(SHINGLE_CHARS):
        hashed = (hashed + codepoints[at : at + count].astype(np.uint64)) * _MIX
        hashed ^= hashed >> np.uint64(29)
    hashed *= _FINAL
    return hashed ^ (hashed >> np.uint64(32))


def _whole(folded: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )


def similar(a: UInt32, b: UInt32) -> float:
    """Estimated Jaccard index of two signatures: the share of slots that are equal."""
    return float(np.mean(a == b))


def bands(signatures: UInt32, config: NearDuplicateConfig) -> UInt64:
    """Hashes of groups of slots: two prompts that share one are worth comparing.

    Returns:
        (N, bands). The number of the band is hashed in, so values may be kept in one index for all bands.
    """
    rows = config.num_perm // config.bands
    grouped = signatures.reshape(len(signatures), config.bands, rows).astype(np.uint64)
    hashed = np.broadcast_to(np.arange(1, config.bands + 1, dtype=np.uint64), grouped.shape[:2]) * _FINAL
    for row in range(rows):
        hashed = (hashed ^ grouped[:, :, row]) * _MIX
        hashed ^= hashed >> np.uint64(31)
    return hashed


def dropped(strength: npt.NDArray[np.int64], signatures: UInt32, config: NearDuplicateConfig) -> Bool:
    """Which prompts are left out because a stronger one is nearly the same.

    The rule looks at pairs only, so it depends on the set of prompts and not on their order: a prompt is dropped
    exactly when some stronger prompt, dropped itself or not, shares a band with it and is similar to it.

    Args:
        strength: (N,) a different number for each prompt; of two near-copies the larger stands.
        signatures: (N, num_perm).
        config: what counts as near.

    Returns:
        (N,) True where dropped.
    """
    lost = np.zeros(len(strength), bool)
    if not config.enabled or len(strength) < 2:
        return lost
    order = np.argsort(strength)[::-1]
    ranked = bands(signatures, config)[order]
    for column in ranked.T:
        by_value = np.argsort(column, kind="stable")  # stable: within one value the strongest stays first
        edges = np.concatenate([[0], np.flatnonzero(np.diff(column[by_value])) + 1, [len(column)]])
        shared = np.diff(edges) > 1  # most prompts are alone with their value, and not looked at one by one
        for lo, hi in zip(edges[:-1][shared].tolist(), edges[1:][shared].tolist(), strict=True):
            _drop_in(order[by_value[lo:hi]], signatures, config.threshold, lost)
    return lost


def _drop_in(group: npt.NDArray[np.int64], signatures: UInt32, threshold: float, lost: Bool) -> None:
    """Marks in one band's group, strongest first, what is similar to something before it."""
    needed = threshold * signatures.shape[1]
    open_ = group[1:][~lost[group[1:]]]
    for stronger in group[:-1]:
        open_ = open_[open_ != stronger]  # what is left is weaker than this one
        if len(open_) == 0:
            return
        near = np.count_nonzero(signatures[open_] == signatures[stronger], axis=1) >= needed
        lost[open_[near]] = True
        open_ = open_[~near]
