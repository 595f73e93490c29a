"""The command that puts dead letters back through validation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palate.commands.ledger import SinceOption, UntilOption, time_range
from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context, with_options
from palate.wording import counted

if TYPE_CHECKING:
    from palate.console import Out
    from pipelines.replay import Letters, ReplaySummary


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(replay)


def replay(
    dead_letters: Annotated[
        bool,
        typer.Option("--dead-letters", help="Replay dead letters; says so, because nothing else can be."),
    ] = False,
    since: SinceOption = None,
    until: UntilOption = None,
    reason: Annotated[
        list[str] | None, typer.Option(help="Only letters refused for this reason (repeatable).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would become of them.")] = False,
    edit_with: Annotated[
        str | None,
        typer.Option(help="module:function from (raw bytes, reason, detail) to mended bytes, or None."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the letters as JSON lines, to be mended by hand, and stop.")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Replay the mended letters of a file that --export wrote.")
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Validate dead letters again; those that pass now become events, each once, and are linked to their letter."""
    from palate import context as context_module
    from palate.loop import DONE, NOTHING_NEW
    from pipelines import replay as replays
    from pipelines import replay_files

    _refuse_unclear(dead_letters, export is not None, from_, edit_with)
    context = open_context(config, set_, json_)
    now = context_module.now()
    letters = replays.Letters(*time_range(since, until, now=now), tuple(reason or ()))
    if export is not None:
        return _export(context.out, context.project.dir, letters, export)
    edit = replays.load_edit(edit_with) if edit_with else None
    mended = replay_files.repaired_letters(from_) if from_ else None
    with context.out.stage("Replay dead letters", "partitions") as advance:
        summary = replays.replay(
            context.project.dir,
            letters,
            config=context.project.ingest,
            now=now,
            edit=edit,
            repaired=mended,
            dry_run=dry_run,
            progress=lambda _what, done, total: advance(done, total),
        )
        advance(
            1, 1, f"{summary.passing} of {summary.letters} {'would pass' if dry_run else 'became events'}"
        )
    _print(context.out, summary, dry_run)
    code = DONE if summary.passing else NOTHING_NEW
    context.out.result({"ok": True, "exit_code": code, "dry_run": dry_run, **_document(summary)})
    return code


def _refuse_unclear(dead_letters: bool, export: bool, from_: Path | None, edit_with: str | None) -> None:
    """Options that do not say what is to be done."""
    from feedback.errors import PalateError
    from palate.config import ConfigError

    if not dead_letters and from_ is None:
        raise ConfigError(
            "Say what to replay.",
            allowed="--dead-letters or --from",
            next_step="palate replay --dead-letters --dry-run",
        )
    if from_ is not None and not from_.is_file():
        raise PalateError(
            "There is no such file.",
            got=from_,
            next_step="palate replay --dead-letters --export letters.jsonl writes one",
        )
    if export and (from_ or edit_with):
        raise ConfigError(
            "--export only writes letters down, as they are.",
            got="--export with --from or --edit-with",
            allowed="one of them at a time",
        )


def _export(out: Out, workspace: Path, letters: Letters, path: Path) -> int:
    from palate.config import ConfigError
    from pipelines import replay_files

    try:
        count = replay_files.export(workspace, letters, path)
    except FileExistsError:
        raise ConfigError(
            "That file exists and is not touched.", got=path, next_step="name another file"
        ) from None
    out.say(f"Wrote {counted(count, 'dead letter')}.")
    if count:
        out.say(f"Mend `raw` in each line, then: {with_options(f'palate replay --from {path}')}")
    out.result({"ok": True, "exit_code": 0, "exported": count, "file": str(path.resolve())})
    return 0


def _print(out: Out, summary: ReplaySummary, dry_run: bool) -> None:
    rows: list[tuple[str, object]] = [
        ("would pass now" if dry_run else "became events", summary.passing),
        ("edited first", summary.edited),
        ("replayed before", summary.replayed_before),
    ]
    rows += [(f"still refused: {reason}", count) for reason, count in summary.refused.items()]
    out.table(counted(summary.letters, "dead letter"), ["", "letters"], rows)
    if summary.examples:
        out.table(
            "Some that are still refused",
            ["where", "reason", "detail"],
            [(f"{e.partition}@{e.offset}", e.reason, e.detail) for e in summary.examples],
        )
        by_hand = with_options("palate replay --dead-letters --export letters.jsonl")
        out.say(f"To mend them by hand: {by_hand}; by program: --edit-with module:function")
    if not summary.letters:
        out.say(
            f"No dead letter fits these options. Those there are: {with_options('palate show dead-letters')}"
        )
    if summary.ingested is not None:
        out.say(f"Joined and turned into preferences by the next build: {with_options('palate build')}")


def _document(summary: ReplaySummary) -> dict[str, object]:
    document = {**vars(summary), "examples": [vars(example) for example in summary.examples]}
    document["ingested"] = vars(summary.ingested) if summary.ingested else None
    return document
