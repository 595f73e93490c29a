"""The decision log: who made which model serve, on which evidence. A pure core over frozen entries.

Every decision is one numbered entry that names the number of the newest decision its author saw (`expects`).
An entry counts only if that still is the newest effective entry before it; otherwise it lost a race, is
*void*, stays visible and changes nothing. Whether an entry is effective depends only on the entries before
it, so every reader comes to the same answer, and of two promoters who saw the same state exactly one wins.
That is a compare-and-set without a lock that could be left behind.

Entries are chained: `hash` is the sha256 of an entry's fields, `prev_hash` is the hash of the entry that it
expects.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Action = Literal["found", "promote", "rollback", "restore"]

_UNHASHED = {"entry", "effective", "hash"}
_JSON_FIELDS = {"from_version", "to_version", "override", "gates", "expects"}


class Decision(BaseModel):
    """One entry of the log."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    entry: int = Field(ge=1)
    """Its number in the log, given by the registry."""
    effective: bool = False
    """False: another decision came first, or the entry has not been folded yet."""
    action: Action
    """`found` the first champion, `promote`, `rollback`, or `restore` an alias changed by hand."""
    from_version: int | None
    """Champion before."""
    to_version: int
    """Champion after."""
    actor: str
    """The person or program that decided."""
    reason: str
    """Why; the words of an override."""
    override: bool = False
    """True: promoted although its gates did not pass."""
    gates: tuple[dict[str, Any], ...] = ()
    """The verdicts on `to_version` as they were at this moment."""
    adapter_sha256: str
    """What `to_version` was."""
    dataset_version: str = ""
    """The data `to_version` learned from."""
    at: str
    """UTC, RFC 3339."""
    expects: int = Field(ge=0)
    """Number of the newest effective entry that the author saw; 0 for none."""
    prev_hash: str
    """`hash` of that entry; empty for none."""
    nonce: str
    """Tells this attempt from every other, also from its own repetition."""
    hash: str = ""
    """sha256 of the fields above but `entry` and `effective`."""

    def sealed(self) -> Decision:
        """The same entry with its hash filled in."""
        return self.model_copy(update={"hash": content_hash(self)})

    def to_tags(self) -> dict[str, str]:
        """The entry as registry tags (strings only; the registry keeps the number)."""
        fields = self.model_dump(mode="json", exclude={"entry", "effective"})
        return {
            key: value if isinstance(value, str) else canonical_json(value) for key, value in fields.items()
        }


class Unreadable(BaseModel):
    """An entry of the log that is no decision: made or changed by other hands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entry: int
    why: str


class State(BaseModel):
    """What the log says now."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    head: Decision | None = None
    """Newest effective entry."""
    stack: tuple[int, ...] = ()
    """Champions that a rollback can return to, the present one last."""
    champions: tuple[int, ...] = ()
    """Every version that ever was champion, in order of its first time."""
    decisions: tuple[Decision, ...] = ()
    """All readable entries with `effective` filled in, oldest first."""
    unreadable: tuple[Unreadable, ...] = ()
    """The others."""

    @property
    def champion(self) -> int | None:
        """The version that serves."""
        return self.stack[-1] if self.stack else None

    @property
    def previous(self) -> int | None:
        """The version that a rollback returns to."""
        return self.stack[-2] if len(self.stack) > 1 else None

    @property
    def head_entry(self) -> int:
        """Number of the newest effective entry, 0 for none."""
        return self.head.entry if self.head else 0

    @property
    def head_hash(self) -> str:
        """Hash of the newest effective entry, empty for none."""
        return self.head.hash if self.head else ""


class Problem(BaseModel):
    """Something in the log that does not fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    entry: int | None
    """None: not about one entry."""
    what: str
    breaks: bool = True
    """False: odd, but the chain of decisions that counted still holds."""


def canonical_json(value: object) -> str:
    """JSON that is equal for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(decision: Decision) -> str:
    """sha256 over the canonical JSON of an entry's hashed fields."""
    fields = decision.model_dump(mode="json", exclude=_UNHASHED)
    return hashlib.sha256(canonical_json(fields).encode()).hexdigest()


def from_tags(entry: int, tags: dict[str, str]) -> Decision | Unreadable:
    """Read an entry back; the inverse of `Decision.to_tags`. Foreign tags beside the known ones are left."""
    fields: dict[str, Any] = {"entry": entry}
    try:
        for key in Decision.model_fields.keys() - {"entry", "effective"}:
            raw = tags[key]
            fields[key] = json.loads(raw) if key in _JSON_FIELDS else raw
        return Decision.model_validate(fields)
    except KeyError as error:
        return Unreadable(entry=entry, why=f"tag {error} is missing")
    except (ValueError, ValidationError) as error:
        return Unreadable(entry=entry, why=str(error).splitlines()[0])


def fold(entries: Iterable[Decision | Unreadable]) -> State:
    """Replay the log.

    Args:
        entries: all entries in any order; numbers are distinct.

    Returns:
        The state after the last one. A promotion pushes its version on the stack; a rollback to a version
        on the stack drops what is above it, so that rolling back twice goes back two steps; a rollback to a
        champion that had been dropped pushes it.
    """
    head: Decision | None = None
    stack: tuple[int, ...] = ()
    champions: tuple[int, ...] = ()
    decisions: list[Decision] = []
    unreadable: list[Unreadable] = []
    for item in sorted(entries, key=lambda item: item.entry):
        if isinstance(item, Unreadable):
            unreadable.append(item)
            continue
        effective = item.expects == (head.entry if head else 0)
        decision = item.model_copy(update={"effective": effective})
        decisions.append(decision)
        if not effective:
            continue
        head = decision
        stack = _after(stack, decision)
        if decision.to_version not in champions:
            champions = (*champions, decision.to_version)
    return State(
        head=head, stack=stack, champions=champions, decisions=tuple(decisions), unreadable=tuple(unreadable)
    )


def _after(stack: tuple[int, ...], decision: Decision) -> tuple[int, ...]:
    if decision.action != "promote" and decision.to_version in stack:
        last = len(stack) - 1 - stack[::-1].index(decision.to_version)
        return stack[: last + 1]
    return (*stack, decision.to_version)


def problems(entries: Sequence[Decision | Unreadable]) -> list[Problem]:
    """Check numbers, hashes and links of the log.

    Finds an entry that was changed, removed from the middle, or forged without knowing the chain. The newest
    entry's removal shows only against a remembered head, which the caller has to compare. A missing or
    foreign entry that no decision builds on is odd, but breaks nothing.
    """
    state = fold(entries)
    numbers = {item.entry for item in entries}
    gaps = sorted(set(range(1, max(numbers, default=0) + 1)) - numbers)
    found = [Problem(entry=number, what="the entry is missing", breaks=False) for number in gaps]
    for item in state.unreadable:
        found.append(Problem(entry=item.entry, what=f"unreadable: {item.why}", breaks=False))
    seen: dict[int, Decision] = {}
    champion: int | None = None
    for decision in state.decisions:
        what = [*_link_faults(decision, seen.get(decision.expects))]
        if decision.effective:
            if decision.from_version != champion:
                what.append(f"it says v{decision.from_version} served before, the log says v{champion}")
            champion = decision.to_version
            seen[decision.entry] = decision
        found += [Problem(entry=decision.entry, what=text) for text in what]
    return found


def _link_faults(decision: Decision, expected: Decision | None) -> Iterable[str]:
    if decision.hash != content_hash(decision):
        yield "its content does not match its hash"
    if decision.expects and expected is None:
        yield f"it expects entry {decision.expects}, which never counted"
    elif decision.prev_hash != (expected.hash if expected else ""):
        yield "its prev_hash is not the hash of the entry it expects"
