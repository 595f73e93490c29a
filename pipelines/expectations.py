"""Great Expectations on every batch: what must hold of a row that was already accepted as an event.

Validation looks at one event at a time and knows its schema; expectations look at the columns that the tables
will hold, with thresholds a project can set. A row that fails becomes a dead letter with the reason
`expectation:<name>`; nothing is dropped. Importing Great Expectations takes seconds and 270 MB, so it happens
with the first batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class ExpectationsConfig(BaseModel):
    """Thresholds of the batch expectations."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    earliest_event_time: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    """Earlier events are refused: a clock that was never set, or seconds taken for milliseconds."""
    max_future_s: float = Field(default=86_400, ge=0)
    """How far, in seconds, an event may lie after the moment of its ingest."""
    max_id_chars: int = Field(default=256, ge=1)
    """Longest id."""
    max_body_bytes: int = Field(default=2_000_000, ge=2)
    """Longest canonical event; by its default fields it may be longer than the event as it came."""


class Expectations:
    """A suite built once, run on many batches. Not safe to share between threads."""

    def __init__(self, config: ExpectationsConfig, *, now: datetime):
        os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        # This module sets its own level to INFO when imported, and tells of every temporary folder.
        logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        asset = context.data_sources.add_pandas("batches").add_dataframe_asset("events")
        suite = context.suites.add(gx.ExpectationSuite("events", expectations=_suite(config, now)))
        definition = gx.ValidationDefinition(
            name="events", data=asset.add_batch_definition_whole_dataframe("batch"), suite=suite
        )
        self._definition = context.validation_definitions.add(definition)

    def failures(self, events: pa.Table) -> dict[int, str]:
        """Looks at every row that is not a dead letter.

        Args:
            events: rows of the `EVENTS` schema.

        Returns:
            Row number to the name of the first expectation it fails, in alphabetical order of names.

        Raises:
            RuntimeError: an expectation could not be evaluated; a batch is never passed unchecked.
        """
        frame, rows = _columns(events)
        if len(rows) == 0:
            return {}
        # Whether all is well costs a fraction of finding out where it is not, and mostly all is well.
        result = self._run(frame, "BOOLEAN_ONLY")
        if not result.success:
            result = self._run(frame, "COMPLETE")
        failed: dict[int, set[str]] = {}
        for outcome in result.results:
            configuration = outcome.expectation_config
            name = str(configuration.meta["name"]) if configuration and configuration.meta else "unnamed"
            found = outcome.result.get("unexpected_index_list")
            if outcome.exception_info.get("raised_exception") or (not outcome.success and found is None):
                raise RuntimeError(f"expectation {name} was not evaluated: {outcome.exception_info}")
            for number in found or ():
                failed.setdefault(int(rows[number]), set()).add(name)
        return {row: min(names) for row, names in failed.items()}

    def _run(self, frame: Any, form: str) -> Any:
        return self._definition.run(
            batch_parameters={"dataframe": frame}, result_format={"result_format": form}
        )


def _suite(config: ExpectationsConfig, now: datetime) -> list[Any]:
    """The expectations, each with the name that appears in a dead letter's reason."""
    import great_expectations.expectations as gxe

    def named(name: str, expectation: Any, **arguments: Any) -> Any:
        return expectation(meta={"name": name}, **arguments)

    def between(name: str, column: str, low: int, high: int) -> Any:
        return named(name, gxe.ExpectColumnValuesToBeBetween, column=column, min_value=low, max_value=high)

    def flag(name: str) -> Any:
        return named(name, gxe.ExpectColumnValuesToBeInSet, column=name, value_set=[1])

    def present(name: str, column: str) -> Any:
        return named(name, gxe.ExpectColumnValuesToNotBeNull, column=column)

    earliest = _microseconds(config.earliest_event_time)
    latest = _microseconds(now + timedelta(seconds=config.max_future_s))
    return [
        present("event_id_present", "event_id_chars"),
        between("event_id_length", "event_id_chars", 1, config.max_id_chars),
        present("digest_present", "digest_is_sha256"),
        flag("digest_is_sha256"),
        flag("kind_known"),
        flag("schema_version_known"),
        present("event_time_present", "event_time_us"),
        between("event_time_plausible", "event_time_us", earliest, latest),
        flag("joinable"),
        between("body_size", "body_bytes", 2, config.max_body_bytes),
    ]


def _columns(events: pa.Table) -> tuple[Any, np.ndarray]:
    """The small frame that the suite looks at, and the row of `events` that each of its rows stands for.

    Numbers only: lengths instead of texts, flags instead of comparisons of texts, microseconds instead of
    times. Pandas would make a Python object of every text.
    """
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.is_in(events["kind"], value_set=pa.array(["interaction", "feedback"]))
    joinable = pc.or_(pc.is_valid(events["interaction_id"]), pc.is_valid(events["session_id"]))
    version = pc.fill_null(pc.equal(events["schema_version"], 1), False)
    columns: Mapping[str, Any] = {
        "event_id_chars": pc.utf8_length(events["event_id"]),
        "digest_is_sha256": pc.match_substring_regex(events["digest"], "^[0-9a-f]{64}$").cast(pa.int8()),
        "kind_known": known.cast(pa.int8()),
        "schema_version_known": version.cast(pa.int8()),
        "event_time_us": events["event_time"].cast(pa.int64()),
        "joinable": joinable.cast(pa.int8()),
        "body_bytes": pc.fill_null(pc.binary_length(events["body"]), 0),
    }
    looked_at = pc.not_equal(events["kind"], "dead_letter").to_numpy()
    frame = pd.DataFrame({name: values.to_numpy()[looked_at] for name, values in columns.items()})
    return frame, np.flatnonzero(looked_at)


def _microseconds(moment: datetime) -> int:
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
