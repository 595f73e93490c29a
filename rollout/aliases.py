"""MLflow's aliases follow the decision log: they are what others read, never what decides.

Aliases have no compare-and-set, so whoever wrote a decision, or comes across aliases that a crash left
behind, sets them from the log and reads the log again until nothing newer came in between.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from rollout.connection import Registry, retrying
from rollout.decisions import Decision, State, Unreadable, fold, problems
from rollout.log import read_entries, read_state, remember_head, remembered_head
from rollout.models import read_aliases, versions
from rollout.versions import newest_candidate

_ROUNDS = 20


class Notice(BaseModel):
    """Something a person should know, though the command went on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    text: str
    next_step: str


class Reconciled(BaseModel):
    """The log's state, what had to be set right, and what was found that palate did not do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: State
    moved: tuple[str, ...] = ()
    warnings: tuple[Notice, ...] = ()


def settle(registry: Registry, state: State) -> tuple[State, tuple[str, ...]]:
    """Set `champion`, `previous` and `candidate` from the log.

    Args:
        registry: where.
        state: as just read.

    Returns:
        The newest state, and the aliases that were moved.
    """
    moved: list[str] = []
    for _ in range(_ROUNDS):
        known = versions(registry)
        now = read_aliases(registry)
        numbers = {version.version for version in known}
        waiting = newest_candidate(known, state)
        wanted = {
            "champion": state.champion,
            "previous": state.previous,
            "candidate": waiting.version if waiting else None,
        }
        for alias, version in wanted.items():
            # A version deleted behind palate's back cannot be pointed at; reconcile warns of it.
            if now.get(alias) != version and (version is None or version in numbers):
                set_alias(registry, alias, version)
                moved.append(alias)
        wrote = bool(moved)
        if state.head is not None and remembered_head(registry) != (state.head_entry, state.head_hash):
            remember_head(registry, state)
            wrote = True
        if not wrote:
            break
        newer = read_state(registry)
        if newer.head_entry == state.head_entry:
            break
        state = newer
    return state, tuple(dict.fromkeys(moved))


def reconcile(registry: Registry) -> Reconciled:
    """Look whether the aliases say what the log says, and roll forward what a crash left behind.

    An alias that still names the champion before the newest decision (or none) was left behind: it is moved.
    One that names anything else was set by other hands: it is left as it is, and reported. Nothing is moved
    after a log that was edited.
    """
    entries, state, displaced = _compare(registry)
    broken = [problem for problem in problems(entries) if problem.breaks]
    moved: tuple[str, ...] = ()
    warnings: list[Notice] = []
    if displaced is not None:
        warnings.append(_displaced(state, displaced))
    if broken:
        warnings.append(
            Notice(
                kind="record_broken",
                text=f"The decision log was edited; entry {broken[0].entry}: {broken[0].what}.",
                next_step="palate history --verify",
            )
        )
    if not warnings:
        state, moved = settle(registry, state)
    return Reconciled(state=state, moved=moved, warnings=(*warnings, *_missing(registry, state)))


def _displaced(state: State, named: int) -> Notice:
    if state.champion is None:
        champion, repair = "nothing", f"remove the alias, or `palate promote {named}` to record it"
    else:
        champion = f"v{state.champion}"
        repair = f"`palate rollback --to {state.champion}` restores it, with a record"
    return Notice(
        kind="champion_changed_elsewhere",
        text=f"The alias champion names v{named}, but by the decision log {champion} serves.",
        next_step=repair,
    )


def set_candidate_alias(registry: Registry) -> None:
    """Let the alias `candidate` name the version that waits for a decision, or nothing."""
    waiting = newest_candidate(versions(registry), read_state(registry))
    number = waiting.version if waiting else None
    if read_aliases(registry).get("candidate") != number:
        set_alias(registry, "candidate", number)


def set_alias(registry: Registry, alias: str, version: int | None) -> None:
    """Point an alias at a version, or remove it."""
    if version is None:
        retrying(lambda: registry.client.delete_registered_model_alias(registry.name, alias))
    else:
        number = str(version)
        retrying(lambda: registry.client.set_registered_model_alias(registry.name, alias, number))


def _compare(registry: Registry) -> tuple[list[Decision | Unreadable], State, int | None]:
    """The log, its state, and the version that the alias champion names if no crash explains that."""
    previous_look: tuple[int, int | None] | None = None
    while True:
        # Aliases first: whoever moved one had written the decision before, so the log read next has it.
        named = read_aliases(registry).get("champion")
        entries = read_entries(registry)
        state = fold(entries)
        before = state.head.from_version if state.head else None
        if named is None or named in (state.champion, before):
            return entries, state, None
        look = (state.head_entry, named)
        if look == previous_look:
            return entries, state, named
        previous_look = look


def _missing(registry: Registry, state: State) -> tuple[Notice, ...]:
    numbers = {version.version for version in versions(registry)}
    if state.champion is None or state.champion in numbers:
        return ()
    return (
        Notice(
            kind="champion_missing",
            text=f"v{state.champion} is champion by the decision log, but is not in the registry.",
            next_step="`palate history`, then `palate rollback --to` a version that is still there",
        ),
    )
