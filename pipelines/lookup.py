"""Rows of the events table that satisfy a condition, without loading the texts of those that do not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from feedback.tables import EVENTS

from . import events_table
from .workspace import Layout

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


def find(
    layout: Layout,
    wanted: Callable[[pa.Table], pa.Array],
    *,
    columns: Sequence[str],
    kinds: Collection[str] | None = None,
    table: DeltaTable | None = None,
) -> pa.Table:
    """The matching rows, in `EVENTS`, in the order of their files.

    Args:
        layout: the workspace; an empty table when nothing was ever ingested.
        wanted: from rows with only some columns of `EVENTS` to a mask, one boolean a row.
        columns: those that the condition needs, without `kind`; the others are read only of row groups that
            hold a match.
        kinds: only rows of these kinds; all when None.
        table: the snapshot to look at; the newest when None.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if table is None:
        if not events_table.exists(layout):
            return EVENTS.empty_table()
        table = events_table.open_table(layout)
    found = [EVENTS.empty_table()]
    for file in events_table.files(table):
        if kinds is not None and file.kind not in kinds:
            continue
        with pq.ParquetFile(file.path) as parquet:
            for group in range(parquet.num_row_groups):
                mask = pc.fill_null(wanted(parquet.read_row_group(group, list(columns))), False)
                if pc.any(mask).as_py():
                    rows = _with_kind(parquet.read_row_group(group).filter(mask), file.kind)
                    found.append(rows.select(EVENTS.names).cast(EVENTS))
    return pa.concat_tables(found).combine_chunks()


def _with_kind(rows: pa.Table, kind: str) -> pa.Table:
    """Adds the column that Delta keeps in the file's folder."""
    import pyarrow as pa

    return rows.append_column("kind", pa.repeat(pa.scalar(kind), rows.num_rows))
