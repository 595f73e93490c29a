"""Preferences from events: `dedupe`, `join`, `prefer`, each a pure function over Arrow tables.

Every event that goes in comes out with exactly one fate, and the rows depend on the set of events only: not
on their order, on copies, or on how they are divided into batches, as long as all events of one prompt key
are together.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal, Self

import orjson
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from feedback.events import SCHEMA_VERSION
from feedback.groups import Group, Reply, Signal, reply_of, settle, signal_of
from feedback.joining import KEYED, attach, dedupe, join, prompt_keys
from feedback.rules import Proposal, Rule, Skip, load
from feedback.splits import SplitConfig, row_split
from feedback.tables import PREFERENCES, Fate, fate_row, fates_table

__all__ = ["KEYED", "REASONS", "PreferConfig", "attach", "dedupe", "join", "prefer", "prompt_keys"]

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

    rules: tuple[str, ...] = ("vote", "thumbs", "edit", "retry", "rating", "unpaired")
    """Rules to apply, by name or as module:object."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of rules, by the rule's name; what each has is in its own Config."""
    actors: tuple[Literal["user", "rater", "judge", "code"], ...] = ("user", "rater")
    """Whose signals count; by default people's only."""
    split: SplitConfig = SplitConfig()
    """What is held out."""

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


def prefer(events: pa.Table, config: PreferConfig) -> tuple[pa.Table, pa.Table]:
    """Reads preferences from events.

    Args:
        events: In `KEYED`, as `join` gives them: each event once, all events of a prompt key together.
        config: What counts.

    Returns:
        Rows in `PREFERENCES` sorted by `preference_id`, and in `FATES` one fate for each event.
    """
    rules = [(n, rule, rule.Config.model_validate(config.options.get(n, {}))) for n, rule in config.loaded()]
    actors = frozenset(config.actors)
    rows: dict[str, dict[str, Any]] = {}
    fates: list[dict[str, Any]] = []
    for key, replies, signals in _by_prompt(events):
        group = settle(key, replies, signals, actors)
        ledger = _Ledger(group)
        read: set[str] = set()
        for name, rule, options in rules:
            read |= rule.KINDS
            for item in rule.propose(group, options):
                if isinstance(item, Skip):
                    ledger.reasons[item.signal.id].add(item.reason)
                    continue
                ledger.record(item, _admit(item, group, name, config.split), rows)
        fates += ledger.fates(replies, signals, read)
    table = pa.Table.from_pylist([rows[key] for key in sorted(rows)], schema=PREFERENCES)
    return table, fates_table(fates)


def _by_prompt(events: pa.Table) -> Iterator[tuple[str, list[Reply], list[Signal]]]:
    names = ("kind", "prompt_key", "digest", "event_time", "body")
    columns = [events.column(name).to_pylist() for name in names]
    replies: dict[str, list[Reply]] = defaultdict(list)
    signals: dict[str, list[Signal]] = defaultdict(list)
    for kind, key, digest, time, body in zip(*columns, strict=True):
        if kind == "interaction":
            replies[key].append(reply_of(orjson.loads(body), digest, time))
        else:
            signals[key].append(signal_of(orjson.loads(body), digest, time))
    for key in sorted(replies.keys() | signals.keys()):
        yield key, replies.get(key, []), signals.get(key, [])


def _admit(item: Proposal, group: Group, rule: str, split: SplitConfig) -> dict[str, Any] | str:
    """The row of a proposal, or the reason why there is none."""
    if item.chosen == item.rejected:
        return "same_text"
    users = {signal.user for signal in item.signals} | {reply.user for reply in item.replies}
    drawn = row_split(users, group.prompt_key, split)
    if drawn is None:
        return "split_conflict"
    use = "train" if drawn == "train" else "evaluate"
    if not all(use in reply.uses for reply in item.replies):
        return "consent_" + use
    raters = {signal.user for signal in item.signals}
    row = {
        "prompt": item.preferred.prompt,
        "prompt_key": group.prompt_key,
        "chosen": item.chosen,
        "rejected": item.rejected,
        "label": item.label,
        "margin": float(item.margin),
        "weight": float(item.weight),
        # With two replies there is no single draw that the row was logged under.
        "propensity": item.preferred.propensity if len(item.replies) == 1 else None,
        "user_id": raters.pop() if len(raters) == 1 else None,
        "agent": item.preferred.agent,
        "rule": rule,
        "evidence": sorted([*{signal.id for signal in item.signals}, *{reply.id for reply in item.replies}]),
        "event_time": max(signal.time for signal in item.signals),
        "split": drawn,
        "schema_version": SCHEMA_VERSION,
    }
    content = orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z)
    return {"preference_id": hashlib.sha256(content).hexdigest(), **row}


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

    def fates(self, replies: list[Reply], signals: list[Signal], read: set[str]) -> Iterator[dict[str, Any]]:
        """One fate for each event of the group."""
        spoken_of = {target for signal in signals for target in signal.targets}
        for signal in signals:
            reasons = self.reasons[signal.id]
            if signal.id in self.group.settled:
                reasons = {self.group.settled[signal.id]}
            elif not reasons:
                reasons = {"no_counterpart" if signal.kind in read else "no_rule"}
            yield _fate(signal.id, "feedback", signal.digest, self.rows_of[signal.id], reasons)
        for reply in replies:
            reasons = self.reply_reasons[reply.id] & _WITHHELD
            if not reply.uses:
                reasons = {"no_consent"}
            elif not reasons:
                reasons = {"feedback_made_no_row" if reply.id in spoken_of else "no_feedback"}
            yield _fate(reply.id, "interaction", reply.digest, self.reply_rows[reply.id], reasons)


def _fate(event_id: str, kind: str, digest: str, rows: set[str], reasons: set[str]) -> dict[str, Any]:
    if rows:
        return fate_row(event_id, kind, digest, "ready", None, tuple(rows))
    # A reason of a user's own rule is unknown here and comes last.
    reason = min(reasons, key=lambda reason: (_RANK.get(reason, len(_RANK)), reason))
    fate: Fate = "no_preference"
    if reason in _WITHHELD:
        fate = "withheld"
    elif reason in _WAITING:
        fate = "waiting"
    return fate_row(event_id, kind, digest, fate, reason)
