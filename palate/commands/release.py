"""Commands about who serves: promote, rollback, status, history."""

from __future__ import annotations

from typing import Annotated

import typer

from palate.commands.options import (
    ConfigOption,
    JsonOption,
    SetOption,
    given_options,
    open_context,
    with_options,
)
from palate.wording import counted


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(promote)
    app.command()(rollback)
    app.command()(status)
    app.command()(history)


def promote(
    version: Annotated[
        int | None, typer.Argument(help="Version to promote. Default: the waiting candidate.")
    ] = None,
    override: Annotated[
        str | None, typer.Option(help="Promote although gates did not pass; the reason is recorded.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who decides. Default: the system's user.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Make the candidate the champion, if its gates passed."""
    from palate.context import actor
    from rollout.promote import promote as run
    from rollout.promote import rolled_back

    context = open_context(config, set_, json_)
    decision = run(context.registry, version, actor=by or actor(), override=override)
    before = f" after v{decision.from_version}" if decision.from_version else ""
    context.out.say(
        f"Champion is now v{decision.to_version}{before}, decided by {decision.actor} (entry {decision.entry})."
    )
    if (back := rolled_back(context.registry, decision.to_version)) is not None:
        context.out.say(
            f"Note: v{back.from_version} was rolled back from before, by {back.actor} at {back.at} "
            f"(entry {back.entry}): {back.reason}"
        )
    context.out.say(f"Undo: palate rollback {given_options()}".rstrip())
    context.out.result({"ok": True, "exit_code": 0, "decision": decision.model_dump(mode="json")})
    return 0


def rollback(
    to: Annotated[int | None, typer.Option(help="An earlier champion. Default: the one before.")] = None,
    reason: Annotated[str, typer.Option(help="Why; recorded.")] = "no reason given",
    by: Annotated[str | None, typer.Option(help="Who decides. Default: the system's user.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Return to an earlier champion at once."""
    from palate.context import actor
    from rollout.promote import rollback as run

    context = open_context(config, set_, json_)
    decision = run(context.registry, actor=by or actor(), to_version=to, reason=reason)
    context.out.say(
        f"Champion is v{decision.to_version} again, decided by {decision.actor} (entry {decision.entry})."
    )
    context.out.result({"ok": True, "exit_code": 0, "decision": decision.model_dump(mode="json")})
    return 0


def status(config: ConfigOption = None, set_: SetOption = None, json_: JsonOption = False) -> int:
    """Show who serves, who waits with which verdicts, and what is odd."""
    from rollout.promote import status as run

    context = open_context(config, set_, json_)
    found = run(context.registry)
    rows = []
    for role in ("champion", "candidate", "previous"):
        info = getattr(found, role)
        if info is None:
            rows.append((role, "–", "", "", ""))
            continue
        gates = ", ".join(f"{g['gate']}: {g['verdict']}" for g in info.gates) or "none judged"
        rows.append((role, f"v{info.version}", info.base_id, info.dataset_version or "–", gates))
    context.out.table(found.name, ["", "version", "base", "dataset", "gates"], rows)
    for notice in found.warnings:
        context.out.say(f"Warning: {notice.text} Next: {with_options(notice.next_step)}")
    context.out.say(f"Next: {with_options(found.next_step)}")
    context.out.result({"ok": True, "exit_code": 0, "status": found.model_dump(mode="json")})
    return 0


def history(
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the hash chain and the evidence it names.")
    ] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """List every decision, who took it and why; with --verify, check that none was changed."""
    from rollout import promote as registry_commands

    context = open_context(config, set_, json_)
    decisions = registry_commands.history(context.registry)
    rows = [
        (
            d.entry,
            d.at,
            d.action
            + (" (override)" if d.override else "")
            + ("" if d.effective else " – void, lost a race"),
            f"v{d.from_version or '–'} → v{d.to_version}",
            d.actor,
            d.reason,
        )
        for d in decisions
    ]
    if not rows:
        context.out.say("No decision yet.")
    context.out.table(
        "Decisions" if rows else "", ["entry", "at", "action", "champion", "by", "reason"], rows
    )
    document = {"decisions": [d.model_dump(mode="json") for d in decisions]}
    code = 0
    if verify:
        checked = registry_commands.verify(context.registry)
        code = 0 if checked.ok else 1
        context.out.say(
            f"{counted(checked.entries, 'entry', 'entries')}, {'all sound' if checked.ok else 'NOT SOUND'}."
        )
        for problem in checked.problems:
            context.out.say(f"  entry {problem.entry or '–'}: {problem.what}")
        document["verification"] = checked.model_dump(mode="json")  # type: ignore[assignment]
    context.out.result({"ok": code == 0, "exit_code": code, **document})
    return code
