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
        """Which rows fail, and at what.

        Args:
            events: rows of the `EVENTS` schema, none of them a dead letter.

        Returns:
            Row number to the name of the first expectation it fails, in alphabetical order of names.

        Raises:
            RuntimeError: an expectation could not be evaluated; a batch is never passed unchecked.
        """
        if events.num_rows == 0:
            return {}
        result = self._definition.run(
            batch_parameters={"dataframe": _columns(events)}, result_format={"result_format": "COMPLETE"}
        )
        failed: dict[int, set[str]] = {}
        for outcome in result.results:
            configuration, found = outcome.expectation_config, outcome.result
            name = str(configuration.meta["name"]) if configuration and configuration.meta else "unnamed"
            if outcome.exception_info.get("raised_exception") or "unexpected_index_list" not in found:
                raise RuntimeError(f"expectation {name} was not evaluated: {outcome.exception_info}")
            for row in found["unexpected_index_list"] or []:
                failed.setdefault(int(row), set()).add(name)
        return {row: min(names) for row, names in failed.items()}


def _suite(config: ExpectationsConfig, now: datetime) -> list[Any]:
    """The expectations, each with the name that appears in a dead letter's reason."""
    import great_expectations.expectations as gxe

    def named(name: str, expectation: Any, **arguments: Any) -> Any:
        return expectation(meta={"name": name}, **arguments)

    latest = now + timedelta(seconds=config.max_future_s)
    return [
        named("event_id_present", gxe.ExpectColumnValuesToNotBeNull, column="event_id"),
        named(
            "event_id_length",
            gxe.ExpectColumnValuesToBeBetween,
            column="event_id_chars",
            min_value=1,
            max_value=config.max_id_chars,
        ),
        named(
            "digest_is_sha256", gxe.ExpectColumnValuesToMatchRegex, column="digest", regex="^[0-9a-f]{64}$"
        ),
        named("digest_present", gxe.ExpectColumnValuesToNotBeNull, column="digest"),
        named(
            "kind_known",
            gxe.ExpectColumnValuesToBeInSet,
            column="kind",
            value_set=["interaction", "feedback"],
        ),
        named(
            "schema_version_known", gxe.ExpectColumnValuesToBeInSet, column="schema_version", value_set=[1]
        ),
        named("event_time_present", gxe.ExpectColumnValuesToNotBeNull, column="event_time_us"),
        named(
            "event_time_plausible",
            gxe.ExpectColumnValuesToBeBetween,
            column="event_time_us",
            min_value=_microseconds(config.earliest_event_time),
            max_value=_microseconds(latest),
        ),
        named("joinable", gxe.ExpectColumnValuesToBeInSet, column="joinable", value_set=[1]),
        named(
            "body_size",
            gxe.ExpectColumnValuesToBeBetween,
            column="body_bytes",
            min_value=2,
            max_value=config.max_body_bytes,
        ),
    ]


def _columns(events: pa.Table) -> Any:
    """The small frame that the suite looks at: lengths instead of texts, numbers instead of times."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    joinable = pc.or_(pc.is_valid(events["interaction_id"]), pc.is_valid(events["session_id"]))
    columns: Mapping[str, Any] = {
        "event_id": events["event_id"],
        "event_id_chars": pc.utf8_length(events["event_id"]),
        "digest": events["digest"],
        "kind": events["kind"],
        "schema_version": events["schema_version"],
        "event_time_us": events["event_time"].cast(pa.int64()),
        "joinable": joinable.cast(pa.int8()),
        "body_bytes": pc.binary_length(events["body"]),
    }
    return pd.DataFrame({name: values.to_pandas() for name, values in columns.items()})


def _microseconds(moment: datetime) -> int:
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
