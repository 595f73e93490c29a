"""The command that tells what became of one event."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from palate.commands.options import ConfigOption, JsonOption, SetOption, open_context
from palate.wording import counted, flat

if TYPE_CHECKING:
    from palate.console import Out
    from palate.lineage import ModelUse, RunUse
    from pipelines.story import Arrival, Story


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(fate)


def fate(
    event_id: Annotated[
        str, typer.Argument(help="Id of an interaction or feedback, or partition@offset of any row.")
    ],
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Tell one event's story: when and where it came from, what it was joined with, what was trained on it."""
    from palate import lineage, whereabouts
    from pipelines.story import story

    context = open_context(config, set_, json_)
    found = story(context.project.dir, event_id)
    if not found.arrivals:
        _unknown(event_id)
    versions = {use.version for use in found.datasets}
    runs = lineage.runs(context.project, versions)
    models = lineage.models(context, versions)
    files = {
        str(arrival.place): whereabouts.in_file(
            context.project, arrival.source, arrival.place.partition, arrival.place.offset
        )
        for arrival in found.arrivals
    }
    _arrivals(context.out, found, files)
    _joins(context.out, found)
    _datasets(context.out, found)
    _training(context.out, runs, models, bool(versions))
    document = asdict(found)
    for arrival in document["arrivals"]:
        arrival["file"] = files["{partition}@{offset}".format(**arrival["place"])]
    document["runs"] = [asdict(run) for run in runs]
    document["models"] = [asdict(model) for model in models]
    context.out.result({"ok": True, "exit_code": 0, **document})
    return 0


def _unknown(event_id: str) -> None:
    from feedback.errors import PalateError

    raise PalateError(
        "Nothing is known of that event: no row of the events table has this id.",
        got=event_id[:200],
        allowed="an interaction_id, a feedback_id, or partition@offset as `palate show dead-letters` shows it",
        next_step="palate ingest (it may not have been read yet), or palate show dead-letters",
    )


def _arrivals(out: Out, found: Story, files: dict[str, str | None]) -> None:
    last = found.arrivals[-1]
    out.head(f"{last.kind.replace('_', ' ')} {found.event_id}")
    if last.said:
        out.say(flat(last.said))
    for number, arrival in enumerate(found.arrivals, 1):
        rows: list[tuple[str, object]] = [
            ("received", f"{arrival.ingest_time:%Y-%m-%d %H:%M:%S} UTC"),
            ("event time", f"{arrival.event_time:%Y-%m-%d %H:%M:%S} UTC" if arrival.event_time else "–"),
            ("source", arrival.source),
            ("place", str(arrival.place)),
        ]
        if files[str(arrival.place)]:
            rows.append(("file", files[str(arrival.place)]))
        rows += _verdict(arrival)
        count = len(found.arrivals)
        out.table(f"Arrival {number} of {count}" if count > 1 else "", ["", "what"], rows)


def _verdict(arrival: Arrival) -> list[tuple[str, object]]:
    """Whether it is an event, and where it ended."""
    rows: list[tuple[str, object]] = []
    if arrival.kind == "dead_letter":
        rows.append(("validated", f"no: {flat(arrival.detail or arrival.fate_reason or '')}"))
    else:
        rows.append(("validated", "yes"))
    rows.append(("fate", f"{arrival.fate} ({arrival.fate_reason})" if arrival.fate_reason else arrival.fate))
    if arrival.replay_of:
        rows.append(("replay of", f"the dead letter at {arrival.replay_of}"))
    rows += [("replayed as", str(place)) for place in arrival.replayed_as]
    return rows


def _joins(out: Out, found: Story) -> None:
    if found.related:
        out.table(
            "Joined with",
            ["", "event", "what it says"],
            [
                (r.relation, r.event_id, flat(r.said, 70) if r.arrived else "has not arrived")
                for r in found.related
            ],
        )


def _datasets(out: Out, found: Story) -> None:
    if found.rows:
        out.table(
            counted(len(found.rows), "preference row"),
            ["row", "rule", "split", "chosen", "rejected", "in datasets"],
            [
                (
                    row.preference_id[:12],
                    row.rule,
                    row.split,
                    flat(row.chosen, 40),
                    flat(row.rejected, 40) if row.rejected is not None else _unpaired(row.label),
                    " ".join(row.versions),
                )
                for row in found.rows[:20]
            ],
        )
    if found.datasets:
        out.table(
            "Datasets",
            ["version", "created", "rows by split"],
            [
                (
                    f"{use.version} (newest)" if use.newest else use.version,
                    use.created,
                    ", ".join(f"{split}: {count}" for split, count in use.rows.items()),
                )
                for use in found.datasets
            ],
        )
    else:
        out.say("No dataset has a row that rests on it.")
    for version in found.damaged:
        out.say(f"Dataset {version} is damaged and was not looked into.")


def _unpaired(label: bool | None) -> str:
    return "–" if label is None else "– (liked)" if label else "– (disliked)"


def _training(out: Out, runs: list[RunUse], models: list[ModelUse], used: bool) -> None:
    if runs:
        out.table(
            "Runs on these datasets",
            ["run", "dataset", "created", "trained", "MLflow run"],
            [
                (r.key, r.dataset_version, r.created, "yes" if r.trained else "not finished", r.run_id)
                for r in runs
            ],
        )
    elif used:
        out.say("No run has used these datasets.")
    if models:
        out.table(
            "Models that came of them",
            ["model", "dataset", "gates", "aliases now"],
            [
                (f"{m.name} v{m.version}", m.dataset_version, m.gates, ", ".join(m.aliases) or "–")
                for m in models
            ],
        )
