"""Options that many commands share, and how a command opens its project."""

from __future__ import annotations

import shlex
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


def near(path: Path) -> Path:
    """The path as seen from here, where that is shorter to read and to type."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


_given: list[str] = []


def given_options() -> str:
    """`--config` and `--set` of this call, ready to be typed again behind another command."""
    return shlex.join(_given)


def with_options(next_step: str) -> str:
    """A next step as it has to be typed here: `palate …` gets this call's `--config` and `--set`."""
    if not given_options() or not next_step.startswith("palate "):
        return next_step
    command, bracket, remark = next_step.partition(" (")
    return f"{command} {given_options()}{bracket}{remark}"


def open_context(file: Path | None, overrides: list[str] | None, as_json: bool) -> Context:
    """Open the project for one command."""
    from palate.console import Out
    from palate.context import open_project

    _given[:] = ["--config", str(near(file))] if file is not None else []
    _given.extend(part for override in overrides or [] for part in ("--set", override))
    return open_project(file, list(overrides or []), Out(as_json))
