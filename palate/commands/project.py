"""Commands about the project itself: init, doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(init)
    app.command()(doctor)


def init(
    print_: Annotated[bool, typer.Option("--print", help="Print it instead of writing it.")] = False,
    json_: JsonOption = False,
) -> int:
    """Write a commented palate.toml with every setting at its default."""
    import json
    import sys

    from palate.config import DEFAULT_FILE, ConfigError
    from palate.console import Out
    from palate.template import commented

    text = commented()
    if print_:
        sys.stdout.write(json.dumps({"ok": True, "exit_code": 0, "toml": text}) + "\n" if json_ else text)
        return 0
    try:
        with DEFAULT_FILE.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{DEFAULT_FILE} exists and is not touched.", next_step="palate init --print shows a fresh one"
        ) from None
    out = Out(json_)
    out.say(f"Wrote {DEFAULT_FILE}. Next: palate doctor, then palate ingest <events.jsonl> and palate run")
    out.result({"ok": True, "exit_code": 0, "file": str(DEFAULT_FILE.resolve())})
    return 0


def doctor(
    method: Annotated[
        str | None,
        typer.Option(help="Check an update's numbers on the installed libraries: a training method, or all."),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Check the installation, workspace, model, registry and disk; with --method, what an update rests on."""
    from palate.checks import run_checks

    context = open_context(config, set_, json_)
    if method is not None:
        from palate.preflight import preflight

        return preflight(context, method)
    checks = run_checks(context)
    context.out.table("palate doctor", ["check", "", "found"], [(c.name, c.mark, c.found) for c in checks])
    for check in checks:
        if check.advice:
            context.out.say(f"{check.name}: {check.advice}")
    code = 1 if any(c.state == "fail" for c in checks) else 0
    context.out.say("Something must be set right first." if code else "Ready.")
    context.out.result({"ok": code == 0, "exit_code": code, "checks": [vars(c) for c in checks]})
    return code
