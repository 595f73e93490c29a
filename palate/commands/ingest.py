"""`palate ingest`: files once, topics once or for as long as the process lives."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palate.commands.options import (
    ConfigOption,
    InputOption,
    JsonOption,
    SetOption,
    open_context,
    with_options,
)
from palate.wording import counted

if TYPE_CHECKING:
    from palate.context import Context
    from pipelines.ingest import IngestSummary


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(ingest)


def ingest(
    path: Annotated[
        str | None, typer.Argument(help="File, folder or kafka://broker/topic. Default: [source] path.")
    ] = None,
    input_: InputOption = None,
    source: Annotated[
        str | None,
        typer.Option(help="Format, or kafka://broker/topic[,topic]. Default: recognised, or [source] name."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Go on until stopped, or end when all is read.")
    ] = False,
    group: Annotated[
        str | None, typer.Option(help="Share the topics' partitions with all that name the same group.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics on this port.", min=0, max=65535)
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address the metrics are served at.")] = "127.0.0.1",
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> int:
    """Read new events, validate them, and keep each as an event or as a dead letter with its reason."""
    from palate import loop
    from pipelines.kafka.settings import is_url

    _only_one(path, input_)
    context = open_context(config, set_, json_)
    place, name = _place(context, path or (str(input_) if input_ else None), source)
    streamed = follow or is_url(place)
    if streamed:
        summary = _follow(context, place, name, follow, group, metrics_port, metrics_host)
    else:
        _only_for_streams(group, metrics_port)
        with context.exclusive():
            summary = loop.ingest(context, Path(place), name)
    code = loop.NOTHING_NEW if summary.received == 0 and not summary.gaps and not follow else loop.DONE
    _show(context, summary, streamed)
    context.out.result({"ok": True, "exit_code": code, "source": name, **vars(summary)})
    return code


def _place(context: Context, given: str | None, source: str | None) -> tuple[str, str]:
    """What to read and which source understands it, from the command line, the project file or the data.

    Raises:
        NoInput: nothing is named.
        SourceError: the format is not named and none, or more than one, fits.
    """
    from palate.config import source_path
    from palate.loop import NoInput
    from pipelines.kafka.settings import is_url
    from pipelines.mlflow_traces_fetch import MLFLOW, is_tracking_uri
    from pipelines.sources import KAFKA

    if source is not None and is_url(source):
        return source, KAFKA
    project = context.project
    if given is not None and is_url(given):
        return given, KAFKA
    if given is None and project.source.path is not None and is_url(project.source.path):
        return project.source.path, KAFKA
    server = given if given is not None else project.source.path
    if server is not None and source in (None, MLFLOW) and is_tracking_uri(server):
        return _fetched(context, server), MLFLOW
    path = source_path(project, Path(given) if given is not None else None)
    if path is None:
        raise NoInput(
            "There is nothing to ingest.",
            next_step="name a file or topic: palate ingest events.jsonl, or set [source] path",
        )
    if source is not None:
        return str(path), source
    if given is None or "name" in project.source.model_fields_set:
        return str(path), project.source.name
    from feedback.sources import recognise

    if _holds_nothing(path):
        return str(path), project.source.name  # nothing to recognise yet
    name = recognise(path)
    context.out.say(f"{path} is read as {name}.")
    return str(path), name


def _holds_nothing(path: Path) -> bool:
    """Whether this is an empty file, or a folder without any or with such files only."""
    if path.is_dir():
        return all(_holds_nothing(inside) for inside in path.iterdir())
    return path.is_file() and path.stat().st_size == 0


def _fetched(context: Context, server: str) -> str:
    """The folder with the traces of an MLflow server, after looking for new and newly judged ones.

    Raises:
        NoInput: the server has no finished trace.
        InputError, PipelineError: see `pipelines.mlflow_traces_fetch.fetch`.
    """
    from datetime import UTC, datetime

    from feedback.sources.mlflow_traces import Config
    from palate.loop import NoInput
    from pipelines.mlflow_traces_fetch import MLFLOW, fetch
    from pipelines.sources import settings_of

    project = context.project
    config = settings_of(MLFLOW, project.source.options)
    assert isinstance(config, Config)
    got = fetch(server, project.dir, now=datetime.now(UTC), config=config)
    context.out.say(
        f"{got.looked_at} traces looked at, {got.written} new or changed, {got.unfinished} running."
    )
    if not any(got.folder.glob("*.jsonl")):
        raise NoInput("The MLflow server has no finished traces yet.", got=server)
    return str(got.folder)


def _only_one(path: str | None, input_: Path | None) -> None:
    from palate.config import ConfigError

    if path is not None and input_ is not None:
        raise ConfigError(
            "There are two places to read from.",
            got=f"{path} and --input {input_}",
            next_step="name one; call again for the other",
        )


def _only_for_streams(group: str | None, metrics_port: int | None) -> None:
    from palate.config import ConfigError

    if group is not None or metrics_port is not None:
        raise ConfigError(
            "--group and --metrics-port are for topics and for --follow.",
            next_step="leave them out, or add --follow",
        )


def _follow(
    context: Context,
    place: str,
    name: str,
    follow: bool,
    group: str | None,
    metrics_port: int | None,
    metrics_host: str,
) -> IngestSummary:
    """Runs beside others in the same workspace: what they commit and what this commits never mix."""
    from palate.following import FollowView
    from pipelines.follow import Status
    from pipelines.follow import follow as run
    from pipelines.kafka.metrics import Metrics

    project = context.project
    settings: dict[str, Any] = dict(project.source.options)
    if group is not None:
        settings |= {"group": group, "share": True}
    with ExitStack() as stack:
        stop = stack.enter_context(_stop_on_signals())
        view = stack.enter_context(FollowView(context.out))
        metrics = (
            stack.enter_context(Metrics(metrics_port, metrics_host)) if metrics_port is not None else None
        )
        if metrics is not None:
            context.out.say(f"Metrics: http://{metrics_host}:{metrics.port}/metrics")

        def report(status: Status) -> None:
            view.show(status)
            if metrics is not None:
                metrics.update(status)

        return run(
            place,
            source=name,
            source_config=settings,
            workspace=project.dir,
            config=project.ingest,
            runner=project.pipeline,
            once=not follow,
            stop=stop,
            report=report,
        )


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one interrupts as usual."""
    stop = threading.Event()

    def ask(number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(context: Context, summary: IngestSummary, streamed: bool) -> None:
    out = context.out
    rows: list[tuple[str, object]] = [("interactions", summary.interactions), ("feedback", summary.feedback)]
    rows += [(f"dead letter: {reason}", n) for reason, n in sorted(summary.dead_letters.items())]
    rows += [(f"dropped by the format: {reason}", n) for reason, n in sorted(summary.dropped.items())]
    if summary.received or summary.dropped:
        out.table(f"Received {counted(summary.received, 'event')}", ["fate", "events"], rows)
    for gap in summary.gaps:
        out.say(f"Lost before they were read: {gap}")
    if summary.pending_bytes:
        out.say(f"{counted(summary.pending_bytes, 'byte')} of an unfinished last line wait for their end.")
    if summary.sent_dead_letters:
        out.say(f"Sent {counted(summary.sent_dead_letters, 'dead letter')} to their topic.")
    if summary.received == 0:
        # Only a folder of events may be without any part to read; following counts no parts before there is news.
        empty = "" if summary.partitions or streamed else " The folder has no *.jsonl file yet."
        out.say(f"Nothing new.{empty}")
        return
    if summary.dead_letters:
        out.say(f"Dead letters are kept: {with_options('palate show dead-letters')}")
        if sum(summary.dead_letters.values()) == summary.received:
            out.say(
                "Nothing of this was an event. Is each event on one line of its own, and the file in UTF-8 "
                "(not UTF-16)? The format is in docs/events.md; other formats are named with --source."
            )
    out.say(f"Duplicates and orphans are settled when preferences are built: {with_options('palate build')}")
