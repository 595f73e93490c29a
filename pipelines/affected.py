"""Which groups new events touch, found by looking ids up and never by going through history.

A group is loaded whole or not at all, and everything that could move into it or out of it is loaded with it:

- the groups that the new ids are in already, because a copy may change which event stands;
- the prompts of new interactions, and the feedback that waits for them or for their sessions;
- the groups of what new feedback is about, or where feedback waits for the same;
- what feedback that no longer waits is about, which may name yet another group (hence the rounds);
- feedback about the sessions of all interactions loaded, because a session is known by them.

Retractions need nothing more: one counts only beside what it takes back, in the same group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from feedback.events import compared
from feedback.joining import PROMPT_KEYS, prompt_keys, waiting_group

from .groups_store.keys import GROUP, group_keys, hex_keys, id_keys, union
from .groups_store.segment import LOADED, STORED
from .groups_store.store import Store


@dataclass(frozen=True)
class Affected:
    """What has to be worked on.

    Attributes:
        events: In `LOADED`: the new ones and all that the store has in the groups.
        groups: (G,) S32: the groups that were loaded from the store.
        elsewhere: In `PROMPT_KEYS`: interactions and sessions that the events name and that are elsewhere.
    """

    events: pa.Table
    groups: np.ndarray
    elsewhere: pa.Table


def affected(store: Store, new: pa.Table, also: np.ndarray | None = None) -> Affected:
    """Loads what new events touch.

    Args:
        store: what the last build left.
        new: In `STORED`; interactions and feedback that are not in the store.
        also: (G,) S32: groups that are to be worked on as well.
    """
    loaded = np.zeros(0, GROUP)
    new = _with_keys(new.select(STORED.names).cast(STORED))
    tables = [new]
    wanted = union(_touched_by(store, new), also if also is not None else loaded)
    while len(wanted := np.setdiff1d(store.present(wanted), loaded)):
        events = store.events_of(wanted)
        tables.append(events)
        loaded = union(loaded, wanted)
        wanted = union(_named_by(store, events), _sessions_of(events))
    events = pa.concat_tables(tables)
    return Affected(events, loaded, _elsewhere(store, events, loaded))


def _of_kind(events: pa.Table, kind: str, *columns: str) -> pa.Table:
    """Some columns of the events of one kind: bodies are many times the rest, so they are only moved where read."""
    return events.select(columns).filter(pc.equal(events.column("kind"), kind))


def _with_keys(new: pa.Table) -> pa.Table:
    """New events in `LOADED`; the prompts of interactions are read once, here."""
    replies = pc.equal(new.column("kind"), "interaction").combine_chunks()
    keys = prompt_keys(new.filter(replies)).column("prompt_key").combine_chunks()
    found = pc.replace_with_mask(pa.nulls(new.num_rows, pa.string()), replies, keys)
    return new.append_column(LOADED.field("prompt_key"), found)


def _touched_by(store: Store, new: pa.Table) -> np.ndarray:
    """Keys of groups that new events belong to or are waited for in."""
    replies = _of_kind(new, "interaction", "event_id", "prompt_key")
    waited_for = [waiting_group("interaction", name) for name in replies["event_id"].unique().to_pylist()]
    return union(
        _own_groups(store, new),
        group_keys(replies["prompt_key"].to_pylist()),
        group_keys(waited_for),
        _sessions_of(new),
        _named_by(store, new),
    )


def _own_groups(store: Store, events: pa.Table) -> np.ndarray:
    return union(
        *(
            store.groups_of(id_keys(kind, _of_kind(events, kind, "event_id")["event_id"].to_pylist()))
            for kind in ("interaction", "feedback")
        )
    )


def _sessions_of(events: pa.Table) -> np.ndarray:
    """Groups of the feedback about sessions that these interactions are in."""
    sessions = _of_kind(events, "interaction", "session_id")["session_id"].drop_null().unique().to_pylist()
    return group_keys([waiting_group("session", name) for name in sessions])


def _named_by(store: Store, events: pa.Table) -> np.ndarray:
    """Groups of what feedback is about, and groups in which it may wait for that."""
    replies, sessions = _names(events)
    waiting = [waiting_group("interaction", name) for name in replies]
    waiting += [waiting_group("session", name) for name in sessions]
    return union(store.groups_of(id_keys("interaction", replies)), group_keys(waiting))


def _names(events: pa.Table) -> tuple[list[str], list[str]]:
    """Interactions that feedback is about or compares, and sessions that feedback alone is about."""
    signals = _of_kind(events, "feedback", "interaction_id", "session_id", "body")
    replies = set(signals["interaction_id"].drop_null().to_pylist())
    votes = signals.filter(pc.match_substring(signals["body"], '"kind":"vote"'))
    for text in votes["body"].to_pylist():
        body = orjson.loads(text)
        if body["kind"] == "vote":
            replies.update(compared(body["value"]))
    whole = signals.filter(pc.is_null(signals["interaction_id"]))
    return sorted(replies), sorted(set(whole["session_id"].drop_null().to_pylist()))


def _elsewhere(store: Store, events: pa.Table, loaded_groups: np.ndarray) -> pa.Table:
    """Interactions and sessions that the events name and that the store knows, without those loaded."""
    replies, sessions = _names(events)
    here = _of_kind(events, "interaction", "event_id")
    loaded = set(here["event_id"].to_pylist())
    replies = [name for name in replies if name not in loaded]
    groups = store.groups_of(id_keys("interaction", replies))
    known = groups != b""
    sessions = _picked(sessions, store.sessions_known(id_keys("session", sessions), without=loaded_groups))
    return pa.table(
        [
            pa.array([*_picked(replies, known), *[None] * len(sessions)], pa.string()),
            pa.array([*[None] * int(known.sum()), *sessions], pa.string()),
            pa.array([*hex_keys(groups[known]), *[None] * len(sessions)], pa.string()),
        ],
        schema=PROMPT_KEYS,
    )


def _picked(names: list[str], mask: np.ndarray) -> list[str]:
    return [name for name, wanted in zip(names, mask.tolist(), strict=True) if wanted]
