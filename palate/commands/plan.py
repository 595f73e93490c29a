"""Command about an update that is not made yet: plan."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context, with_options
from palate.wording import counted

if TYPE_CHECKING:
    from palate.console import Out
    from palate.plan import Plan
    from palate.plan_lift import Said

Cells = list[tuple[str, str]]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(plan)


def plan(
    method: Annotated[
        str | None, typer.Option(help="Plan an update by this method. Default: [train] method.")
    ] = None,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Count only; try no step, read no pair with the champion.")
    ] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Say what an update would take and give, before anything is trained; nothing is written."""
    from palate.plan import make

    chosen = [] if method is None else [f"train.method={method}"]
    context = open_context(config, [*(set_ or []), *chosen], json_)
    found = make(context, probe=not no_probe)
    _show(context.out, found)
    context.out.result({"ok": True, "exit_code": 0, **found.to_dict()})
    return 0


def _show(out: Out, found: Plan) -> None:
    champion = "the untouched base model" if found.champion is None else f"champion v{found.champion}"
    out.head(f"An update by {found.method} from {champion}, on dataset {found.dataset}")
    out.table("Rows of the split `train`", ["method", "usable", "left out", ""], _rows(found))
    out.table("Cost", ["", "estimate"], _cost(found))
    out.table("Worth", ["", "value [95 % interval]", "from"], _worth(found))
    out.table("People", ["", ""], _people(found))
    out.say(_verdict(found))
    out.say(f"Next: {with_options('palate train')}")


def _rows(found: Plan) -> list[tuple[str, str, str, str]]:
    def left_out(reasons: dict[str, int]) -> str:
        return ", ".join(f"{reason.replace('_', ' ')}: {n}" for reason, n in sorted(reasons.items())) or "–"

    return [
        (
            name + (" (planned)" if name == found.method else ""),
            counted(each.rows, each.unit),
            left_out(each.left_out),
            "" if each.refused is None else f"too few: {each.refused.allowed}",
        )
        for name, each in found.rows.items()
    ]


def _cost(found: Plan) -> Cells:
    cost, cells = found.cost, []
    if (size := cost.size) is not None:
        cells += [
            ("optimizer steps", str(size.steps)),
            ("tokens read in training", f"{size.tokens:,}"),
            ("tokens read for the champion's log-probabilities", f"{size.reference_tokens:,}"),
            ("longest row", counted(size.longest, "token")),
        ]
    if cost.probe is None or cost.duration is None or cost.disk_needed is None:
        return [*cells, ("time, memory and disk", cost.why)]
    took = cost.duration
    cells.append(
        ("time of the update alone", f"{_span(took.seconds)} (from {_span(took.low)} to {_span(took.high)})")
    )
    for each in cost.probe.memory:
        parts = {
            "libraries": each.libraries,
            "weights": each.weights,
            "optimizer": each.optimizer,
            "activations and the rest": each.activations,
        }
        told = ", ".join(f"{name} {_bytes(size)}" for name, size in parts.items() if size)
        cells.append((f"memory at most, {each.device}", f"{_bytes(each.peak)} ({told})"))
        free = "unknown" if each.free is None else _bytes(each.free)
        cells.append((f"memory there is, {each.device}", free))
    cells.append(("disk for checkpoints", f"{_bytes(cost.disk_needed)} of {_bytes(cost.disk_free)} free"))
    return cells


def _worth(found: Plan) -> list[tuple[str, str, str]]:
    from palate.summary import interval

    def row(name: str, said: Said) -> tuple[str, str, str]:
        return name, interval(said.estimate), said.why

    lift = found.lift
    return [
        row("expected win rate over the champion", lift.win_rate),
        row("ceiling of what it can be seen to win", lift.ceiling),
        row("held-out pairs the champion ranks right", lift.champion),
    ]


def _people(found: Plan) -> Cells:
    seen, canary, settings = found.traffic, found.canary, found.settings
    agents = ", ".join("none named" if agent is None else agent for agent in found.agents) or "none"
    newest = (
        "no event" if seen.until is None else f"{seen.days:.3g} days up to {seen.until:%Y-%m-%d %H:%M} UTC"
    )
    satisfied = "–" if canary.satisfied is None else f"{canary.satisfied:.1%}"
    days = "–" if canary.days is None else _span(canary.days * timedelta(days=1).total_seconds())
    return [
        ("newest traffic", newest),
        ("agents it learns from", agents),
        ("users it concerns", f"{seen.affected} of {seen.people}"),
        ("verdicts a day", f"{canary.verdicts_per_day:.3g}, {satisfied} satisfied"),
        (f"canary with {settings.canary_share:.0%} of the traffic, to see {settings.difference:.1%}", days),
        ("", canary.why),
    ]


def _verdict(found: Plan) -> str:
    cost = found.cost
    if cost.probe is not None and cost.probe.warning:
        return f"Careful: {cost.probe.warning}"
    if cost.fits is None:
        return "Whether it fits this machine is not known."
    if cost.fits:
        return "It fits this machine."
    short = [each.device for each in cost.probe.memory if each.fits is False] if cost.probe else []
    what = f"memory ({', '.join(short)})" if short else "disk"
    return f"It does NOT fit: {what} is short. A smaller micro-batch in [train.{found.method}] needs less."


def _bytes(size: int) -> str:
    """`1.2 GiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.3g} {unit}"


def _span(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`, `2.1 days`."""
    for least, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * least:
            return f"{seconds / least:.3g} {unit}"
    return f"{seconds:.0f} s"
