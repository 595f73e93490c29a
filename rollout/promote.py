"""Promote, roll back, tell who serves. Every change is a recorded decision (`rollout.decisions`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from rollout.aliases import Notice, Reconciled, reconcile
from rollout.connection import Registry
from rollout.decide import clean_text, decide
from rollout.decisions import Action, Decision, Problem, State, canonical_json, fold, problems
from rollout.errors import (
    DecisionLogBroken,
    GateFailed,
    InsufficientData,
    NothingToDo,
    RolloutError,
    StaleEvidence,
    UnknownVersion,
)
from rollout.log import read_entries, read_state, remembered_head
from rollout.models import read_aliases, version_info, versions
from rollout.versions import ModelVersionInfo, newest_candidate

_OVERRIDE = 'palate promote --override "reason"'


class Status(BaseModel):
    """Who serves, who waits, and what is odd."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    champion: ModelVersionInfo | None
    candidate: ModelVersionInfo | None
    previous: ModelVersionInfo | None
    head: Decision | None
    warnings: tuple[Notice, ...]
    next_step: str


class Verification(BaseModel):
    """Whether the record can be trusted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ok: bool
    entries: int
    head_hash: str
    problems: tuple[Problem, ...]


def promote(
    registry: Registry,
    version: int | None = None,
    *,
    actor: str,
    override: str | None = None,
    now: datetime | None = None,
) -> Decision:
    """Make a version the champion, if its gates passed.

    Args:
        registry: where.
        version: which one; None is the candidate that waits.
        actor: who decides.
        override: reason to promote although the gates did not pass; recorded.
        now: time of the decision; None is the clock's.

    Returns:
        The decision as recorded.

    Raises:
        NothingToDo: no candidate waits, or the version serves already.
        GateFailed: a gate failed, or (`StaleEvidence`) judged against another champion.
        InsufficientData: a gate could not decide, or none was judged.
        BrokenAdapter: the version's files cannot be loaded.
        DecisionLogBroken: the record does not fit together.
        PromotionConflict: somebody else decided first.
        RolloutError: the override has no reason.
    """
    words = None if override is None else clean_text(override, "override reason")
    state = reconcile(registry).state
    target = _target(registry, version, state)
    if words is None:
        _refuse_unless_passed(target, state)
        broken = [problem for problem in verify(registry).problems if problem.breaks]
        if broken:
            raise DecisionLogBroken(
                "The decision log does not fit together.",
                got="; ".join(f"entry {p.entry}: {p.what}" for p in broken[:3]),
                next_step=f"`palate history --verify`; to promote all the same, {_OVERRIDE}",
            )
    return decide(
        registry,
        state,
        action="promote",
        target=target,
        actor=actor,
        reason=words or "all gates passed",
        override=words is not None and _refusal(target, state) is not None,
        now=now,
    )


def rollback(
    registry: Registry,
    *,
    actor: str,
    to_version: int | None = None,
    reason: str = "no reason given",
    now: datetime | None = None,
) -> Decision:
    """Return to the champion before, or to any earlier one. Needs no gates: it served already.

    Rolling back twice goes back two steps. To the present champion it restores an alias that was changed
    behind palate's back.

    Raises:
        NothingToDo: there is no earlier champion, or the version serves already.
        UnknownVersion: there is no such version, or it never was champion.
        BrokenAdapter: its files cannot be loaded; the present champion stays.
        PromotionConflict: somebody else decided first.
    """
    found = reconcile(registry)
    state = found.state
    target = state.previous if to_version is None else to_version
    if target is None:
        raise NothingToDo(
            "There is no champion to return to.",
            got=f"champion v{state.champion}" if state.champion is not None else "no champion",
            next_step="palate history",
        )
    if target not in state.champions:
        version_info(registry, target)  # which says so where there is no such version at all
        raise UnknownVersion(
            f"v{target} never was champion.",
            allowed=", ".join(f"v{number}" for number in state.champions) or "none yet",
            next_step=f"palate promote {target}",
        )
    action: Action = "rollback"
    if target == state.champion:
        if not any(notice.kind == "champion_changed_elsewhere" for notice in found.warnings):
            raise NothingToDo(f"v{target} is the champion already.", next_step="palate status")
        action = "restore"
    return decide(
        registry,
        state,
        action=action,
        target=version_info(registry, target),
        actor=actor,
        reason=reason,
        now=now,
    )


def status(registry: Registry) -> Status:
    """Who serves, who waits with which verdicts, and warnings. Sets right what a crash left behind."""
    found = reconcile(registry)
    known = {version.version: version for version in versions(registry)}
    state = found.state
    candidate = newest_candidate(known.values(), state)
    return Status(
        name=registry.name,
        champion=known.get(state.champion or 0),
        candidate=candidate,
        previous=known.get(state.previous or 0),
        head=state.head,
        warnings=found.warnings,
        next_step=_next_step(found, candidate),
    )


def history(registry: Registry) -> list[Decision]:
    """Every decision, oldest first; those that lost a race have `effective` false."""
    return list(read_state(registry).decisions)


def rolled_back(registry: Registry, version: int) -> Decision | None:
    """The newest rollback away from this version; None if there was none."""
    for decision in reversed(history(registry)):
        if decision.effective and decision.action == "rollback" and decision.from_version == version:
            return decision
    return None


def verify(registry: Registry) -> Verification:
    """Check the decision log: numbers, hashes, links, the remembered head, and the evidence it names."""
    aliases = read_aliases(registry)
    noted = remembered_head(registry)
    entries = read_entries(registry)
    state = fold(entries)
    found = problems(entries)
    if noted is not None:
        effective = {decision.entry: decision.hash for decision in state.decisions if decision.effective}
        if effective.get(noted[0]) != noted[1]:
            found.append(Problem(entry=noted[0], what="it was the newest entry once, and is gone or changed"))
    found += _evidence_problems(state, {version.version: version for version in versions(registry)})
    named = aliases.get("champion")
    before = state.head.from_version if state.head else None
    if named not in (state.champion, before, None):
        what = f"the alias champion names v{named}, not v{state.champion}"
        found.append(Problem(entry=None, what=what, breaks=False))
    return Verification(ok=not found, entries=len(entries), head_hash=state.head_hash, problems=tuple(found))


def _evidence_problems(state: State, known: dict[int, ModelVersionInfo]) -> list[Problem]:
    found = []
    for decision in state.decisions:
        version = known.get(decision.to_version)
        if not decision.effective:
            continue
        if version is None:
            what = f"v{decision.to_version}, which it names, is not in the registry"
        elif version.adapter_sha256 != decision.adapter_sha256:
            what = f"the sha256 noted at v{version.version} is no longer the one decided on"
        elif canonical_json(list(version.gates)) != canonical_json(list(decision.gates)):
            what = f"the gate verdicts noted at v{version.version} are no longer those decided on"
        else:
            continue
        found.append(Problem(entry=decision.entry, what=what, breaks=version is not None))
    return found


def _target(registry: Registry, version: int | None, state: State) -> ModelVersionInfo:
    if version is None:
        target = newest_candidate(versions(registry), state)
        if target is None:
            champion = "nothing serves" if state.champion is None else f"v{state.champion} serves"
            raise NothingToDo(
                "No candidate waits for a decision.",
                got=f"{champion} since entry {state.head_entry}",
                next_step="`palate run` makes one",
            )
        return target
    if version == state.champion:
        raise NothingToDo(f"v{version} is the champion already.", next_step="palate status")
    return version_info(registry, version)


def _refuse_unless_passed(target: ModelVersionInfo, state: State) -> None:
    refusal = _refusal(target, state)
    if refusal is not None:
        raise refusal


def _refusal(target: ModelVersionInfo, state: State) -> RolloutError | None:
    if target.overall == "fail":
        return GateFailed(
            f"v{target.version} did not pass its gates.",
            got=_explain(target.gates, "fail"),
            next_step=f"`palate show {target.version}`; to promote all the same, {_OVERRIDE}",
        )
    if target.overall == "insufficient_data":
        return InsufficientData(
            f"The gates of v{target.version} could not decide.",
            got=_explain(target.gates, "insufficient_data") or "no gate was judged",
            next_step=f"gather more feedback and `palate run`; to promote all the same, {_OVERRIDE}",
        )
    if target.compared_with is not None and target.compared_with != state.champion:
        return StaleEvidence(
            f"v{target.version} was judged against v{target.compared_with}, which no longer serves.",
            got=f"champion v{state.champion}",
            next_step=f"`palate run` makes a candidate that starts from it; to promote all the same, {_OVERRIDE}",
        )
    return None


def _explain(gates: Sequence[dict[str, Any]], verdict: str) -> str:
    said = [gate for gate in gates if gate.get("verdict") == verdict or verdict == "fail"]
    lines = [
        f"{gate.get('gate')}: {gate.get('verdict')}" + (f" ({gate['why']})" if gate.get("why") else "")
        for gate in said
        if gate.get("verdict") != "pass"
    ]
    return "; ".join(lines)


def _next_step(found: Reconciled, candidate: ModelVersionInfo | None) -> str:
    if found.warnings:
        return found.warnings[0].next_step
    if candidate is None:
        return "palate run"
    if _refusal(candidate, found.state) is None:
        return "palate promote"
    return f"palate show {candidate.version}"
