"""Runs one Beam pipeline on the runner that the project names.

The runner is always named: Beam's `DirectRunner` tries to download Prism and falls back to another one, so
behaviour would depend on the network. What runs where:

    in_process       this process; what everything is tested on
    dask             a local or remote Dask cluster; bounded pipelines of one output in the global window
    module.Class     any other runner, with its own options: Flink, Spark, Dataflow, a portable job server

`conf/runners/` has a ready file for each.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .errors import PipelineError
from .processes import available

IN_PROCESS = "in_process"
DASK = "dask"
_WORTH_PROCESSES = 25_000
"""Records that take about as long as starting the processes."""
_CHATTY = ("apache_beam", "great_expectations")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_FN_API = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"


class RunnerConfig(BaseModel):
    """Which Beam runner works the pipelines."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    runner: str = IN_PROCESS
    """`in_process`, `dask`, or the class of another runner as `module.Class`."""
    workers: int | None = Field(default=None, ge=1)
    """Processes that the in-process runner has beside this one for large work: as many as there are cores by
    default, 1 for none. Other runners have options of their own for this."""
    options: tuple[str, ...] = ()
    """Options for that runner as on its command line, e.g. `--flink_master=host:8081`."""

    def processes(self, records: int) -> int:
        """Processes to start beside this one for so many records; 0 where they would not pay for their start."""
        if self.runner != IN_PROCESS or self.workers == 1 or records < _WORTH_PROCESSES:
            return 0
        return self.workers or available()

    @field_validator("runner")
    @classmethod
    def _known(cls, runner: str) -> str:
        if runner in (IN_PROCESS, DASK) or _CLASS.fullmatch(runner):
            return runner
        raise ValueError(f"a runner is {IN_PROCESS}, {DASK} or module.Class")


def given(values: list[Any], config: RunnerConfig | None = None) -> Any:
    """The transform that a pipeline begins with: these elements, spread over the workers of a cluster."""
    import apache_beam as beam

    return beam.Create(values, reshuffle=(config or RunnerConfig()).runner != IN_PROCESS)


def run_pipeline(construct: Callable[[Any], None], config: RunnerConfig | None = None) -> None:
    """Builds a pipeline with `construct(pipeline)` and runs it to its end.

    Args:
        construct: adds the transforms; imports their modules itself, after Beam was imported quietly. May be
            called twice.
        config: see `RunnerConfig`; this process when None.

    Raises:
        PipelineError: there is no such runner, it does not take the options, or it would compute something
            else than the pipeline says.
        Exception: what a transform raised, as Beam wraps it. Side effects of a failed run are files below a
            staging folder only, so the caller drops them by not committing.
    """
    config = config or RunnerConfig()
    with _logging_kept():
        import_beam()
        for name in _CHATTY:
            # A failure reaches the caller as an exception; its log lines would only repeat it.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        pipeline = _pipeline(config)
        construct(pipeline)
        if config.runner == DASK and (why := _dask_would_drop(pipeline)):
            logging.getLogger(__name__).info("worked in this process, as on Dask %s would be lost", why)
            pipeline = _pipeline(RunnerConfig())
            construct(pipeline)
        result = pipeline.run()
        try:
            result.wait_until_finish()
        finally:
            if (client := getattr(result, "client", None)) is not None:
                client.close()  # of Dask's runner, which leaves it to ask a cluster that may be gone


def _pipeline(config: RunnerConfig) -> Any:
    """An empty pipeline for the runner."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    flags = list(config.options)
    if config.runner == DASK and not any("dask_npartitions" in flag for flag in flags):
        flags.append("--dask_partition_size=1")  # else up to 128 ranges are one task
    # A list even when empty, or Beam would read this program's own command-line arguments.
    return beam.Pipeline(runner=_runner(config.runner), options=PipelineOptions(flags))


def _runner(name: str) -> Any:
    path = {IN_PROCESS: _FN_API, DASK: _DASK}.get(name, name)
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise PipelineError(
            "The runner could not be started.",
            got=f"{name!r} ({type(error).__name__}: {error})",
            allowed=f"{IN_PROCESS}, {DASK}, or a class of an installed module",
            next_step="correct [pipeline] runner, or install what it needs; see conf/runners/",
        ) from error


def _dask_would_drop(pipeline: Any) -> str | None:
    """What Beam's Dask runner would lose of this pipeline without a word, if anything.

    Raises:
        PipelineError: the pipeline has windows; they are part of its meaning and Dask ignores them.
    """
    from apache_beam.pipeline import PipelineVisitor
    from apache_beam.transforms.window import GlobalWindows

    produced: set[Any] = set()
    consumed: set[Any] = set()
    windows: set[str] = set()
    tags: set[str] = set()

    class Look(PipelineVisitor):
        def visit_transform(self, transform_node: Any) -> None:
            consumed.update(transform_node.inputs)
            for tag, collection in transform_node.outputs.items():
                produced.add(collection)
                if tag is not None and tag != "None":
                    tags.add(str(tag))
                if not isinstance(collection.windowing.windowfn, GlobalWindows):
                    windows.add(type(collection.windowing.windowfn).__name__)

    pipeline.visit(Look())
    if windows:
        raise PipelineError(
            "Dask ignores windows, so this pipeline would give something else.",
            got=", ".join(sorted(windows)),
            allowed="the global window",
            next_step='set [pipeline] runner = "in_process", or a runner with event time; see conf/runners/',
        )
    if tags or len(produced - consumed) > 1:
        return "all outputs but the last"
    return None


def import_beam() -> None:
    """Imports Beam without its warning about absent cloud clients."""
    with _logging_kept():
        logging.disable(logging.WARNING)
        import apache_beam  # noqa: F401


@contextmanager
def _logging_kept() -> Iterator[None]:
    """Undoes what Beam and Great Expectations do to the logging of the whole process."""
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    levels = {name: logging.getLogger(name).level for name in _CHATTY}
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
        for name, kept in levels.items():
            logging.getLogger(name).setLevel(kept)
