"""The command line. Commands live in `palate/commands/`; nothing heavy is imported before one runs."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from palate.commands import (
    data,
    export,
    fate,
    ingest,
    ledger,
    maintain,
    model,
    plan,
    project,
    release,
    replay,
    rewards,
    user,
)
from palate.commands.options import given_options

app = typer.Typer(
    name="palate",
    help="Learn a model's behaviour from what its users say and do, and promote it only when that proves better.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (
    project,
    ingest,
    data,
    export,
    fate,
    ledger,
    replay,
    maintain,
    plan,
    model,
    release,
    rewards,
    user,
):
    group.register(app)

EXIT_CODES = (
    "Exit codes: 0 done, 1 error, 2 usage, 3 gate failed, 4 insufficient or bad data, 5 nothing new, "
    "130 interrupted."
)


# `palate init`, `palate schema` and `palate demo` know no project file.
_TAKES_OPTIONS = re.compile(r"\bpalate (?!init|schema|demo)")


@app.callback(epilog=EXIT_CODES)
def _root() -> None:
    """Learn from what users say and do."""


def main() -> None:
    """Run the command line; expected failures end in a message and their exit code, never in a traceback."""
    from feedback.errors import PalateError

    with suppress(FileNotFoundError):  # whoever stands in a folder that was removed has no modules there
        sys.path.append(str(Path.cwd()))  # where a project's own sources, rules and edits lie
    try:
        code = app(standalone_mode=False)
    except PalateError as error:
        code = _explain(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        code = _explain(_of_the_system(error))
    except Exception as error:
        code = _unexpected(error)
    if code == 130:
        sys.stderr.write("\nInterrupted. What is finished is kept; run the same command to go on.\n")
    raise SystemExit(code or 0)


def _explain(error: object) -> int:
    """Print a `PalateError` for people on stderr and, with `--json`, for scripts on stdout."""
    sys.stderr.write(f"Error: {error}\n")
    if given_options() and _TAKES_OPTIONS.search(str(getattr(error, "next_step", ""))):
        sys.stderr.write(f"(with the same options: {given_options()})\n")
    code = int(getattr(error, "exit_code", 1))
    if "--json" in sys.argv:
        fields = {name: getattr(error, name, None) for name in ("what", "got", "allowed", "next_step")}
        document = {"ok": False, "exit_code": code, "error": {"type": type(error).__name__, **fields}}
        sys.stdout.write(json.dumps(document, default=str) + "\n")
    return code


def _of_the_system(error: OSError) -> object:
    from feedback.errors import PalateError

    return PalateError(
        f"The system refused: {error.strerror or error}",
        got=error.filename,
        next_step="check space, permissions and paths with `palate doctor`; finished work is kept",
    )


def _unexpected(error: Exception) -> int:
    """Libraries report a full disk in words of their own; everything else is the parser's or a bug."""
    if type(error).__module__.startswith("typer"):
        return _usage(error)
    from pipelines.errors import disk_full, full_disk_error

    if disk_full(error):
        return _explain(full_disk_error(Path.cwd(), "free some space and run the same command again"))
    return _usage(error)


def _usage(error: Exception) -> int:
    """The parser's own errors are shown as it shows them; anything else is a bug and keeps its traceback."""
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if isinstance(error, typer.Abort):
        return 130
    # typer carries its parser inside; the parser's error class is reached through the one typer exports.
    parser_error: Any = typer.BadParameter.__mro__[2]
    if isinstance(error, parser_error):
        error.show()
        if "--json" in sys.argv:
            fields = {"type": type(error).__name__, "what": error.format_message()}
            sys.stdout.write(json.dumps({"ok": False, "exit_code": 2, "error": fields}) + "\n")
        return 2
    raise error


if __name__ == "__main__":
    main()
