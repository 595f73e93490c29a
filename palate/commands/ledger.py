"""The command that shows whether everything that came in is accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context
from palate.wording import counted

if TYPE_CHECKING:
    from datetime import datetime

SinceOption = Annotated[
    str | None, typer.Option(help="First moment of arrival: 2026-03-01, an RFC 3339 time, or 24h, 7d ago.")
]
UntilOption = Annotated[str | None, typer.Option(help="Moment before which it arrived; written as --since.")]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(ledger)


def ledger(
    since: SinceOption = None,
    until: UntilOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Balance what arrived against where it ended; fails when an event has no fate or more than one."""
    from palate import context as context_module
    from palate import lineage
    from pipelines import account

    context = open_context(config, set_, json_)
    since_, until_ = time_range(since, until, now=context_module.now())
    used = {run.dataset_version for run in lineage.runs(context.project) if run.trained}
    found = account.account(context.project.dir, since=since_, until=until_, trained_on=used)
    _print(context.out, found, since, until)
    code = 0 if found.balanced else 1
    context.out.result({"ok": code == 0, "exit_code": code, **found.document()})
    return code


def time_range(
    since: str | None, until: str | None, *, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """The moments that the two options mean.

    Raises:
        ConfigError: one of them is no moment, or nothing can have arrived between them.
    """
    from palate.config import ConfigError
    from palate.timespan import moment

    found = moment(since, now=now), moment(until, now=now)
    if found[0] is not None and found[1] is not None and found[0] >= found[1]:
        raise ConfigError(
            "Nothing can have arrived between these moments.",
            got=f"--since {since} is {found[0]:%Y-%m-%d %H:%M:%S} UTC, "
            f"--until {until} is {found[1]:%Y-%m-%d %H:%M:%S} UTC",
            allowed="--since earlier than --until",
        )
    return found


def _print(out: Any, found: Any, since: str | None, until: str | None) -> None:
    span = "".join([f" since {since}" if since else "", f" until {until}" if until else ""])
    mark = "the ledger balances" if found.balanced else "THE LEDGER DOES NOT BALANCE"
    out.table(
        f"{counted(found.received, 'event')} received{span}; {mark}",
        ["fate", "events", "share"],
        [(name, count, f"{count / max(found.received, 1):.1%}") for name, count in found.fates.items()],
    )
    if not found.received and span:
        out.say("These are times of arrival, not of the events.")
    if found.reasons:
        out.table("Why", ["fate/reason", "events"], list(found.reasons.items()))
    if found.gaps:
        out.table(
            "Gaps: records that had expired at their source before they were read",
            ["partition", "lost", "noticed"],
            [(gap.partition, gap.detail, f"{gap.ingest_time:%Y-%m-%d %H:%M:%S} UTC") for gap in found.gaps],
        )
    for line in found.faults:
        out.say(f"Not balanced: {line}")
