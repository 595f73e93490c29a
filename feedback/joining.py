"""From the raw event table to one where every event stands once and beside its prompt.

Both steps are pure functions of the set of events: neither the order nor the number of times an event arrived
changes what they keep.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from feedback.events import compared, prompt_key
from feedback.tables import EVENTS, fate_row, fates_table

KEYED: pa.Schema = EVENTS.append(pa.field("prompt_key", pa.string()))
"""`EVENTS` with the prompt key that groups them."""

PROMPT_KEYS: pa.Schema = pa.schema(
    [("interaction_id", pa.string()), ("session_id", pa.string()), ("prompt_key", pa.string())]
)
"""What `attach` needs to know of the interactions; small enough to hold for all of them."""


def dedupe(events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Keeps one of each event.

    Copies (same id, same digest) are duplicates. Of different events under one id the earliest by event time
    stands, then the one of smallest digest; the others become dead letters. Interactions and feedback have
    separate ids.

    Args:
        events: In `EVENTS`; complete as to ids: all rows of an id that is in it. May contain dead letters.

    Returns:
        The events that stand, sorted by kind and id, without dead letters; and the fates of all other rows.
    """
    kinds = events.column("kind")
    fates = _dead_letters(events.filter(pc.equal(kinds, "dead_letter")))
    events = events.filter(pc.is_in(kinds, pa.array(["interaction", "feedback"])))
    if events.num_rows == 0:
        return events, fates_table(fates)
    keys = ("kind", "event_id", "event_time", "digest", "ingest_time", "source", "partition", "offset")
    events = events.sort_by([(key, "ascending") for key in keys]).combine_chunks()
    first = ~_same_as_previous(events, "kind", "event_id")
    copy = _same_as_previous(events, "kind", "event_id", "digest")
    lost = events.filter(pa.array(~first)).select(["event_id", "kind", "digest"]).to_pylist()
    for row, is_copy in zip(lost, copy[~first], strict=True):
        if is_copy:
            fates.append(fate_row(**row, fate="duplicate", reason="same_event"))
        else:
            fates.append(fate_row(**row, fate="dead_letter", reason="conflicting_duplicate"))
    return events.filter(pa.array(first)), fates_table(fates)


def _dead_letters(events: pa.Table) -> list[dict[str, Any]]:
    rows = events.select(["event_id", "kind", "digest", "reason"]).to_pylist()
    return [fate_row(**row, fate="dead_letter") for row in rows]


def _same_as_previous(table: pa.Table, *columns: str) -> np.ndarray:
    """(N,) bool: row i equals row i-1 in all these columns."""
    same = np.ones(table.num_rows, dtype=bool)
    same[0] = False
    for name in columns:
        column = table.column(name)
        equal = pc.equal(column.slice(1), column.slice(0, table.num_rows - 1))
        same[1:] &= equal.to_numpy(zero_copy_only=False).astype(bool)
    return same


def prompt_keys(interactions: pa.Table) -> pa.Table:
    """Id, session and prompt key of each interaction, in `PROMPT_KEYS`."""
    keys = [prompt_key(orjson.loads(body)["prompt"]) for body in interactions.column("body").to_pylist()]
    ids = interactions.select(["interaction_id", "session_id"]).combine_chunks()
    return ids.append_column("prompt_key", pa.array(keys, pa.string())).cast(PROMPT_KEYS)


def attach(feedback: pa.Table, keys: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Gives each feedback the prompt key of what it is about.

    Args:
        feedback: In `EVENTS`, each id once.
        keys: In `PROMPT_KEYS`; of all interactions that there are.

    Returns:
        The feedback in `KEYED`, and the fates of what is left out: `waiting` for an interaction or session
        that has not arrived, `no_preference` for feedback about a whole session and for votes on replies to
        different prompts.
    """
    where = pc.index_in(feedback.column("interaction_id"), value_set=keys.column("interaction_id"))
    found = keys.column("prompt_key").take(where).to_pylist()
    reasons: list[str | None] = [None if key is not None else "orphan" for key in found]
    _settle_sessions(feedback, keys, reasons)
    _settle_votes(feedback, keys, reasons)
    joined = feedback.append_column("prompt_key", pa.array(found, pa.string()))
    keep = pa.array([reason is None for reason in reasons], pa.bool_())
    left = feedback.select(["event_id", "kind", "digest"]).filter(pc.invert(keep)).to_pylist()
    why = [reason for reason in reasons if reason is not None]
    fates = [
        fate_row(**row, fate="waiting" if reason in _WAITING else "no_preference", reason=reason)
        for row, reason in zip(left, why, strict=True)
    ]
    return joined.filter(keep), fates_table(fates)


_WAITING = ("orphan", "orphan_session")


def _settle_sessions(feedback: pa.Table, keys: pa.Table, reasons: list[str | None]) -> None:
    whole = pc.is_null(feedback.column("interaction_id"))
    known = pc.is_in(feedback.column("session_id"), value_set=keys.column("session_id"))
    for i, (is_whole, is_known) in enumerate(zip(whole.to_pylist(), known.to_pylist(), strict=True)):
        if is_whole:
            reasons[i] = "session_level" if is_known else "orphan_session"


def _settle_votes(feedback: pa.Table, keys: pa.Table, reasons: list[str | None]) -> None:
    # The pattern finds every vote and perhaps others, whose metadata looks like one: the body decides.
    maybe = pc.match_substring(feedback.column("body"), '"kind":"vote"').to_pylist()
    rows = [i for i, is_vote in enumerate(maybe) if is_vote and reasons[i] is None]
    if not rows:
        return
    by_id = dict(
        zip(keys.column("interaction_id").to_pylist(), keys.column("prompt_key").to_pylist(), strict=True)
    )
    for i, text in zip(rows, feedback.column("body").take(pa.array(rows)).to_pylist(), strict=True):
        body = orjson.loads(text)
        if body["kind"] != "vote":
            continue
        prompts = {by_id.get(reply_id) for reply_id in compared(body["value"])}
        if None in prompts:
            reasons[i] = "orphan"
        elif len(prompts) > 1:
            reasons[i] = "prompt_mismatch"


def join(interactions: pa.Table, feedback: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Puts every event beside its prompt: `attach` where all interactions are at hand.

    Args:
        interactions: In `EVENTS`, each id once.
        feedback: In `EVENTS`, each id once.

    Returns:
        Interactions and feedback in `KEYED`, and the fates of the feedback that is left out.
    """
    keys = prompt_keys(interactions)
    joined, fates = attach(feedback, keys)
    keyed = interactions.append_column("prompt_key", keys.column("prompt_key"))
    return pa.concat_tables([keyed.cast(KEYED), joined.cast(KEYED)]), fates
