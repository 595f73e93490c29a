"""From what a build made to a dataset: which rows are in it, its name, and what its manifest tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from feedback.tables import EPOCH

from . import dataset
from .build_work import Made
from .dataset import Dataset, Piece
from .groups_store.segment import ROWS
from .groups_store.store import Store
from .workspace import Layout


def write(layout: Layout, made: Made, config_digest: str, about: Mapping[str, Any]) -> Dataset:
    """Writes the dataset of a build, unless it is there.

    Args:
        layout: the workspace.
        made: what the build made.
        config_digest: digest of the configuration, part of the name.
        about: what the manifest is to say of the circumstances.
    """
    store, kept = made.store, made.store.live_rows()
    ids = [segment["row_ids"][keep] for segment, keep in zip(store.segments, kept, strict=True)]
    version = dataset.content_version(np.concatenate([np.zeros(0, "S32"), *ids]), config_digest)
    fates = _fate_counts(made)
    manifest = {
        **_row_counts(store, kept),
        **about,
        "balance": {"in": made.events(), "fates": fates["by_fate"]},
        "fates": fates,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    pieces = [
        Piece(segment.path / ROWS, segment.manifest["files"][ROWS]["sha256"], keep)
        for segment, keep in zip(store.segments, kept, strict=True)
    ]
    return dataset.write(layout, version, pieces, manifest)


def _row_counts(store: Store, kept: list[np.ndarray]) -> dict[str, Any]:
    """What a manifest tells of the rows."""
    counts: Counter[tuple[str, str]] = Counter()
    times: list[int] = []
    for segment, keep in zip(store.segments, kept, strict=True):
        kinds = [(rule, split) for rule, split in segment.manifest["row_kinds"]]
        numbers = np.bincount(segment["row_kinds"][keep], minlength=len(kinds)).tolist()
        counts.update({kind: count for kind, count in zip(kinds, numbers, strict=True) if count})
        if keep.any():
            times += [int(segment["row_times"][keep].min()), int(segment["row_times"][keep].max())]
    return {
        "by_rule": _told(counts, 0),
        "by_split": _told(counts, 1),
        "by_rule_and_split": _told(counts, 0, 1),
        "first_event_time": _time(min(times)) if times else None,
        "last_event_time": _time(max(times)) if times else None,
    }


def _fate_counts(made: Made) -> dict[str, Any]:
    """Fates by name, by kind of event, and with their reasons."""
    counts = made.store.fate_counts()
    for reason, count in made.dead_letters.items():
        counts["dead_letter", "dead_letter", reason] = count
    dead = {key: count for key, count in counts.items() if key[1] == "dead_letter"}
    return {
        "by_fate": _told(counts, 1),
        "by_kind": _told(counts, 0, 1),
        "by_reason": _told(counts, 1, 2),
        "dead_letters": _told(dead, 2),
    }


def _told(counts: Mapping[Any, int], *columns: int) -> dict[str, int]:
    """Counts by some columns of their key, joined with a slash; what is empty is left out."""
    told: Counter[str] = Counter()
    for key, count in counts.items():
        told["/".join(key[column] for column in columns if key[column])] += count
    return dict(sorted(told.items()))


def _time(microseconds: int) -> str:
    return (EPOCH + timedelta(microseconds=microseconds)).isoformat()
