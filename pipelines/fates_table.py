"""The fates table: where each row of the events table ended, as of the newest build.

One Delta commit replaces all of it and says which events, configuration and code it belongs to; so a reader
never sees the fates of two builds mixed, and a build can tell that nothing changed since the last one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from feedback.tables import FATES

from .workspace import Layout

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_PREFIX = "palate_"
_KEEP_HOURS = 168


@dataclass(frozen=True)
class BuiltFrom:
    """What a set of fates was made from, and the dataset that was made with it."""

    dataset: str
    events_version: str
    config_sha256: str
    code_sha256: str


def replace(layout: Layout, fates: pa.Table, built: BuiltFrom) -> None:
    """Puts these fates in the place of the old ones, in one commit."""
    from deltalake import CommitProperties, DeltaTable, write_deltalake

    layout.fates.mkdir(parents=True, exist_ok=True)
    if DeltaTable.is_deltatable(str(layout.fates)):
        # Before the write, because the newest commit must be the one that says what the fates belong to.
        DeltaTable(layout.fates).vacuum(retention_hours=_KEEP_HOURS, dry_run=False)
    metadata = {f"{_PREFIX}{name}": value for name, value in asdict(built).items()}
    write_deltalake(
        layout.fates,
        fates.cast(FATES),
        mode="overwrite",
        commit_properties=CommitProperties(custom_metadata=metadata),
    )


def open_table(layout: Layout) -> DeltaTable | None:
    """The table, or None when nothing was built."""
    from deltalake import DeltaTable

    return DeltaTable(layout.fates) if DeltaTable.is_deltatable(str(layout.fates)) else None


def built_from(table: DeltaTable) -> BuiltFrom | None:
    """What this snapshot's fates belong to; None when its newest commit does not say."""
    newest = table.history(1)[0]
    names = list(BuiltFrom.__dataclass_fields__)
    if any(f"{_PREFIX}{name}" not in newest for name in names):
        return None
    return BuiltFrom(**{name: str(newest[f"{_PREFIX}{name}"]) for name in names})
