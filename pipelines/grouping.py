"""From events to parts of a segment: which row stands, which group it is in, what became of it.

Pure functions over tables in memory. A small build calls them once for all its events, a large one once for
each shard of a Beam pipeline; the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from feedback.events import prompt_text
from feedback.joining import PROMPT_KEYS, Ranked, locate, prompt_keys, rank_copies
from feedback.preferences import PreferConfig, judge
from feedback.tables import Fate

from .garbage import uncollected
from .groups_store.segment import STORED
from .groups_store.write import DECIDED, PROMPTS, Part

GROUPED: pa.Schema = pa.schema([field for field in DECIDED if field.name != "preference_ids"])
"""Events with their group; `fate` and `reason` only where they are settled without looking at the group."""


def group(
    ranked: Ranked, groups: Sequence[str], fates: Sequence[Fate | None], reasons: Sequence[str | None]
) -> pa.Table:
    """Gives every row the group of the one that stands for its id.

    Args:
        ranked: Events of one kind.
        groups: The group of each event that stands, in their order; likewise fates and reasons.

    Returns:
        In `GROUPED`.
    """
    number = pa.array(np.cumsum(ranked.stands) - 1)  # which of the events that stand each row belongs to
    lost_fates, lost_reasons = ranked.lost_fates()
    columns = [
        *(ranked.events.column(name) for name in STORED.names),
        pa.array(groups, pa.string()).take(number),
        pc.coalesce(lost_fates, pa.array(fates, pa.string()).take(number)),
        pc.coalesce(lost_reasons, pa.array(reasons, pa.string()).take(number)),
    ]
    return pa.table(columns, names=GROUPED.names).cast(GROUPED)


def group_interactions(events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Interactions in `GROUPED`, and those that stand in `PROMPT_KEYS`."""
    ranked = rank_copies(events)
    keys = prompt_keys(ranked.events.filter(pa.array(ranked.stands)))
    nothing = [None] * keys.num_rows
    return group(ranked, keys["prompt_key"].to_pylist(), nothing, nothing), keys


def group_feedback(events: pa.Table, keys: pa.Table) -> pa.Table:
    """Feedback in `GROUPED`; `keys` as in `feedback.joining.locate`."""
    ranked = rank_copies(events)
    at = locate(ranked.events.filter(pa.array(ranked.stands)), keys)
    return group(ranked, at.groups, at.fates, at.reasons)


def group_all(events: pa.Table, elsewhere: pa.Table) -> pa.Table:
    """Interactions and feedback together.

    Args:
        events: In `STORED` or `LOADED`; all copies of each id, and all that is known of the groups they are in.
        elsewhere: In `PROMPT_KEYS`; what the feedback names and is not among the events.
    """
    kinds = events.column("kind")
    replies, keys = group_interactions(events.filter(pc.equal(kinds, "interaction")))
    signals = group_feedback(
        events.filter(pc.equal(kinds, "feedback")), pa.concat_tables([keys, elsewhere.cast(PROMPT_KEYS)])
    )
    return pa.concat_tables([replies, signals])


def decide(grouped: pa.Table, config: PreferConfig) -> Part:
    """Judges whole groups.

    Args:
        grouped: In `GROUPED`; all events of each group that is in it.
        config: What counts as a preference.
    """
    keys = ("group", "kind", "event_id", "fate", "digest", "partition", "offset")
    order = pc.sort_indices(grouped.select(keys), [(key, "ascending") for key in keys])
    grouped = grouped.take(order)
    open_ = pc.is_null(grouped["fate"])
    standing = grouped.filter(open_).rename_columns({"group": "prompt_key"})
    with uncollected():
        judged = judge(standing, config)
    places = pa.array(np.cumsum(open_.to_numpy(zero_copy_only=False)) - 1)
    places = pc.if_else(open_, places, pa.scalar(None, pa.int64()))
    decided = [
        *(grouped.column(name) for name in (*STORED.names, "group")),
        pc.coalesce(grouped["fate"], pa.array(judged.fates, pa.string()).take(places)),
        pc.coalesce(grouped["reason"], pa.array(judged.reasons, pa.string()).take(places)),
        pa.array(judged.preference_ids, pa.list_(pa.string())).take(places),
    ]
    events = pa.table(decided, names=DECIDED.names).cast(DECIDED)
    return Part(events, judged.rows, _texts(standing, judged.rows))


def _texts(standing: pa.Table, rows: pa.Table) -> pa.Table:
    """The texts of the prompts that have rows, in `PROMPTS`."""
    if rows.num_rows == 0:
        return PROMPTS.empty_table()
    replies = standing.filter(pc.equal(standing["kind"], "interaction"))
    wanted = rows["prompt_key"].combine_chunks().unique()
    first = pc.index_in(wanted, value_set=replies["prompt_key"].combine_chunks())
    bodies = replies["body"].take(first).to_pylist()
    texts = [prompt_text(orjson.loads(body)["prompt"]) for body in bodies]
    return pa.table([wanted, pa.array(texts, pa.string())], schema=PROMPTS)
