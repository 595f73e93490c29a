"""Traces from a real MLflow store, with feedback that comes after they were fetched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from feedback.events import Feedback, Interaction
from feedback.preferences import PreferConfig
from feedback.sources import load, recognise
from feedback.sources.mlflow_traces import Config
from feedback.validation import Limits, parse
from pipelines.errors import InputError, PipelineError
from pipelines.mlflow_traces_fetch import CURSOR, fetch
from tests.unit.feedback.made import EVERYTHING_TRAINS, run, table

# In a process of its own: tracing writes to the one address that a process has.
_TRACED = """
import sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
if sys.argv[2:]:
    mlflow.set_experiment(sys.argv[2])
asked = {"messages": [{"role": "user", "content": "Capital of France?"}]}
with mlflow.start_span("turn") as turn:
    turn.set_inputs(asked)
    with mlflow.start_span("chat", span_type="CHAT_MODEL") as chat:
        chat.set_inputs(asked)
        chat.set_outputs({"choices": [{"message": {"role": "assistant", "content": "Paris."}}]})
    turn.set_outputs("Paris.")
mlflow.flush_trace_async_logging()
print("trace:" + turn.trace_id)
"""


def trace_of(uri: str, folder: Path, *experiment: str) -> str:
    """Id of a new trace in the store."""
    made = subprocess.run(
        [sys.executable, "-c", _TRACED, uri, *experiment],
        cwd=folder,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return next(line for line in made.stdout.splitlines() if line.startswith("trace:")).removeprefix("trace:")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(tracking URI, id of the one trace in its experiment Default)"""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    yield uri, trace_of(uri, folder)


def events(folder: Path) -> list[Interaction | Feedback]:
    source = load(recognise(folder))
    config = source.Config()
    now = datetime.now(UTC)
    raws = [r.raw for p in source.partitions(folder, config) for r in source.read(p, 0, p.end, config)]
    return [parse(raw, now=now, limits=Limits()) for raw in raws]  # type: ignore[misc]


def test_feedback_after_the_fetch_is_found_by_the_next(traced, tmp_path):
    from mlflow.entities import AssessmentSource
    from mlflow.entities import Feedback as Assessed
    from mlflow.tracing.client import TracingClient

    uri, trace_id = traced
    now = datetime.now(UTC)
    first = fetch(uri, tmp_path, now=now)
    assert (first.looked_at, first.written) == (1, 1)
    (reply,) = events(first.folder)
    assert reply.interaction_id == f"mlflow-{trace_id}"
    again = fetch(uri, tmp_path, now=now + timedelta(hours=1))
    assert (again.looked_at, again.written) == (1, 0)

    by = AssessmentSource(source_type="HUMAN", source_id="u-1")
    TracingClient(uri).log_assessment(trace_id, Assessed(name="thumbs", value=False, source=by))
    later = fetch(uri, tmp_path, now=now + timedelta(hours=2))
    assert later.written == 1
    found = events(later.folder)
    assert [event for event in found if isinstance(event, Interaction)] == [
        reply,
        reply,
    ]  # a copy, not a conflict
    (signal,) = [event for event in found if isinstance(event, Feedback)]
    assert (signal.kind, signal.value, signal.interaction_id) == ("thumb", -1, reply.interaction_id)

    (later.folder / CURSOR).unlink()  # killed before the cursor moved: the same traces, the same events
    repeated = fetch(uri, tmp_path, now=now + timedelta(hours=3))
    assert repeated.written == 1
    assert {str(event) for event in events(repeated.folder)} == {str(event) for event in found}
    outside = fetch(uri, tmp_path, now=now + timedelta(days=30), config=Config(rescan_s=0))
    assert outside.looked_at == 0


def test_what_was_replaced_changed_or_deleted_on_the_server_counts_no_more(traced, tmp_path):
    from mlflow.entities import AssessmentSource
    from mlflow.entities import Feedback as Assessed
    from mlflow.tracing.client import TracingClient

    uri, trace_id = traced
    client, clock = TracingClient(uri), datetime.now(UTC)

    def say(name: str, value: bool, kind: str, **more: str) -> str:
        by = AssessmentSource(source_type=kind, source_id=f"some-{kind}")
        return client.log_assessment(
            trace_id, Assessed(name=name, value=value, source=by, **more)
        ).assessment_id

    def counted(hours: int) -> set[tuple[str, int]]:
        """Actor and value of the thumbs called `correct` that count after a fetch."""
        folder = fetch(uri, tmp_path, now=clock + timedelta(hours=hours)).folder
        rows, _ = run(
            table(events(folder)),
            PreferConfig(rules=["unpaired"], split=EVERYTHING_TRAINS, actors=["user", "rater", "judge"]),
        )
        evidence = {name for row in rows for name in row["evidence"]}
        return {
            (event.actor, event.value)
            for event in events(folder)
            if isinstance(event, Feedback)
            and event.feedback_id in evidence
            and event.metadata["name"] == "correct"
        }

    judged = say("correct", True, "LLM_JUDGE")
    assert counted(1) == {("judge", 1)}
    mine = say("correct", False, "HUMAN", overrides=judged)  # a person corrects the judge
    assert counted(2) == {("user", -1)}
    time.sleep(1.2)
    client.update_assessment(trace_id, mine, Assessed(name="correct", value=True))
    assert counted(3) == {("user", 1)}
    client.delete_assessment(trace_id, mine)
    assert ("user", 1) not in counted(4)


def test_an_experiment_added_later_is_read_from_its_beginning(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    one, two = (trace_of(uri, tmp_path, name) for name in ("one", "two"))
    later = datetime.now(UTC) + timedelta(days=30)
    first = fetch(uri, tmp_path, now=later, config=Config(experiments=("one",)))
    assert [event.interaction_id for event in events(first.folder)] == [f"mlflow-{one}"]
    both = Config(experiments=("one", "two"))
    second = fetch(uri, tmp_path, now=later + timedelta(days=1), config=both)
    assert {event.interaction_id for event in events(second.folder)} == {f"mlflow-{one}", f"mlflow-{two}"}
    assert fetch(uri, tmp_path, now=later + timedelta(days=2), config=both).written == 0


def test_an_experiment_that_is_not_there_is_said(traced, tmp_path):
    with pytest.raises(InputError, match="Default"):
        fetch(traced[0], tmp_path, now=datetime.now(UTC), config=Config(experiments=("nope",)))


def test_a_server_that_does_not_answer_is_said(tmp_path):
    with pytest.raises(PipelineError, match="does not give its traces"):
        fetch("http://127.0.0.1:9", tmp_path, now=datetime.now(UTC))
    assert not list(tmp_path.rglob("*.jsonl"))
