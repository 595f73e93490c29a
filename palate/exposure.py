"""What was served to the people of a split, whether anybody said anything about it or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from palate.context import Context

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from pipelines.dataset import Dataset
    from reward_models.labels import Exposure

MOST = 100_000
"""So many silent interactions at most are looked at; of more, a sample by the hash of their content."""
_KINDS = ("thumb", "rating", "vote", "edit", "accept", "reject")
_EXPLICIT = f'"kind":"({"|".join(_KINDS)})"'
"""Every explicit signal's canonical body has it; a few others may, in their metadata."""


def served(context: Context, dataset: Dataset, split: str) -> Exposure | None:
    """The interactions of a split's people and prompts, and which of them somebody rated; None without any.

    Args:
        context: the project.
        dataset: whose events.
        split: train, evaluation or test.
    """
    import numpy as np

    from reward_models.labels import Exposure
    from reward_models.rating_propensity import Served, known_when_served

    table = events_of(context, dataset)
    if table is None:
        return None
    rated = _rated(context, table)
    found, share = _replies(context, table, rated)
    use = "train" if split == "train" else "evaluate"
    replies = [reply for reply in found if use in reply.uses and _in_split(context, reply, split)]
    if not replies:
        return None
    users = np.array([reply.user for reply in replies], dtype=object)
    together = [reply.user or reply.session or reply.id for reply in replies]
    return Exposure(
        [reply.id for reply in replies],
        Served(
            users,
            np.array([reply.agent for reply in replies], dtype=object),
            known_when_served([reply.asked for reply in replies], [reply.text for reply in replies]),
            np.array([reply.id in rated for reply in replies], dtype=bool),
            together=np.array(together, dtype=object),
            silent_share=share,
        ),
    )


def events_of(context: Context, dataset: Dataset) -> DeltaTable | None:
    """The events the dataset was built from; as they are now where that version was vacuumed."""
    from deltalake.exceptions import DeltaError

    from pipelines import events_table
    from pipelines.workspace import Layout

    layout = Layout(context.project.dir)
    if not events_table.exists(layout):
        return None
    try:
        table = events_table.open_table(layout, dataset.manifest.get("events_version"))
        if all(file.path.is_file() for file in events_table.files(table)):
            return table
    except DeltaError:
        pass
    return events_table.open_table(layout)


def _rated(context: Context, table: DeltaTable) -> set[str]:
    """Interactions that somebody gave an explicit verdict on; of a vote, all that it compares."""
    import orjson
    import pyarrow.compute as pc

    from feedback.events import compared
    from pipelines import lookup
    from pipelines.workspace import Layout

    def explicit(rows: pa.Table) -> pa.Array:
        return pc.match_substring_regex(rows["body"], _EXPLICIT)

    found = lookup.find(
        Layout(context.project.dir), explicit, columns=["body"], kinds={"feedback"}, table=table
    )
    named: dict[str, list[str]] = {}
    taken_back: set[str] = set()
    for body in found["body"].to_pylist():
        signal = orjson.loads(body)
        if signal.get("retracts") is not None:
            taken_back.add(signal["retracts"])
        elif signal["kind"] in _KINDS and signal["actor"] in context.project.prefer.actors:
            about = compared(signal["value"]) if signal["kind"] == "vote" else [signal.get("interaction_id")]
            named[signal["feedback_id"]] = [one for one in about if one is not None]
    return {one for key, about in named.items() if key not in taken_back for one in about}


class _Reply(NamedTuple):
    id: str
    user: str | None
    session: str | None
    agent: str | None
    asked: str
    text: str
    prompt_key: str
    uses: tuple[str, ...]


def _replies(context: Context, table: DeltaTable, rated: set[str]) -> tuple[list[_Reply], float]:
    """Each rated interaction once and a sample of the silent ones; which share of the silent ones that is."""
    import orjson
    import pyarrow as pa
    import pyarrow.compute as pc

    from feedback.events import prompt_key
    from pipelines import events_table, lookup
    from pipelines.workspace import Layout
    from reward_models.representation import last_user_message

    count = sum(file.rows for file in events_table.files(table) if file.kind == "interaction")
    share = min(1.0, MOST / max(count, 1))
    threshold = f"{min(2**64 - 1, int(2**64 * share)):016x}"
    wanted = pa.array(sorted(rated), pa.string())

    def sampled(rows: pa.Table) -> pa.Array:
        drawn = pc.less_equal(pc.utf8_slice_codeunits(rows["digest"], 0, 16), pa.scalar(threshold))
        return pc.or_(drawn, pc.is_in(rows["interaction_id"], wanted))

    found = lookup.find(
        Layout(context.project.dir),
        sampled,
        columns=["digest", "interaction_id"],
        kinds={"interaction"},
        table=table,
    )
    replies: dict[str, _Reply] = {}
    for body in found["body"].to_pylist():
        reply = orjson.loads(body)
        replies[reply["interaction_id"]] = _Reply(
            reply["interaction_id"],
            reply.get("user_id"),
            reply.get("session_id"),
            reply.get("agent"),
            last_user_message(reply["prompt"]),
            reply["completion"]["content"],
            prompt_key(reply["prompt"]),
            tuple(reply["uses"]),
        )
    return [replies[key] for key in sorted(replies)], share


def _in_split(context: Context, reply: _Reply, split: str) -> bool:
    """Whether a row made of this reply alone would fall in the split."""
    from feedback.splits import row_split

    return row_split([reply.user], reply.prompt_key, context.project.prefer.split) == split
