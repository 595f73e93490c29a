"""Langfuse: exported traces with their observations and scores.

A file holds one trace, an array of them, or one a line; a trace stands beside its observations, or holds them:

    {"trace": {"id": "b82a0b…", "timestamp": "2025-08-28T07:32:30.303Z", "userId": "demo-user",
      "sessionId": "demo-session", "input": "…", "output": "…", "corrections": [],
      "scores": [{"id": "23fb2b…", "name": "toxicity", "value": 0, "dataType": "NUMERIC", "source": "EVAL",
                  "comment": "The generation is friendly …", "timestamp": "2025-08-28T07:33:02.142Z",
                  "traceId": "b82a0b…", "observationId": null}]},
     "observations": [{"id": "6d8beb…", "type": "GENERATION", "name": "call_llm", "model": "gemini-2.0-flash",
                       "parentObservationId": "f6e4c6…", "input": "{\\"contents\\": …}", "output": "…"}]}

Each generation becomes an interaction, the one that answered under the trace's id, each score a feedback about
the answer or about the observation it names, each correction an edit. Other observations (tools, chains,
agents, retrievers), generations that only wrap another, and those without output are dropped and counted.

The rows of a blob storage export (`observations_v2/`, `scores/`, and the older `traces/` and `observations/`) and
the pages of the public API (`{"data": […], "meta": {…}}`) know less of each other:

    {"id": "6d8beb…", "trace_id": "b82a0b…", "type": "GENERATION", "parent_observation_id": "", "user_id": "u1",
     "input": "…", "output": "…", "provided_model_name": "gpt-4o"}
    {"id": "23fb2b…", "name": "thumbs-up", "value": true, "dataType": "BOOLEAN", "source": "API",
     "subject": {"kind": "observation", "id": "6d8beb…", "traceId": "b82a0b…"}}

There an outermost observation that tells its trace's user or session is the answer of the trace, and besides the
reply that scores of that observation are about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from feedback import exports
from feedback.chat import decoded
from feedback.exports import UNDATED, Drop, Item, as_json, time_of, without_none
from feedback.scores import Scores, signal_of
from feedback.sources import Partition, Record
from feedback.traces import MODEL, Span, Trace, name_or_none, replies_of

_ENRICHED = {"userId", "sessionId", "traceName"}
"""What a row of an observation says of its trace, where it does."""
_OTHER = {"SPAN", "EVENT", "TOOL", "AGENT", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"}


class Config(BaseModel):
    """How scores are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scores: Scores = Scores()
    """Which scores are thumbs and ratings."""
    api_actor: Literal["user", "rater", "judge", "code"] = "user"
    """Who gave scores of source API: Langfuse does not say. In most products that is their users' buttons."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    return exports.partitions("langfuse", path, lambda value: _convert(value, config))


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """Records `lo` to `hi`, by index."""
    return exports.read(partition, lo, hi, lambda value: _convert(value, config))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such an export."""
    keys = exports.shape(head)
    beside = {"trace.projectId", "trace.observations", "trace.scores", "trace.sessionId"} & keys
    whole = {"id", "observations"} <= keys and bool({"scores", "projectId", "timestamp"} & keys)
    return bool(beside) or whole or _is_row({_camel(key) for key in keys}) or _is_page(keys, head)


def _is_row(keys: set[str]) -> bool:
    score = {"id", "name", "source", "dataType"} <= keys
    observation = {"id", "traceId", "type"} <= keys and bool({"parentObservationId", "startTime"} & keys)
    trace = {"id", "timestamp", "userId", "sessionId"} <= keys and bool({"bookmarked", "environment"} & keys)
    return score or observation or trace


def _is_page(keys: frozenset[str], head: bytes) -> bool:
    if "data" not in keys or any(key.startswith("data.") for key in keys):
        return False
    marks = (
        (b'"dataType"', b'"source"'),
        (b'"parentObservationId"', b'"traceId"'),
        (b'"bookmarked"', b'"sessionId"'),
    )
    return any(one in head and other in head for one, other in marks)


def _camel(name: str) -> str:
    """A column's name as the API writes it: `traceId` for the `trace_id` of a table."""
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _convert(value: dict[str, Any], config: Config) -> Iterator[Item]:
    rows = value.get("data")
    for row in rows if isinstance(rows, list) else [value]:
        yield from _document(row, config)


def _document(value: dict[str, Any], config: Config) -> Iterator[Item]:
    trace = value["trace"] if isinstance(value.get("trace"), dict) and "dataType" not in value else value
    observations = value.get("observations")
    observations = trace.get("observations") if observations is None else observations
    if observations is not None and any(isinstance(one, dict) for one in observations):
        yield from _whole_trace(trace, observations, config)
        return
    row = {_camel(name): field for name, field in trace.items()}
    if {"dataType", "source"} <= row.keys():
        yield _score_row(row, config)
    elif {"traceId", "type"} <= row.keys():
        yield from _observation_row(row)
    else:
        yield from _trace_row(row, config)


def _whole_trace(trace: dict[str, Any], observations: list[Any], config: Config) -> Iterator[Item]:
    seen: set[str] = set()
    spans = []
    for observation in observations:
        if observation["id"] not in seen:
            seen.add(observation["id"])
            spans.append(_span(observation))
    whole = _trace(trace, spans)
    replies = replies_of(whole)
    yield from replies.items
    for score in _scores(trace):
        about = name_or_none(score.get("observationId"))
        target = replies.of_span.get(about, f"{whole.answer_id}-{about}") if about else whole.answer_id
        yield _scored(score, {"interaction_id": target}, config)


def _trace(row: dict[str, Any], spans: list[Span]) -> Trace:
    return Trace(
        source="langfuse",
        id=row["id"],
        spans=spans,
        asked=row.get("input"),
        answered=row.get("output"),
        time=time_of(row.get("timestamp")),
        session=name_or_none(row.get("sessionId")),
        user=name_or_none(row.get("userId")),
    )


def _scores(trace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Scores and corrections that stand in a trace; lists of traces hold only their ids."""
    every = [*(trace.get("scores") or []), *(trace.get("corrections") or [])]
    return (score for score in every if not isinstance(score, str))


def _scored(score: dict[str, Any], about: dict[str, str], config: Config) -> Item:
    try:
        return _feedback(score, about, config)
    except (KeyError, ValueError, TypeError, AttributeError):
        return as_json(score)


def _trace_row(row: dict[str, Any], config: Config) -> Iterator[Item]:
    """A trace without its observations: question and answer as they stand in it."""
    told = row["timestamp"], row["input"], row["output"]
    whole = _trace(row, [Span(row["id"], None, "trace_without_text", "", *told[1:], None, None, row)])
    for item in replies_of(whole).items:
        if isinstance(item, dict):
            item["metadata"] = without_none(source="langfuse", name=name_or_none(row.get("name")))
        yield item
    for score in _scores(row):
        about = name_or_none(score.get("observationId"))
        target = f"{whole.answer_id}-{about}" if about else whole.answer_id
        yield _scored(score, {"interaction_id": target}, config)


def _observation_row(row: dict[str, Any]) -> Iterator[Item]:
    """An observation without its trace; see the module's text for which is whose answer."""
    span, trace_id = _span(row), row["traceId"]
    answers = span.parent is None and bool(_ENRICHED & row.keys())
    if span.kind != MODEL and not answers:
        yield Drop(span.kind)
        return
    for item in replies_of(_trace({**row, "id": trace_id, "input": None, "output": None}, [span])).items:
        if not isinstance(item, dict):
            yield item
            continue
        if answers:
            yield item
        yield {**item, "interaction_id": f"langfuse-{trace_id}-{span.id}"}


def _score_row(row: dict[str, Any], config: Config) -> Item:
    """A score without its trace, which names what it is about in columns or as its `subject`."""
    subject = row.get("subject") or {}
    kind, about = subject.get("kind"), subject.get("id")
    trace = subject.get("traceId") or (about if kind == "trace" else row.get("traceId"))
    observation = about if kind == "observation" else row.get("observationId")
    session = about if kind == "session" else row.get("sessionId")
    if trace:
        target = f"langfuse-{trace}-{observation}" if observation else f"langfuse-{trace}"
        return _scored(row, {"interaction_id": target}, config)
    if session:
        return _scored(row, {"session_id": session}, config)
    if kind == "experiment" or row.get("datasetRunId"):
        return Drop("score_of_an_experiment")
    return as_json(row)


def _span(observation: dict[str, Any]) -> Span:
    kind = observation.get("type")
    other = f"{kind.lower()}_span" if kind in _OTHER else "other_span"
    model = name_or_none(observation.get("model")) or name_or_none(observation.get("providedModelName"))
    return Span(
        id=observation["id"],
        parent=name_or_none(observation.get("parentObservationId")),
        kind=MODEL if kind == "GENERATION" else {"span_span": "step_span"}.get(other, other),
        name=str(observation.get("name") or ""),
        asked=observation.get("input"),
        answered=observation.get("output"),
        start=time_of(observation.get("startTime")),
        end=time_of(observation.get("endTime")),
        source=observation,
        fields=without_none(model={"name": model} if model else None, **_sampling(observation)),
    )


def _sampling(observation: dict[str, Any]) -> dict[str, Any]:
    given = decoded(observation.get("modelParameters")) or {}
    used = observation.get("usageDetails")
    sampling = {}
    for name in ("temperature", "top_p"):
        number = given.get(name)
        if isinstance(number, int | float) and not isinstance(number, bool):
            sampling[name] = number
    tokens = used.get("output") if isinstance(used, dict) else None
    return without_none(
        sampling=sampling or None, tokens=tokens if type(tokens) is int and tokens >= 0 else None
    )


def _feedback(score: dict[str, Any], about: dict[str, str], config: Config) -> Item:
    name, kind = str(score["name"]), score.get("dataType")
    actors = {"EVAL": "judge", "ANNOTATION": "rater", "API": config.api_actor}
    feedback_id, time = exports.revised(
        f"langfuse-{score['id']}", score.get("createdAt"), score.get("updatedAt")
    )
    text = score.get("longStringValue") or score.get("stringValue")
    if not text and isinstance(score.get("value"), str):  # newer: one value of the score's own type
        text = score["value"]
    what: tuple[str, Any]
    if kind == "CORRECTION" or (kind is None and name == "output" and text):
        what = ("edit", {"text": text})
    elif kind == "BOOLEAN":
        what = signal_of(name, bool(score["value"]), config.scores)
    elif kind in ("CATEGORICAL", "TEXT"):
        what = signal_of(name, text if text is not None else score["value"], config.scores)
    elif score.get("value") is None and not text:
        return Drop("empty_score")
    else:
        value = score.get("value")
        what = signal_of(name, text if value is None else value, config.scores)
    moment = time if "@" in feedback_id else time_of(score.get("timestamp")) or time
    return {
        "type": "feedback",
        "feedback_id": feedback_id,
        **about,
        "event_time": moment or UNDATED,
        "kind": what[0],
        "value": what[1],
        "actor": actors.get(str(score.get("source")), config.api_actor),
        "metadata": without_none(source="langfuse", name=name, comment=name_or_none(score.get("comment"))),
        **without_none(user_id=name_or_none(score.get("authorUserId"))),
    }
