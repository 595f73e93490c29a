"""Commands about data: build, show, schema."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from feedback.errors import PalateError
from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context, with_options
from palate.wording import counted

SHOWN = ("dataset", "fates", "dead-letters", "model", "run")


class UnknownRun(PalateError, LookupError):
    """No run in the workspace has that key."""


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(build)
    app.command()(show)
    app.command()(schema)


def build(config: ConfigOption = None, set_: SetOption = None, json_: JsonOption = False) -> int:
    """Join, deduplicate and turn feedback into a preference dataset whose name is its content."""
    from palate import loop

    context = open_context(config, set_, json_)
    with context.exclusive():
        dataset = loop.build(context)
    _show_dataset(context.out, dataset)
    context.out.say(f"Why each event ended where it did: {with_options('palate ledger')}")
    context.out.say(f"Learn from the rows and judge what was learned: {with_options('palate run')}")
    code = loop.NOTHING_NEW if dataset.reused else loop.DONE
    context.out.result(
        {"ok": True, "exit_code": code, "version": dataset.version, "manifest": dataset.manifest}
    )
    return code


def show(
    what: Annotated[str, typer.Argument(help="dataset, fates, dead-letters, model or run.")] = "dataset",
    name: Annotated[
        str | None, typer.Argument(help="Dataset version, model version or alias, or run key.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Rows shown.", min=1)] = 20,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Look at a dataset, at where events ended, at dead letters, a model or a run's record."""
    from palate.config import ConfigError

    if what.isdigit() or what in ("champion", "candidate", "previous"):
        what, name = "model", what
    if what not in SHOWN:
        raise ConfigError("There is no such thing to show.", got=what, allowed=", ".join(SHOWN))
    context = open_context(config, set_, json_)
    document: dict[str, Any] = {
        "dataset": _dataset,
        "fates": _fates,
        "dead-letters": _dead_letters,
        "model": _model,
        "run": _run,
    }[what](context, name, limit)
    context.out.result({"ok": True, "exit_code": 0, **document})
    return 0


def schema(json_: JsonOption = False) -> int:
    """Print the JSON Schema of the events palate takes."""
    import json
    import sys

    from feedback.events import wire_schema

    sys.stdout.write(json.dumps(wire_schema(), indent=None if json_ else 2) + "\n")
    return 0


def _show_dataset(out: Any, dataset: Any) -> None:
    manifest = dataset.manifest
    out.table(
        f"Dataset {dataset.version}: {counted(manifest['rows'], 'preference row')}",
        ["rule", "rows"],
        sorted(manifest["by_rule"].items()),
    )
    out.table("", ["split", "rows"], sorted(manifest["by_split"].items()))
    balance = manifest["balance"]
    fates = sorted(balance["fates"].items())
    out.table(
        f"{counted(balance['in'], 'event')} in = {sum(balance['fates'].values())} with a fate",
        ["fate", "events"],
        fates,
    )


def _dataset(context: Any, name: str | None, limit: int) -> dict[str, Any]:
    from pipelines.dataset import load

    dataset = load(context.project.dir, name)
    _show_dataset(context.out, dataset)
    rows = (
        dataset.rows()
        .slice(0, limit)
        .select(["rule", "split", "margin", "weight", "chosen", "rejected"])
        .to_pylist()
    )
    context.out.table(
        f"First {counted(len(rows), 'row')}" if rows else "",
        ["rule", "split", "margin", "chosen", "rejected"],
        [
            (r["rule"], r["split"], f"{r['margin']:.2f}", _short(r["chosen"]), _short(r["rejected"]))
            for r in rows
        ],
    )
    return {"version": dataset.version, "path": str(dataset.path), "manifest": dataset.manifest}


def _fates(context: Any, _name: str | None, _limit: int) -> dict[str, Any]:
    from pipelines.ledger import balance

    ledger = balance(context.project.dir)
    mark = "balances" if ledger.balanced else "DOES NOT BALANCE"
    context.out.table(
        f"{counted(ledger.received, 'event')} received; the ledger {mark}",
        ["fate", "events"],
        list(ledger.fates.items()),
    )
    context.out.table("", ["reason", "events"], list(ledger.reasons.items()))
    return {
        "received": ledger.received,
        "balanced": ledger.balanced,
        "fates": ledger.fates,
        "reasons": ledger.reasons,
    }


def _dead_letters(context: Any, _name: str | None, limit: int) -> dict[str, Any]:
    from pipelines import events_table
    from pipelines.workspace import Layout

    layout = Layout(context.project.dir)
    letters: list[dict[str, Any]] = []
    total = 0
    if events_table.exists(layout):
        columns = ["reason", "detail", "partition", "offset", "raw"]
        table = (
            events_table.open_table(layout)
            .to_pyarrow_dataset()
            .to_table(columns=columns, filter=_is_dead_letter())
        )
        letters, total = table.slice(0, limit).to_pylist(), table.num_rows
    rest = f", the first {len(letters)} shown (all: --limit {total})" if total > len(letters) else ""
    context.out.say(f"{counted(total, 'dead letter')}{rest}")
    shown = [
        {**letter, "raw": (letter["raw"] or b"")[:200].decode("utf-8", errors="replace")}
        for letter in letters
    ]
    context.out.table(
        "",
        ["reason", "detail", "where", "as it came"],
        [(r["reason"], r["detail"], f"{r['partition']}@{r['offset']}", _short(r["raw"])) for r in shown],
    )
    if shown:
        first = with_options("palate fate '{partition}@{offset}'".format(**shown[0]))
        context.out.say(f"The story of one: {first}")
        context.out.say(
            f"Once more through validation: {with_options('palate replay --dead-letters --dry-run')}"
        )
    return {"dead_letters": shown, "total": total}


def _is_dead_letter() -> Any:
    import pyarrow.compute as pc

    return pc.field("kind") == "dead_letter"


def _model(context: Any, name: str | None, _limit: int) -> dict[str, Any]:
    from palate.base_model import on_disk
    from rollout.registry import version_info

    which = name or "candidate"
    info = version_info(context.registry, int(which) if which.isdigit() else which)
    fields = info.model_dump(mode="json")
    # The adapter names its base as the project does; whoever loads it elsewhere needs the directory.
    base = on_disk(info.base_id, context.project.models_dir)
    fields["base_path"] = str(base) if base else None
    context.out.table(
        f"{info.name} v{info.version}",
        ["", ""],
        [(k, v) for k, v in fields.items() if k not in ("gates", "tags")],
    )
    if not info.gates:
        context.out.say("No gate was judged.")
        return {"model": fields}
    context.out.table(
        "Gates", ["gate", "verdict", "why"], [(g["gate"], g["verdict"], g.get("why", "")) for g in info.gates]
    )
    return {"model": fields}


def _run(context: Any, name: str | None, _limit: int) -> dict[str, Any]:
    import json

    runs = sorted((context.project.dir / "runs").glob("*/record.json"), key=lambda p: p.stat().st_mtime)
    wanted = [p for p in runs if name is None or p.parent.name == name]
    if not wanted:
        known = ", ".join(p.parent.name for p in runs) or "none yet"
        raise UnknownRun("There is no such run.", got=name, allowed=known, next_step="palate run")
    record = json.loads(wanted[-1].read_text())
    context.out.say(json.dumps(record, indent=2))
    return {"record": record}


def _short(text: str | None, length: int = 60) -> str:
    flat = " ".join((text or "").split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
