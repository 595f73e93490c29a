"""Counts in = fates out: everything in a real export is an event, a dead letter, or dropped for a named reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest

from feedback.events import Feedback, Interaction, event_id
from feedback.sources import load, recognise
from feedback.validation import Limits, Rejected, parse
from tests.contract import samples

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def _langfuse(document: dict[str, Any]) -> int:
    trace = document["trace"]
    parts = [{o["id"] for o in document["observations"]}, trace["scores"], trace["corrections"]]
    return sum(map(len, parts))


def _langsmith(document: dict[str, Any]) -> int:
    return len({run["id"] for run in [*document["post"], *document["patch"]]})


def _mlflow(document: dict[str, Any]) -> int:
    return len(document["data"]["spans"]) + len(document["info"]["assessments"])


# Parts of one document, counted without the source.
PARTS: dict[str, tuple[str, Callable[[dict[str, Any]], int]]] = {
    "shape_langfuse": ("langfuse", _langfuse),
    "shape_langsmith": ("langsmith", _langsmith),
    "shape_mlflow": ("mlflow_traces", _mlflow),
    "shape_tensorzero": ("tensorzero", lambda row: 1),
}


def documents(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    if path.suffix == ".jsonl":
        return [orjson.loads(line) for line in content.splitlines() if line.strip()]
    return [orjson.loads(content)]


def outcome(name: str, path: Path) -> tuple[list[Interaction | Feedback], list[Rejected], Counter[str]]:
    source = load(name)
    config = source.Config()
    found = source.partitions(path, config)
    parsed = [
        parse(record.raw, now=NOW, limits=Limits())
        for partition in found
        for record in source.read(partition, 0, partition.end, config)
    ]
    dropped = sum((Counter(partition.dropped) for partition in found), Counter())
    events = [event for event in parsed if not isinstance(event, Rejected)]
    return events, [event for event in parsed if isinstance(event, Rejected)], dropped


@pytest.mark.parametrize("folder", PARTS)
def test_a_real_export_is_accounted_for(folder, shared_data):
    name, parts = PARTS[folder]
    path = shared_data / folder
    assert recognise(path) == name
    files = [file for file in path.iterdir() if file.suffix in (".json", ".jsonl")]
    asked = sum(parts(document) for file in files for document in documents(file))
    events, dead, dropped = outcome(name, path)
    assert asked == len(events) + len(dead) + dropped.total()
    assert not dead
    assert any(isinstance(event, Interaction) for event in events)
    ids = [(type(event), event_id(event)) for event in events]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("folder", ["shape_langfuse", "shape_mlflow", "shape_tensorzero"])
def test_real_feedback_finds_its_reply(folder, shared_data):
    events, _, _ = outcome(PARTS[folder][0], shared_data / folder)
    replies = {event.interaction_id for event in events if isinstance(event, Interaction)}
    about = [e.interaction_id for e in events if isinstance(e, Feedback) and e.interaction_id is not None]
    assert about
    assert set(about) <= replies


def test_what_the_real_exports_become(shared_data):
    """Figures a person counted in the files."""
    events, _, dropped = outcome("langfuse", shared_data / "shape_langfuse")
    kinds = Counter(event.kind for event in events if isinstance(event, Feedback))
    assert kinds == {"outcome": 14, "edit": 1}
    assert {e.actor for e in events if isinstance(e, Feedback)} == {"judge", "rater"}
    assert dropped["wrapper_span"] == 1
    events, _, dropped = outcome("tensorzero", shared_data / "shape_tensorzero")
    kinds = Counter(event.kind for event in events if isinstance(event, Feedback))
    assert kinds == {"outcome": 173 + 171, "edit": 150, "comment": 5}
    assert not dropped
    assert sum(isinstance(e, Feedback) and e.session_id is not None for e in events) == 23 + 21 + 5


def test_the_otel_samples_are_of_the_published_schema(shared_data):
    """Our invented messages are what the conventions' JSON schemas describe."""
    folder = shared_data / "shape_otel_genai"
    for name, messages in (("input", samples.OTEL_INPUT), ("output", samples.OTEL_OUTPUT)):
        schema = orjson.loads((folder / f"gen-ai-{name}-messages.json").read_bytes())
        jsonschema.validate(messages, schema)


MADE: dict[str, tuple[Callable[[], list[dict[str, Any]]], int]] = {
    # Documents, and the parts they have: replies to be made and signals.
    "mlflow_traces": (lambda: [samples.mlflow_trace()], 3 + 2),
    "langfuse": (lambda: [samples.langfuse_trace()], 3 + 3),
    "tensorzero": (samples.tensorzero_rows, 5),
    "otel_genai": (lambda: [samples.otel_batch()], 2 + 1),
    "langsmith": (lambda: [samples.langsmith_run(), samples.langsmith_feedback()], 1 + 1),
    "openai_preference": (lambda: [samples.openai_pair()], 2 + 1),
    "label_studio": (lambda: [samples.label_studio_task()], 2 + 1),
    "argilla": (lambda: [samples.argilla_record()], 2 + 1 + 1),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("form", ["lines", "array", "pretty"])
def test_every_form_of_export_is_accounted_for(name, form, tmp_path):
    make, parts = MADE[name]
    path = tmp_path / "export.json"
    if form == "lines":
        path.write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in make()))
    elif form == "array":
        path.write_bytes(orjson.dumps(make()))
    else:
        path.write_bytes(orjson.dumps(make(), option=orjson.OPT_INDENT_2))
    events, dead, dropped = outcome(name, path)
    assert (len(events) + dropped.total(), dead) == (parts, [])
