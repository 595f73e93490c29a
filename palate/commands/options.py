"""Options that many commands share, and how a command opens its project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from palate.context import Context

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Project file. Default: palate.toml, if there is one.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: --set train.dpo.beta=0.2 (repeatable).")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; progress on stderr.")
]
InputOption = Annotated[
    Path | None, typer.Option("--input", "-i", help="File or folder to read, instead of [source] path.")
]


def open_context(file: Path | None, overrides: list[str] | None, as_json: bool) -> Context:
    """Open the project for one command."""
    from palate.console import Out
    from palate.context import open_project

    return open_project(file, list(overrides or []), Out(as_json))
