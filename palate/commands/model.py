"""Commands about models: demo, run, train, evaluate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from palate.commands.options import (
    ConfigOption,
    InputOption,
    JsonOption,
    SetOption,
    given_options,
    open_context,
)

DEMO_SETTINGS = Path(__file__).parent.parent / "demo.toml"


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(demo)
    app.command()(run)
    app.command()(train)
    app.command()(evaluate)


def demo(
    seed: Annotated[int, typer.Option(help="Seed of the simulated people and of training.", min=0)] = 0,
    shuffled_labels: Annotated[
        bool,
        typer.Option("--shuffled-labels", help="Control: feedback that says nothing. Must fail its gate."),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Go on in the demo's workspace instead of starting afresh.")
    ] = False,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Close the whole loop on simulated users, from the champion's answers to a promotable candidate."""
    from palate import demo as steps
    from palate import loop, summary, validation

    started = time.monotonic()
    overrides = [f"seed={seed}", *(set_ or [])]
    context = open_context(DEMO_SETTINGS, overrides, json_)
    context = steps.with_heldout_prompts(context)
    context.out.say(
        "Simulated users: their tastes are made up, the model, its training and the pipeline are real."
    )
    with context.exclusive():
        steps.prepare_workspace(context, keep, shuffled_labels)
        events = steps.make_events(context)
        if shuffled_labels:
            events = steps.shuffle_labels(events, seed)
        loop.ingest(context, events)
        arrived = validation.check_arrivals(context)
        dataset = loop.build(context)
        outcome = loop.work(context, dataset, lambda rows: steps.satisfaction(context, rows), arrived)
    seconds = time.monotonic() - started
    summary.print_outcome(context, outcome, seconds)
    context.out.result(summary.document(context, outcome, seconds))
    return outcome.exit_code


def run(
    project: Annotated[Path | None, typer.Argument(help="Project file. Default: palate.toml.")] = None,
    input_: InputOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Turn the loop once: ingest, build, learn, judge, register a candidate. Safe to kill and to repeat."""
    from palate import loop, summary, validation

    started = time.monotonic()
    context = open_context(project or config, set_, json_)
    with context.exclusive():
        loop.ingest_if_named(context, input_)
        arrived = validation.check_arrivals(context)
        dataset = loop.build(context)
        outcome = loop.work(context, dataset, arrived=arrived)
    seconds = time.monotonic() - started
    summary.print_outcome(context, outcome, seconds)
    context.out.result(summary.document(context, outcome, seconds))
    return outcome.exit_code


def train(
    dataset: Annotated[str | None, typer.Option(help="Dataset version. Default: the newest.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Fit the reward models and update the policy on a dataset; nothing is judged or registered yet."""
    from palate import loop

    context = open_context(config, set_, json_)
    with context.exclusive():
        outcome = loop.train(context, dataset)
    out = context.out
    metrics = outcome.trained.metrics if outcome.trained else {}
    out.table("Trained", ["", "value"], [(k, f"{v:.4g}") for k, v in metrics.items()])
    out.say(
        f"Next: palate evaluate {given_options()}".rstrip()
        if outcome.trained
        else "No policy update: [train] method is none."
    )
    out.result(
        {"ok": True, "exit_code": 0, "run_key": outcome.run_key, "run_id": outcome.run_id, "metrics": metrics}
    )
    return 0


def evaluate(
    dataset: Annotated[str | None, typer.Option(help="Dataset version. Default: the newest.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Judge what `palate train` made against the champion, write the report and register the candidate."""
    from palate import loop, summary

    started = time.monotonic()
    context = open_context(config, set_, json_)
    with context.exclusive():
        outcome = loop.evaluate(context, dataset)
    seconds = time.monotonic() - started
    summary.print_outcome(context, outcome, seconds)
    context.out.result(summary.document(context, outcome, seconds))
    return outcome.exit_code
