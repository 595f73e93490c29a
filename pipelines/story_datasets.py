"""Which preference rows rest on an event, and which dataset versions hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import dataset
from .errors import DatasetError
from .workspace import Layout

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_CHARS = 200


@dataclass(frozen=True)
class PreferenceRow:
    """A preference that rests on the event, and the versions that hold it."""

    preference_id: str
    rule: str
    split: str
    margin: float
    weight: float
    label: bool | None
    chosen: str
    rejected: str | None
    versions: tuple[str, ...]


@dataclass(frozen=True)
class DatasetUse:
    """A dataset version in which rows rest on the event."""

    version: str
    created: str
    newest: bool
    rows: Mapping[str, int]
    """Split to number of rows."""


def resting_on(
    layout: Layout, ids: Sequence[str]
) -> tuple[tuple[PreferenceRow, ...], tuple[DatasetUse, ...], tuple[str, ...]]:
    """The rows that rest on events, the versions that hold them, oldest first, and the versions that are damaged."""
    found: dict[str, dict[str, Any]] = {}
    holders: dict[str, list[str]] = {}
    uses: list[DatasetUse] = []
    damaged: list[str] = []
    try:
        newest: str | None = dataset.load(layout.root).version
    except DatasetError:
        newest = None
    for version in dataset.versions(layout.root) if ids else []:
        try:
            known = dataset.load(layout.root, version)
        except DatasetError:
            damaged.append(version)
            continue
        counts: dict[str, int] = {}
        for row in _rows_on(known.rows(), ids).to_pylist():
            found[row["preference_id"]] = row
            holders.setdefault(row["preference_id"], []).append(version)
            counts[row["split"]] = counts.get(row["split"], 0) + 1
        if counts:
            created = str(known.manifest.get("created", ""))
            uses.append(DatasetUse(version, created, version == newest, dict(sorted(counts.items()))))
    uses.sort(key=lambda use: use.created)
    order = {use.version: number for number, use in enumerate(uses)}
    rows = tuple(
        _preference(row, tuple(sorted(holders[key], key=order.__getitem__)))
        for key, row in sorted(found.items())
    )
    return rows, tuple(uses), tuple(damaged)


def _rows_on(rows: pa.Table, ids: Sequence[str]) -> pa.Table:
    """The preference rows whose evidence names one of these events."""
    import pyarrow as pa
    import pyarrow.compute as pc

    evidence = rows["evidence"].combine_chunks()
    named = pc.is_in(pc.list_flatten(evidence), value_set=pa.array(list(ids), pa.string()))
    return rows.take(pc.unique(pc.list_parent_indices(evidence).filter(named)))


def _preference(row: Mapping[str, Any], versions: tuple[str, ...]) -> PreferenceRow:
    rejected = row["rejected"]
    return PreferenceRow(
        row["preference_id"],
        row["rule"],
        row["split"],
        row["margin"],
        row["weight"],
        row["label"],
        row["chosen"][:_SHOWN_CHARS],
        None if rejected is None else rejected[:_SHOWN_CHARS],
        versions,
    )
