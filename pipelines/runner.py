"""Runs one Beam pipeline in this process, on the runner that is meant.

The runner is named: `DirectRunner` tries to download Prism and falls back to another one, so behaviour would
depend on the network. One worker, because payloads go through files and a second worker only adds copies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_CHATTY = ("apache_beam", "great_expectations")


def run_pipeline(construct: Callable[[Any], None]) -> None:
    """Builds a pipeline with `construct(pipeline)`, runs it to its end on `FnApiRunner`.

    Args:
        construct: adds the transforms; imports their modules itself, after Beam was imported quietly.

    Raises:
        Exception: what a transform raised, as Beam wraps it. Side effects of a failed run are files below a
            staging folder only, so the caller drops them by not committing.
    """
    with _logging_kept():
        import_beam()
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        for (
            name
        ) in _CHATTY:  # a failure reaches the caller as an exception; its log lines would only repeat it
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # An empty list, or Beam would read this program's own command-line arguments.
        with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
            construct(pipeline)


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
