"""Command about datasets for other tools: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(export)


def export(
    file: Annotated[Path, typer.Argument(help="Parquet file to write; replaced if it is there.")],
    version: Annotated[str | None, typer.Option(help="Dataset version. Default: the newest.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Write a dataset's preference rows as one Parquet file, for pandas, DuckDB or a trainer of your own."""
    from palate.config import ConfigError
    from pipelines import dataset

    context = open_context(config, set_, json_)
    found = dataset.load(context.project.dir, version)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigError(
            "The export needs a file in a folder that exists.",
            got=file,
            next_step="name a file, such as rows.parquet",
        )
    dataset.export(found, file)
    context.out.say(f"Dataset {found.version}: {found.manifest['rows']} rows in {file}")
    context.out.result({"ok": True, "exit_code": 0, "version": found.version, "path": str(file)})
    return 0
