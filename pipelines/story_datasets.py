"""Which preference rows rest on an event, and which dataset versions hold them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import dataset
from .dataset import Dataset
from .errors import DatasetError
from .workspace import Layout

_SHOWN_CHARS = 200
_NAMED = ("preference_id", "split")
_SHOWN = (*_NAMED, "rule", "margin", "weight", "label", "chosen", "rejected")


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
        newest: str | None = dataset.load(layout.root, contents=False).version
    except DatasetError:
        newest = None
    for version in dataset.versions(layout.root) if ids else []:
        try:
            known = dataset.load(layout.root, version, contents=False)
            rows = list(_rows_on(known, ids, found))
        except (DatasetError, OSError, ValueError):
            damaged.append(version)
            continue
        counts: dict[str, int] = {}
        for row in rows:
            found.setdefault(row["preference_id"], row)
            holders.setdefault(row["preference_id"], []).append(version)
            counts[row["split"]] = counts.get(row["split"], 0) + 1
        if counts:
            created = str(known.manifest.get("created", ""))
            uses.append(DatasetUse(version, created, version == newest, dict(sorted(counts.items()))))
    uses.sort(key=lambda use: use.created)
    order = {use.version: number for number, use in enumerate(uses)}
    shown = tuple(
        _preference(row, tuple(sorted(holders[key], key=order.__getitem__)))
        for key, row in sorted(found.items())
    )
    return shown, tuple(uses), tuple(damaged)


def _rows_on(known: Dataset, ids: Sequence[str], told: Collection[str]) -> Iterator[dict[str, Any]]:
    """The preference rows whose evidence names one of these events.

    Evidence is read of all rows, the rest only of row groups with a match, and texts only of rows that were not
    `told` before: a row is named by its content. Pages are verified as they are read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    names = pa.array(list(ids), pa.string())
    for path, keep in known.files():
        with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
            first = 0
            for group in range(parquet.num_row_groups):
                evidence = parquet.read_row_group(group, ["evidence"])["evidence"].combine_chunks()
                named = pc.is_in(pc.list_flatten(evidence), value_set=names)
                places = pc.unique(pc.list_parent_indices(evidence).filter(named)).to_numpy()
                places = places[keep[first + places]]
                first += len(evidence)
                if len(places) == 0:
                    continue
                rows = parquet.read_row_group(group, list(_NAMED)).take(places)
                if not all(name in told for name in rows["preference_id"].to_pylist()):
                    rows = parquet.read_row_group(group, list(_SHOWN)).take(places)
                yield from rows.to_pylist()


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
