"""Command about reward models: which there are, what their gates say, and their files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(rewards)


def rewards(
    fetch: Annotated[
        str | None,
        typer.Option(help="Fetch one: a version, `newest` or `passed` (the newest whose gates all passed)."),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """List the reward models of this project with what their gates say, or fetch one's files."""
    from rollout import reward_registry

    context = open_context(config, set_, json_)
    directory: Path | None = None
    if fetch is not None:
        directory = reward_registry.download(context.registry, fetch)
        context.out.say(f"{directory}")
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
    document = {
        "ok": True,
        "exit_code": 0,
        "reward_models": [each.model_dump(mode="json") for each in found],
        "directory": None if directory is None else str(directory),
    }
    context.out.result(document)
    return 0
