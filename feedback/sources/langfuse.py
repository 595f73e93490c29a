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
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from feedback import exports
from feedback.exports import UNDATED, Drop, Item, as_json, time_of, without_none
from feedback.scores import Scores, signal_of
from feedback.sources import Partition, Record
from feedback.traces import MODEL, Span, Trace, name_or_none, replies_of

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
    return bool(beside) or (
        {"id", "observations"} <= keys and bool({"scores", "projectId", "timestamp"} & keys)
    )


def _convert(value: dict[str, Any], config: Config) -> Iterator[Item]:
    trace = value.get("trace", value)
    observations = value.get("observations")
    observations = trace["observations"] if observations is None else observations
    seen: set[str] = set()
    spans = []
    for observation in observations:
        if observation["id"] not in seen:
            seen.add(observation["id"])
            spans.append(_span(observation))
    whole = Trace(
        source="langfuse",
        id=trace["id"],
        spans=spans,
        asked=trace.get("input"),
        answered=trace.get("output"),
        time=time_of(trace.get("timestamp")),
        session=name_or_none(trace.get("sessionId")),
        user=name_or_none(trace.get("userId")),
    )
    replies = replies_of(whole)
    yield from replies.items
    for score in [*(trace.get("scores") or []), *(trace.get("corrections") or [])]:
        about = name_or_none(score.get("observationId"))
        target = replies.of_span.get(about, f"{whole.answer_id}-{about}") if about else whole.answer_id
        try:
            yield _feedback(score, target, config)
        except (KeyError, ValueError, TypeError):
            yield as_json(score)


def _span(observation: dict[str, Any]) -> Span:
    kind = observation.get("type")
    other = f"{kind.lower()}_span" if kind in _OTHER else "other_span"
    model = name_or_none(observation.get("model"))
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
    given = observation.get("modelParameters") or {}
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


def _feedback(score: dict[str, Any], target: str, config: Config) -> Item:
    name, kind = str(score["name"]), score.get("dataType")
    actors = {"EVAL": "judge", "ANNOTATION": "rater", "API": config.api_actor}
    feedback_id, time = exports.revised(
        f"langfuse-{score['id']}", score.get("createdAt"), score.get("updatedAt")
    )
    text = score.get("longStringValue") or score.get("stringValue")
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
        "interaction_id": target,
        "event_time": moment or UNDATED,
        "kind": what[0],
        "value": what[1],
        "actor": actors.get(str(score.get("source")), config.api_actor),
        "metadata": without_none(source="langfuse", name=name, comment=name_or_none(score.get("comment"))),
        **without_none(user_id=name_or_none(score.get("authorUserId"))),
    }
