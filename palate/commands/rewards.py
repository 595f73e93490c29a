"""Command about reward models: which there are, what their gates say, whether one is still fit, and their files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context, with_options
from palate.wording import counted

if TYPE_CHECKING:
    from palate.context import Context
    from palate.reward_check import Checked

WHAT = ("list", "check")


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(rewards)


def rewards(
    what: Annotated[
        str, typer.Argument(help="list, or check: look at one again, through the held-out votes of today.")
    ] = "list",
    version: Annotated[
        str | None, typer.Argument(help="Which to check: a version, `newest` (the default) or `passed`.")
    ] = None,
    fetch: Annotated[
        str | None,
        typer.Option(help="Fetch one: a version, `newest` or `passed` (the newest whose gates all passed)."),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """List the reward models of this project with what their gates say, check one again, or fetch one's files."""
    from palate.config import ConfigError

    if what not in WHAT:
        raise ConfigError(
            "There is no such thing to do with reward models.", got=what, allowed=", ".join(WHAT)
        )
    if what == "check" and fetch is not None:
        raise ConfigError(
            "A reward model is checked or fetched, not both in one.",
            got=f"check and --fetch {fetch}",
            next_step="give the version behind check: palate rewards check newest",
        )
    if what == "list" and version is not None:
        raise ConfigError(
            "All reward models are listed.", got=version, next_step=f"palate rewards check {version}"
        )
    context = open_context(config, set_, json_)
    return _check(context, version or "newest") if what == "check" else _list(context, fetch)


def _list(context: Context, fetch: str | None) -> int:
    from rollout import reward_registry

    document: dict[str, Any] = {"ok": True, "exit_code": 0, "directory": None}
    if fetch is not None:
        document["directory"] = str(reward_registry.download(context.registry, fetch))
        context.out.say(document["directory"])
    found = reward_registry.versions(context.registry)
    if fetch is None:
        context.out.table(
            reward_registry.name(context.registry),
            ["version", "for", "method", "dataset", "made", "gates"],
            [
                (
                    f"v{each.version}",
                    each.role,
                    each.method,
                    each.dataset_version,
                    f"{datetime.fromtimestamp(each.created_ms / 1000, UTC):%Y-%m-%d %H:%M}",
                    ", ".join(f"{g['gate']}: {str(g['verdict']).replace('_', ' ')}" for g in each.gates)
                    or "none judged",
                )
                for each in found
            ],
        )
        if not found:
            context.out.say("No reward model yet. Next: palate train")
    context.out.result({**document, "reward_models": [each.model_dump(mode="json") for each in found]})
    return 0


def _check(context: Context, wanted: str) -> int:
    from palate import loop
    from palate.context import quiet_libraries
    from palate.reward_check import check

    quiet_libraries()
    checked = check(context, wanted)
    code = {"pass": loop.DONE, "fail": loop.GATE_FAILED, "insufficient_data": loop.INSUFFICIENT}[
        checked.outcome
    ]
    _show(context, checked)
    context.out.result({"ok": code == 0, "exit_code": code, **checked.to_dict()})
    return code


def _show(context: Context, checked: Checked) -> None:
    found, case = checked.version, checked.case
    context.out.table(
        f"Reward model v{found.version} ({found.method}, for {found.role}) before dataset {checked.dataset_version}",
        ["gate", "verdict", "why"],
        [(v.gate, v.verdict.replace("_", " "), v.why) for v in checked.verdicts],
    )
    if case is not None:
        people = counted(case.users, "person", "people")
        since, voters = case.drift.recent
        context.out.say(
            f"Looked at through {counted(case.votes, 'held-out vote')} of {people}; newer than all that it has "
            f"learned from: {since}, of {counted(voters, 'person', 'people')}."
        )
    context.out.say(checked.sentence)
    step = {
        "fail": "palate train",
        "insufficient_data": "palate rewards check (after more feedback and palate build)",
    }.get(checked.outcome)
    if step is not None:
        context.out.say(f"Next: {with_options(step)}")
