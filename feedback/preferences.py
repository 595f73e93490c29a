"""Preferences from events: `dedupe`, `join`, `prefer`, each a pure function over Arrow tables.

Every event that goes in comes out with exactly one fate, and the rows depend on the set of events only: not
on their order, on copies, or on how they are divided into batches, as long as all events of one prompt key
are together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from feedback.admission import Admission
from feedback.groups import Group, Reply, Signal, reply_of, settle, signal_of
from feedback.hygiene.near_duplicates import NearDuplicateConfig
from feedback.hygiene.pii import PiiConfig
from feedback.joining import KEYED, attach, dedupe, join, prompt_keys
from feedback.rules import Proposal, Rule, Skip, load
from feedback.splits import SplitConfig
from feedback.tables import PREFERENCES, Fate, fates_table, times_of

__all__ = ["KEYED", "REASONS", "PreferConfig", "attach", "dedupe", "join", "judge", "prefer", "prompt_keys"]

REASONS: dict[str, str] = {
    "consent_train": "its row falls in train, and an interaction in it is not free for that",
    "consent_evaluate": "its row falls in evaluation or test, and an interaction in it is not free for that",
    "no_consent": "the interaction may be used for nothing",
    "orphan": "the interaction has not arrived",
    "orphan_session": "the session has not arrived",
    "retracts_unknown": "what it takes back has not arrived",
    "retraction": "it took another signal back",
    "retracted": "it was taken back",
    "retraction_by_another": "it would take back what somebody else said, or about another reply",
    "retraction_cycle": "retractions that retract each other",
    "superseded": "the same person said something newer about the same",
    "actor_excluded": "it comes from an actor that the configuration leaves out",
    "prompt_mismatch": "it compares replies to different prompts",
    "near_duplicate": "its prompt is nearly the same as another one, which is held out or stands for both",
    "split_conflict": "its prompt and users fall in different splits",
    "same_text": "chosen and rejected are the same text",
    "tie": "a tie, and the configuration makes no rows from ties",
    "below_margin": "the ratings are too close",
    "cancelled_out": "as many liked it as disliked it",
    "weight_zero": "the configuration gives its kind no weight",
    "empty_text": "the edit left nothing",
    "anonymous": "the rule compares what one person said, and this person has no id",
    "not_the_asker": "a retry by somebody who had not asked",
    "no_later_reply": "no later reply that was kept",
    "no_counterpart": "nothing to compare it with",
    "says_nothing": "a next message that says neither thanks nor complaint",
    "no_rule": "no rule reads this kind",
    "session_level": "it is about a whole session, which no rule reads",
    "feedback_made_no_row": "an interaction whose feedback made no row",
    "no_feedback": "an interaction that nobody said anything about; silence is not a dislike",
}
"""Why an event that arrived whole is in no row, strongest reason first; of several the first is told."""

_RANK = {reason: rank for rank, reason in enumerate(REASONS)}
_WITHHELD = {"consent_train", "consent_evaluate", "no_consent"}
_WAITING = {"orphan", "orphan_session", "retracts_unknown"}


class PreferConfig(BaseModel):
    """What counts as a preference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rules: tuple[str, ...] = (
        "vote", "thumbs", "edit", "retry", "rating", "unpaired", "copy", "share", "next_message",
    )  # fmt: skip
    """Rules to apply, by name or as module:object."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of rules, by the rule's name; what each has is in its own Config."""
    actors: tuple[Literal["user", "rater", "judge", "code"], ...] = ("user", "rater")
    """Whose signals count; by default people's only."""
    split: SplitConfig = SplitConfig()
    """What is held out."""
    pii: PiiConfig = PiiConfig()
    """Which personal data is replaced in the texts of rows."""
    near_duplicates: NearDuplicateConfig = NearDuplicateConfig()
    """Which prompts count as nearly the same, so that one of them is left out."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if strangers := sorted(set(self.options) - set(self.rules)):
            raise ValueError(f"options for rules that are not applied: {', '.join(strangers)}")
        if len(set(self.rules)) != len(self.rules):
            raise ValueError("a rule is named twice")
        for name, rule in self.loaded():
            rule.Config.model_validate(self.options.get(name, {}))
        return self

    def loaded(self) -> list[tuple[str, Rule]]:
        """The rules, by name; sorted, because their order must not matter."""
        return [(name, load(name)) for name in sorted(self.rules)]


@dataclass(frozen=True)
class Judged:
    """What became of some events.

    Attributes:
        rows: In `PREFERENCES`, sorted by `preference_id`.
        fates: One for each event, in the order of the events.
        reasons: Likewise; None for an event that is in a row.
        preference_ids: Likewise; sorted ids of the rows that the event is in.
    """

    rows: pa.Table
    fates: list[Fate]
    reasons: list[str | None]
    preference_ids: list[list[str]]


def prefer(events: pa.Table, config: PreferConfig) -> tuple[pa.Table, pa.Table]:
    """Reads preferences from events.

    Args:
        events: In `KEYED`, as `join` gives them: each event once, all events of a prompt key together.
        config: What counts.

    Returns:
        Rows in `PREFERENCES` sorted by `preference_id`, and in `FATES` one fate for each event.
    """
    judged = judge(events, config)
    columns = (
        pa.array(judged.fates, pa.string()),
        pa.array(judged.reasons, pa.string()),
        pa.array(judged.preference_ids, pa.list_(pa.string())),
    )
    return judged.rows, fates_table(events, *columns)


def judge(events: pa.Table, config: PreferConfig) -> Judged:
    """The work of `prefer`, with the fates in the order of the events and not yet in a table."""
    rules = [(n, rule, rule.Config.model_validate(config.options.get(n, {}))) for n, rule in config.loaded()]
    actors = frozenset(config.actors)
    read = frozenset().union(*(rule.KINDS for _, rule, _ in rules))
    judged = Judged(PREFERENCES.empty_table(), *_without_feedback(events))
    rows: dict[str, dict[str, Any]] = {}
    for key, replies, signals in _by_prompt(events):
        group = settle(key, replies.values(), signals.values(), actors)
        heard = {signal.kind for signal in group.signals}
        admission = Admission(group, config.split, config.pii)
        ledger = _Ledger(group)
        for name, rule, options in rules:
            if heard.isdisjoint(rule.KINDS):
                continue
            for item in rule.propose(group, options):
                if isinstance(item, Skip):
                    ledger.reasons[item.signal.id].add(item.reason)
                    continue
                ledger.record(item, admission.row(item, name), rows)
        for at, fate, reason, made in ledger.fates(replies, signals, read):
            judged.fates[at], judged.reasons[at], judged.preference_ids[at] = fate, reason, made
    return replace(judged, rows=_rows_table(rows))


def _without_feedback(events: pa.Table) -> tuple[list[Fate], list[str | None], list[list[str]]]:
    """The fates of all events as if nobody had said anything: from columns, for most events have none."""
    fates: list[Fate] = ["no_preference"] * events.num_rows
    reasons: list[str | None] = ["no_feedback"] * events.num_rows
    # The pattern finds every body that allows nothing and perhaps others with such metadata.
    maybe = pc.match_substring(events.column("body"), '"uses":[]').to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(maybe).tolist():
        if orjson.loads(events.column("body")[at].as_py()).get("uses") == []:
            fates[at], reasons[at] = "withheld", "no_consent"
    return fates, reasons, [[]] * events.num_rows


def _by_prompt(events: pa.Table) -> Iterator[tuple[str, dict[int, Reply], dict[int, Signal]]]:
    """The groups in which there is feedback: replies and signals by their row."""
    keys = events.column("prompt_key")
    is_signal = pc.equal(events.column("kind"), "feedback")
    loud = pc.is_in(keys, value_set=keys.filter(is_signal).combine_chunks().unique())
    places = np.flatnonzero(loud.to_numpy(zero_copy_only=False))
    events = events.select(["kind", "prompt_key", "digest", "event_time", "body"]).take(pa.array(places))
    replies: dict[str, dict[int, Reply]] = defaultdict(dict)
    signals: dict[str, dict[int, Signal]] = defaultdict(dict)
    columns = (events[name].to_pylist() for name in ("kind", "prompt_key", "digest", "body"))
    rows = zip(places.tolist(), times_of(events["event_time"]), *columns, strict=True)
    for at, time, kind, key, digest, body in rows:
        if kind == "interaction":
            replies[key][at] = reply_of(orjson.loads(body), digest, time)
        else:
            signals[key][at] = signal_of(orjson.loads(body), digest, time)
    for key in sorted(replies.keys() | signals.keys()):
        yield key, replies.pop(key, {}), signals.pop(key, {})


def _rows_table(rows: Mapping[str, Mapping[str, Any]]) -> pa.Table:
    """Preference rows by their ids as a table."""
    ordered = [rows[key] for key in sorted(rows)]
    arrays = [pa.array([row[field.name] for row in ordered], field.type) for field in PREFERENCES]
    return pa.table(arrays, schema=PREFERENCES)


_Settled = tuple[int, Fate, str | None, list[str]]
"""Row of an event, its fate, the reason, and the ids of the rows it is in."""


class _Ledger:
    """Collects where the events of one group ended; interactions and feedback have separate ids."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.reasons: dict[str, set[str]] = defaultdict(set)
        self.reply_reasons: dict[str, set[str]] = defaultdict(set)
        self.rows_of: dict[str, set[str]] = defaultdict(set)
        self.reply_rows: dict[str, set[str]] = defaultdict(set)

    def record(self, item: Proposal, row: dict[str, Any] | str, rows: dict[str, dict[str, Any]]) -> None:
        """Notes a row, or why it was not made, with all events it rests on."""
        if isinstance(row, str):
            for signal in item.signals:
                self.reasons[signal.id].add(row)
            for reply in item.replies:
                self.reply_reasons[reply.id].add(row)
            return
        key = row["preference_id"]
        rows[key] = row
        for signal in item.signals:
            self.rows_of[signal.id].add(key)
        for reply in item.replies:
            self.reply_rows[reply.id].add(key)

    def fates(
        self, replies: Mapping[int, Reply], signals: Mapping[int, Signal], read: frozenset[str]
    ) -> Iterator[_Settled]:
        """One fate for each event of the group."""
        spoken_of = {target for signal in signals.values() for target in signal.targets}
        for at, signal in signals.items():
            reasons = self.reasons[signal.id]
            if signal.id in self.group.settled:
                reasons = {self.group.settled[signal.id]}
            elif not reasons:
                reasons = {"no_counterpart" if signal.kind in read else "no_rule"}
            yield _fate(at, self.rows_of[signal.id], reasons)
        for at, reply in replies.items():
            reasons = self.reply_reasons[reply.id] & _WITHHELD
            if not reply.uses:
                reasons = {"no_consent"}
            elif not reasons:
                reasons = {"feedback_made_no_row" if reply.id in spoken_of else "no_feedback"}
            yield _fate(at, self.reply_rows[reply.id], reasons)


def _fate(at: int, rows: set[str], reasons: set[str]) -> _Settled:
    if rows:
        return at, "ready", None, sorted(rows)
    # A reason of a user's own rule is unknown here and comes last.
    reason = min(reasons, key=lambda reason: (_RANK.get(reason, len(_RANK)), reason))
    if reason in _WITHHELD:
        return at, "withheld", reason, []
    return at, "waiting" if reason in _WAITING else "no_preference", reason, []
