"""Which prompts are left out of a dataset because another one says nearly the same.

The rule itself is `feedback.hygiene.near_duplicates.dropped` and looks at pairs of prompts that have rows. A
pair must share a band of its signatures, so after a build only prompts in the bands of what changed are looked
at again; that gives what looking at all of them would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feedback.hygiene import near_duplicates
from feedback.hygiene.near_duplicates import NearDuplicateConfig

from .groups_store.keys import GROUP, spans, union
from .groups_store.segment import Segment
from .groups_store.store import Store
from .groups_store.write import Fingerprint


def fingerprint(config: NearDuplicateConfig) -> Fingerprint | None:
    """How a segment's writer describes the texts of prompts; None when the configuration looks for nothing."""
    if not config.enabled:
        return None

    def described(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        signatures = near_duplicates.signatures(texts, config.num_perm)
        return signatures, near_duplicates.bands(signatures, config)

    return described


def dropped_prompts(after: Store, before: Store | None, config: NearDuplicateConfig) -> np.ndarray:
    """(D,) S32, in order: the prompts to leave out.

    Args:
        after: the store with the new segment; its own `dropped` is not looked at.
        before: the store without it, and the prompts left out then; None when everything is new.
        config: what counts as nearly the same.
    """
    if not config.enabled or not after.segments:
        return np.zeros(0, GROUP)
    if before is None or not before.segments:
        (only,) = after.segments
        return _lost(_taken(only, _sharing(only)), config)
    new = after.segments[-1]
    changed = [_taken(new, np.arange(len(new["prompt_groups"])))]
    still = {segment.name: live for segment, live in zip(after.segments, after.live, strict=True)}
    for segment, live in zip(before.segments, before.live, strict=True):
        gone = live & ~still.get(segment.name, np.zeros(len(live), dtype=bool))
        changed.append(_taken(segment, np.flatnonzero(gone[segment["prompt_groups"]])))
    concerned = _in_bands(after, _bands(_joined(changed), config))
    looked_at = _in_bands(after, _bands(concerned, config))
    lost = np.intersect1d(_lost(looked_at, config), concerned.keys)
    settled = union(concerned.keys, *(prompts.keys for prompts in changed))
    return union(np.setdiff1d(before.dropped, settled), lost)


@dataclass(frozen=True)
class _Prompts:
    keys: np.ndarray
    strengths: np.ndarray
    signatures: np.ndarray


def _taken(segment: Segment, places: np.ndarray) -> _Prompts:
    keys = segment["groups"][segment["prompt_groups"][places]]
    return _Prompts(keys, segment["strengths"][places], segment["signatures"][places])


def _joined(parts: Sequence[_Prompts]) -> _Prompts:
    full = [part for part in parts if len(part.keys)] or [parts[0]]
    return _Prompts(
        np.concatenate([part.keys for part in full]),
        np.concatenate([part.strengths for part in full]),
        np.concatenate([part.signatures for part in full]),
    )


def _bands(prompts: _Prompts, config: NearDuplicateConfig) -> np.ndarray:
    if len(prompts.keys) == 0:
        return np.zeros(0, np.uint64)
    return np.unique(near_duplicates.bands(prompts.signatures, config))


def _sharing(segment: Segment) -> np.ndarray:
    """Prompts of a segment that share a band with another one of it."""
    values = segment["bands"]
    same = values[1:] == values[:-1]
    shared = np.concatenate([[False], same]) | np.concatenate([same, [False]])
    return np.unique(segment["band_prompts"][shared[: len(values)]])


def _in_bands(store: Store, values: np.ndarray) -> _Prompts:
    """All prompts of the store that are in one of some bands."""
    parts = []
    for segment, live in zip(store.segments, store.live, strict=True):
        lo = np.searchsorted(segment["bands"], values, "left")
        hi = np.searchsorted(segment["bands"], values, "right")
        places = np.unique(segment["band_prompts"][spans(lo, hi - lo)])
        parts.append(_taken(segment, places[live[segment["prompt_groups"][places]]]))
    return _joined(parts)


def _lost(prompts: _Prompts, config: NearDuplicateConfig) -> np.ndarray:
    """(D,) S32, in order: those of some prompts that a stronger one among them stands for."""
    count = len(prompts.keys)
    by_key = np.argsort(prompts.keys)
    # Strongest first: the later split, then the smaller key.
    strongest = by_key[np.argsort(-prompts.strengths[by_key].astype(np.int64), kind="stable")]
    strength = np.empty(count, np.int64)
    strength[strongest] = np.arange(count, 0, -1)
    return np.sort(prompts.keys[near_duplicates.dropped(strength, prompts.signatures, config)])
