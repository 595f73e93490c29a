"""The replies that were served to the people and prompts of a split, as a table for methods that learn from them.

Two passes: small columns of all events say which event stands for its id, which replies somebody spoke of and which
are drawn; then the bodies of those alone are read. At most `MOST` replies: all that somebody spoke of, if they fit, and
of the silent ones those whose content hash is smallest. `kept_share` says which share of its sort a row stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from palate.context import Context

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from feedback.next_message import Said
    from feedback.preferences import PreferConfig
    from feedback.splits import Split
    from pipelines.dataset import Dataset

MOST = 50_000
"""So many replies at most are read; each is held with all of its prompt."""


@dataclass(frozen=True)
class Look:
    """What was served, and what was not looked at."""

    table: pa.Table
    """In `SERVED`."""
    left_out: dict[str, int]
    """Interactions left out, by reason: nothing disappears unseen."""


def served(
    context: Context, dataset: Dataset, split: Split = "train", *, silenced: Collection[str] = ()
) -> pa.Table:
    """`look`, the table alone."""
    return look(context, dataset, split, silenced=silenced).table


def look(
    context: Context,
    dataset: Dataset,
    split: Split = "train",
    *,
    silenced: Collection[str] = (),
    most: int = MOST,
) -> Look:
    """Replies whose person and prompt fall in a split, and what their users did.

    Args:
        context: the project.
        dataset: whose events, and whose held-out prompts nothing may nearly repeat.
        split: train, evaluation or test.
        silenced: people whose signals are not heard, as those who act together (`palate.learn.heard`).
        most: how many replies are read at most.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from feedback.served import SERVED, Rules, served_table
    from palate.exposure import events_of

    events = events_of(context, dataset)
    if events is None:
        return Look(SERVED.empty_table(), {})
    prefer = context.project.prefer
    replies, signals = _standing(events, "interaction"), _standing(events, "feedback")
    ours = replies.filter(pa.array(_of_split(replies, prefer, split)))
    chosen, shares = _drawn(ours, _spoken_of(dataset, signals, split), most)
    bodies = _bodies(events, "interaction", chosen["digest"])
    about = signals.filter(pc.is_in(signals["interaction_id"], value_set=_whole(chosen["interaction_id"])))
    table, left_out = served_table(
        bodies,
        _bodies(events, "feedback", about["digest"]),
        Rules(frozenset(prefer.actors), prefer.split, prefer.pii, split, frozenset(silenced)),
        said_next=_said_next(events, ours, bodies, prefer, split),
        shares=dict(zip(chosen["interaction_id"].to_pylist(), shares.tolist(), strict=True)),
    )
    apart = table.filter(pa.array(_apart(table, dataset, prefer, split)))
    counts = {
        **left_out,
        "another_split": left_out.get("another_split", 0) + replies.num_rows - ours.num_rows,
        "over_maximum": ours.num_rows - chosen.num_rows,
        "near_heldout_prompt": table.num_rows - apart.num_rows,
    }
    return Look(apart, {reason: count for reason, count in sorted(counts.items()) if count})


_SMALL = ("event_id", "event_time", "digest", "ingest_time", "source", "partition", "offset")


def _standing(events: DeltaTable, kind: str) -> pa.Table:
    """The events that stand for their ids, without their bodies; see `feedback.joining.rank_copies`."""
    import pyarrow as pa

    from feedback.joining import rank_copies

    columns = [*_SMALL, "interaction_id", "session_id", "user_id"]
    table = pa.concat_tables(
        [_schema(columns).empty_table(), *_groups(events, kind, columns, lambda rows: rows)]
    )
    ranked = rank_copies(table.append_column("kind", pa.repeat(pa.scalar(kind), table.num_rows)))
    return ranked.events.filter(pa.array(ranked.stands))


def _groups(
    events: DeltaTable, kind: str, columns: list[str], keep: Callable[[pa.Table], pa.Table]
) -> Iterator[pa.Table]:
    """One row group after the other: some columns of events of a kind, and of these what is kept."""
    import pyarrow.parquet as pq

    from pipelines import events_table

    for file in events_table.files(events):
        if file.kind == kind:
            with pq.ParquetFile(file.path) as parquet:
                for number in range(parquet.num_row_groups):
                    rows = keep(parquet.read_row_group(number, columns).select(columns))
                    yield rows.cast(_schema(columns))


def _schema(columns: list[str]) -> pa.Schema:
    import pyarrow as pa

    from feedback.tables import EVENTS

    return pa.schema([EVENTS.field(name) for name in columns])


def _bodies(events: DeltaTable, kind: str, digests: pa.ChunkedArray) -> pa.Table:
    """The events of these digests, each once, with their bodies."""
    import pyarrow as pa

    columns = ["interaction_id", "digest", "event_time", "body"]
    table = pa.concat_tables([_schema(columns).empty_table(), *_with_digest(events, kind, columns, digests)])
    _, places = np.unique(table["digest"].to_numpy(), return_index=True)  # copies have the same digest
    return table.take(pa.array(np.sort(places)))


def _with_digest(
    events: DeltaTable, kind: str, columns: list[str], digests: pa.ChunkedArray
) -> Iterator[pa.Table]:
    import pyarrow.compute as pc

    wanted = _whole(digests)
    return _groups(
        events, kind, columns, lambda rows: rows.filter(pc.is_in(rows["digest"], value_set=wanted))
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _of_split(replies: pa.Table, prefer: PreferConfig, split: Split) -> np.ndarray:
    """(N,) bool: whether the person may be in the split; of the prompt the body tells."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from feedback.splits import user_split

    people = replies["user_id"].unique().to_pylist()
    fit = pa.array([each for each in people if user_split(each, prefer.split) in (None, split)], pa.string())
    return pc.is_in(replies["user_id"], value_set=fit).to_numpy(zero_copy_only=False).astype(bool)


def _spoken_of(dataset: Dataset, signals: pa.Table, split: Split) -> pa.Array:
    """Ids of the interactions that signals name, or that are evidence of the split's preference rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    evidence = pc.list_flatten(dataset.rows(split, columns=["evidence"])["evidence"])
    named = [*signals["interaction_id"].chunks, *evidence.cast(pa.string()).chunks]
    return pc.drop_null(pa.chunked_array(named, pa.string()).unique())


def _drawn(ours: pa.Table, spoken_of: pa.Array, most: int) -> tuple[pa.Table, np.ndarray]:
    """At most `most` replies: first those somebody spoke of, then by digest; and which share of its sort each is of.

    Returns:
        The rows, and (n,) float in (0, 1].
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    spoken = pc.is_in(ours["interaction_id"], value_set=spoken_of).to_numpy(zero_copy_only=False).astype(bool)
    by_digest = pc.sort_indices(ours, [("digest", "ascending")]).to_numpy()
    by_sort = by_digest[spoken[by_digest]], by_digest[~spoken[by_digest]]
    chosen = np.concatenate(by_sort)[:most]
    loud, silent = (np.mean(np.isin(rows, chosen)) if len(rows) else 1.0 for rows in by_sort)
    return ours.take(pa.array(chosen)), np.where(spoken[chosen], loud, silent)


def _said_next(
    events: DeltaTable, ours: pa.Table, bodies: pa.Table, prefer: PreferConfig, split: Split
) -> dict[str, Said]:
    """What was written after these replies, as the next interactions of their sessions tell it."""
    import pyarrow.compute as pc

    from feedback.next_message import ends, first, said_next

    ended = ends(bodies)
    here = pc.is_in(ours["interaction_id"], value_set=_whole(bodies["interaction_id"]))
    sessions = pc.drop_null(ours.filter(here)["session_id"].unique())
    same = ours.filter(pc.is_in(ours["session_id"], value_set=sessions))
    # By row group, as the sessions of a sample may be nearly all there are.
    told = (
        pair
        for rows in _with_digest(events, "interaction", ["digest", "event_time", "body"], same["digest"])
        for pair in said_next(rows, ended, prefer.split, split)
    )
    return first(told)


def _apart(table: pa.Table, dataset: Dataset, prefer: PreferConfig, split: Split) -> np.ndarray:
    """(N,) bool: whether a prompt is no near-duplicate of one of a later split that has preference rows.

    What is trained on must not be, in other words, what judges; so it is looked for here as it is in a build.
    """
    import orjson
    import pyarrow as pa
    import pyarrow.compute as pc

    from feedback.events import prompt_text
    from feedback.hygiene import near_duplicates

    later = {"train": ("evaluation", "test"), "evaluation": ("test",), "test": ()}[split]
    heldout = {prompt_text(p) for name in later for p in _prompts(dataset, name)}
    settings, keys = prefer.near_duplicates, table["prompt_key"].combine_chunks().unique()
    if not settings.enabled or not heldout or not len(keys):
        return np.ones(table.num_rows, dtype=bool)
    places = pc.index_in(keys, value_set=_whole(table["prompt_key"]))
    texts = [prompt_text(orjson.loads(text)) for text in table["prompt"].take(places).to_pylist()]
    theirs, ours = (near_duplicates.signatures(t, settings.num_perm) for t in (sorted(heldout), texts))
    shared = np.isin(near_duplicates.bands(ours, settings), near_duplicates.bands(theirs, settings)).any(
        axis=1
    )
    needed = settings.threshold * settings.num_perm
    near = [int(i) for i in np.flatnonzero(shared) if ((theirs == ours[i]).sum(axis=1) >= needed).any()]
    dropped = pc.is_in(table["prompt_key"], value_set=keys.take(pa.array(near, pa.int64())))
    return ~dropped.to_numpy(zero_copy_only=False).astype(bool)


def _prompts(dataset: Dataset, split: str) -> list[list[dict[str, str]]]:
    """The prompts of a split's preference rows, each key once."""
    import pyarrow.compute as pc

    rows = dataset.rows(split, columns=["prompt", "prompt_key"])
    keys = _whole(rows["prompt_key"])
    found: list[list[dict[str, str]]] = (
        rows["prompt"].take(pc.index_in(keys.unique(), value_set=keys)).to_pylist()
    )
    return found
