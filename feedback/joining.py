"""From the raw event table to one where every event stands once and beside its prompt.

Both steps are pure functions of the set of events: neither the order nor the number of times an event arrived
changes what they keep.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from feedback.events import compared, folded, key_of_text
from feedback.tables import EVENTS, Fate, fates_table

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
    dead = events.filter(pc.equal(events.column("kind"), "dead_letter"))
    ranked = rank_copies(events)
    lost = ranked.events.filter(pa.array(~ranked.stands))
    fates, reasons = ranked.lost_fates()
    refused = fates_table(dead, "dead_letter", dead.column("reason"))
    lost_fates = fates_table(
        lost, fates.filter(pa.array(~ranked.stands)), reasons.filter(pa.array(~ranked.stands))
    )
    return ranked.events.filter(pa.array(ranked.stands)), pa.concat_tables([refused, lost_fates])


@dataclass(frozen=True)
class Ranked:
    """Events sorted so that all rows of one id are together, the one that stands first.

    Attributes:
        events: Interactions and feedback.
        stands: (N,) bool; whether the row is the event of its id.
        copy: (N,) bool; whether the row says the same as the row before it.
    """

    events: pa.Table
    stands: np.ndarray
    copy: np.ndarray

    def winners(self) -> np.ndarray:
        """(N,) int64: for each row, which row is the event of its id."""
        return np.maximum.accumulate(np.where(self.stands, np.arange(len(self.stands)), 0))

    def lost_fates(self) -> tuple[pa.Array, pa.Array]:
        """Fate and reason of each row that does not stand; null for the others."""
        fates = np.where(self.copy, "duplicate", "dead_letter")
        reasons = np.where(self.copy, "same_event", "conflicting_duplicate")
        mask = self.stands
        return pa.array(fates, pa.string(), mask=mask), pa.array(reasons, pa.string(), mask=mask)


_RANKED_BY = ("kind", "event_id", "event_time", "digest", "ingest_time", "source", "partition", "offset")


def rank_copies(events: pa.Table) -> Ranked:
    """Decides which row of each id stands; see `dedupe`, which leaves the others out."""
    events = events.filter(pc.is_in(events.column("kind"), pa.array(["interaction", "feedback"])))
    if events.num_rows == 0:
        nothing = np.zeros(0, dtype=bool)
        return Ranked(events, nothing, nothing)
    # Payloads are moved once, by the order that the small columns give.
    order = pc.sort_indices(events.select(_RANKED_BY), [(key, "ascending") for key in _RANKED_BY])
    events = events.take(order).combine_chunks()
    stands = ~_same_as_previous(events, "kind", "event_id")
    return Ranked(events, stands, _same_as_previous(events, "kind", "event_id", "digest"))


def lost_copies(events: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Fate and reason of each row that does not stand for its id, null for the others; see `dedupe`.

    Args:
        events: Interactions and feedback, in any order, which is kept.
    """
    rows = pa.array(np.arange(events.num_rows))
    ranked = rank_copies(events.select(_RANKED_BY).append_column("row", rows))
    places = pa.array(np.argsort(ranked.events["row"].to_numpy()))
    fates, reasons = ranked.lost_fates()
    return fates.take(places), reasons.take(places)


def _same_as_previous(table: pa.Table, *columns: str) -> np.ndarray:
    """(N,) bool: row i equals row i-1 in all these columns."""
    same = np.ones(table.num_rows, dtype=bool)
    same[0] = False
    for name in columns:
        column = table.column(name)
        equal = pc.equal(column.slice(1), column.slice(0, table.num_rows - 1))
        same[1:] &= equal.to_numpy(zero_copy_only=False).astype(bool)
    return same


class _Said(msgspec.Struct, gc=False):
    role: str
    content: str


class _Prompted(msgspec.Struct, gc=False):
    """The part of an interaction's body that its key needs; the rest is passed over and not built."""

    prompt: list[_Said]


_decode = msgspec.json.Decoder(_Prompted).decode


def _first(prompt: list[_Said]) -> str:
    """What `prompt_text` looks at, without a dictionary for each message."""
    return next((said.content for said in prompt if said.role == "user"), prompt[0].content)


def prompt_keys(interactions: pa.Table) -> pa.Table:
    """Id, session and prompt key of each interaction, in `PROMPT_KEYS`.

    A column `prompt_key` says which are known already; only the others' bodies are read.
    """
    ids = interactions.select(["interaction_id", "session_id"]).combine_chunks()
    if "prompt_key" in interactions.column_names:
        known = interactions.column("prompt_key").combine_chunks()
    else:
        known = pa.nulls(interactions.num_rows, pa.string())
    unknown = known.is_null()
    bodies = interactions.column("body").filter(unknown).cast(pa.binary()).to_pylist()
    keys = pa.array([key_of_text(folded(_first(_decode(body).prompt))) for body in bodies], pa.string())
    return ids.append_column("prompt_key", pc.replace_with_mask(known, unknown, keys)).cast(PROMPT_KEYS)


def waiting_group(what: Literal["interaction", "session"], missing: str) -> str:
    """The key under which feedback waits for an interaction or a session; shaped like a prompt key."""
    return hashlib.sha256(f"waiting\0{what}\0{missing}".encode()).hexdigest()


@dataclass(frozen=True)
class Located:
    """Where each feedback belongs.

    Attributes:
        groups: The prompt key, or the key of what it waits for.
        fates: None for feedback that stands beside its prompt; else its fate.
        reasons: Why, likewise.
    """

    groups: list[str]
    fates: list[Fate | None]
    reasons: list[str | None]


def locate(feedback: pa.Table, keys: pa.Table) -> Located:
    """Finds the prompt of each feedback, or what it waits for.

    Args:
        feedback: In `EVENTS`, each id once.
        keys: In `PROMPT_KEYS`; of all interactions that the feedback names, and of all sessions.
    """
    where = pc.index_in(feedback.column("interaction_id"), value_set=_values(keys, "interaction_id"))
    found = keys.column("prompt_key").take(where).to_pylist()
    fates: list[Fate | None] = [None] * len(found)
    reasons: list[str | None] = [None] * len(found)
    for i in _rows(pc.is_null(where)):
        missing = feedback.column("interaction_id")[i].as_py()
        found[i], fates[i], reasons[i] = waiting_group("interaction", missing or ""), "waiting", "orphan"
    _settle_sessions(feedback, keys, found, fates, reasons)
    _settle_votes(feedback, keys, found, fates, reasons)
    return Located(found, fates, reasons)


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
    at = locate(feedback, keys)
    fates, reasons = pa.array(at.fates, pa.string()), pa.array(at.reasons, pa.string())
    joined = feedback.append_column("prompt_key", pa.array(at.groups, pa.string()))
    left = pc.is_valid(fates)
    return joined.filter(pc.is_null(fates)), fates_table(
        feedback.filter(left), fates.filter(left), reasons.filter(left)
    )


def _values(table: pa.Table, column: str) -> pa.Array:
    return table.column(column).combine_chunks()


def _rows(mask: pa.ChunkedArray) -> list[int]:
    """Numbers of the rows where a mask is true."""
    rows: list[int] = np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()
    return rows


def _settle_sessions(
    feedback: pa.Table,
    keys: pa.Table,
    groups: list[str],
    fates: list[Fate | None],
    reasons: list[str | None],
) -> None:
    whole = _rows(pc.is_null(feedback.column("interaction_id")))
    if not whole:
        return
    sessions = feedback.column("session_id").take(pa.array(whole))
    known = pc.is_in(sessions, value_set=_values(keys, "session_id")).to_pylist()
    for i, session, is_known in zip(whole, sessions.to_pylist(), known, strict=True):
        # It stays with what else is said about the session, because the session can become unknown again:
        # when an earlier event under the same id turns out to be the one that stands.
        groups[i] = waiting_group("session", session)
        fates[i], reasons[i] = (
            ("no_preference", "session_level") if is_known else ("waiting", "orphan_session")
        )


def _settle_votes(
    feedback: pa.Table,
    keys: pa.Table,
    groups: list[str],
    fates: list[Fate | None],
    reasons: list[str | None],
) -> None:
    # The pattern finds every vote and perhaps others, whose metadata looks like one: the body decides.
    maybe = _rows(pc.match_substring(feedback.column("body"), '"kind":"vote"'))
    rows = [i for i in maybe if fates[i] is None]
    if not rows:
        return
    votes: dict[int, list[str]] = {}
    for i, text in zip(rows, feedback.column("body").take(pa.array(rows)).to_pylist(), strict=True):
        body = orjson.loads(text)
        if body["kind"] == "vote":
            votes[i] = compared(body["value"])
    names = pa.array(sorted({name for among in votes.values() for name in among}), pa.string())
    where = pc.index_in(names, value_set=_values(keys, "interaction_id"))
    prompts = keys.column("prompt_key").take(where)
    by_id = dict(zip(names.to_pylist(), prompts.to_pylist(), strict=True))
    for i, among in votes.items():
        missing = sorted(name for name in among if by_id[name] is None)
        if missing:  # it waits for one of them, then for the next
            groups[i] = waiting_group("interaction", missing[0])
            fates[i], reasons[i] = "waiting", "orphan"
        elif len({by_id[name] for name in among}) > 1:
            fates[i], reasons[i] = "no_preference", "prompt_mismatch"


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
