"""The command that keeps the tables healthy."""

from __future__ import annotations

from typing import Annotated

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(maintain)


def maintain(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Compact small files and remove what nothing needs any more. Safe beside everything else, and safe to kill."""
    from palate import context as context_module
    from pipelines.maintain import maintain as run

    context = open_context(config, set_, json_)
    with context.out.stage("Maintain", "steps") as advance:
        steps = run(
            context.project.dir,
            context.project.maintain,
            now=context_module.now(),
            dry_run=dry_run,
            progress=lambda _what, done, total: advance(done, total),
        )
    freed = sum(step.freed_bytes for step in steps)
    context.out.table(
        f"{'Would free' if dry_run else 'Freed'} {_megabytes(freed)}",
        ["step", "files or folders", "bytes", "note"],
        [(step.what, step.items, _megabytes(step.freed_bytes), step.note) for step in steps],
    )
    context.out.result(
        {
            "ok": True,
            "exit_code": 0,
            "dry_run": dry_run,
            "freed_bytes": freed,
            "steps": [vars(step) for step in steps],
        }
    )
    return 0


def _megabytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
