"""MLflow traces with their assessments, as `Trace.to_dict()` gives them; one a line, or an array.

    {"info": {"trace_id": "tr-85a5cb…", "request_time": "2026-12-01T21:20:53.686Z",
      "trace_metadata": {"mlflow.trace.user": "u-1", "mlflow.trace.session": "s-1",
                         "mlflow.traceInputs": "{\\"messages\\": [{\\"role\\": \\"user\\", …}]}"},
      "assessments": [{"assessment_id": "a-9f737b…", "assessment_name": "thumbs", "rationale": "short and right",
                       "source": {"source_type": "HUMAN", "source_id": "u-1"}, "feedback": {"value": true},
                       "create_time": "2026-12-01T21:20:54.853Z", "valid": true}]},
     "data": {"spans": [{"span_id": "N7/t0ZNsfcE=", "parent_span_id": "xMgDGHmy2Co=", "name": "chat",
       "attributes": {"mlflow.spanType": "\\"CHAT_MODEL\\"", "mlflow.spanInputs": "…", "mlflow.spanOutputs": "…"},
       "start_time_unix_nano": 1796160053761758492, "end_time_unix_nano": 1796160053762229081}]}}

Each span of type LLM or CHAT_MODEL becomes an interaction, the one that answered under the trace's id; in a
trace without any, its outermost span does. Each assessment becomes feedback about the answer or about the span it
names: an expectation an edit, a feedback a thumb, rating, outcome or comment. One that another replaced
(`"valid": false`) becomes the feedback it was and its retraction, so that a copy read earlier counts no more.
Other spans are dropped and counted. Rows of `mlflow.search_traces` are read too, and what `mlflow traces search
--output json` prints. `pipelines.mlflow_traces_fetch` gets such a file from a tracking server.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from feedback import exports
from feedback.chat import reply_of
from feedback.exports import UNDATED, Drop, Item, as_json, time_of, time_of_nanoseconds, without_none
from feedback.scores import Scores, signal_of
from feedback.sources import Partition, Record
from feedback.traces import MODEL, Span, Trace, name_or_none, replies_of

_ACTORS = {"HUMAN": "user", "LLM_JUDGE": "judge", "AI_JUDGE": "judge", "CODE": "code"}
_NOBODY = "default"
"""Id that MLflow gives to a source without one: not one person, but all who are not named."""
_PREVIEW_CHARS, _CUT = 250, "..."
"""Length to which MLflow cuts a trace's inputs and outputs among its metadata, and how it marks that."""
_AT_ONCE_S = 1.0
"""MLflow stores one time twice when an assessment is made, so a later one is a change."""
_OTHER = {
    "CHAIN", "AGENT", "TOOL", "RETRIEVER", "PARSER", "EMBEDDING", "RERANKER", "MEMORY", "WORKFLOW", "TASK",
    "GUARDRAIL", "EVALUATOR",
}  # fmt: skip


class Config(BaseModel):
    """How assessments are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scores: Scores = Scores()
    """Which feedback values are thumbs and ratings."""
    human_actor: Literal["user", "rater"] = "user"
    """Who gave assessments of source HUMAN on traces that name no user; else the trace's user is `user`, and
    anybody else `rater`."""
    experiments: tuple[str, ...] = ()
    """Names of experiments to fetch from a tracking server; empty for all. Files are read whole."""
    rescan_s: float = Field(default=7 * 86_400, ge=0)
    """How far back a tracking server is looked at again, in seconds: how late feedback may be."""
    edits: tuple[str, ...] = ("expected_response", "corrected_response", "correction", "ideal_response")
    """Names of expectations that hold the reply as it should have been; others are kept as comments."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    return exports.partitions("mlflow_traces", path, lambda value: _convert(value, config))


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """Records `lo` to `hi`, by index."""
    return exports.read(partition, lo, hi, lambda value: _convert(value, config))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such an export."""
    keys = exports.shape(head)
    if {"trace_id", "trace"} <= keys:  # a row of `mlflow.search_traces`
        return True
    listed = "traces" in keys and b'"trace_id"' in head and b'"info"' in head
    return listed or ("info" in keys and bool({"info.trace_id", "info.request_id"} & keys))


def _convert(value: dict[str, Any], config: Config) -> Iterator[Item]:
    if "info" in value:
        yield from _trace(value, config)
    elif "traces" in value:
        for trace in value["traces"]:
            yield from _trace(trace, config)
    else:
        yield from _trace(_attribute(value["trace"]), config)


def _trace(value: dict[str, Any], config: Config) -> Iterator[Item]:
    info = value["info"]
    about = info.get("trace_metadata") or info.get("request_metadata") or {}
    tags = info.get("tags") or {}
    spans = [_span(span) for span in (value.get("data") or {}).get("spans") or []]
    root = next((span for span in spans if span.parent is None), None)
    trace = Trace(
        source="mlflow",
        id=info.get("trace_id") or info["request_id"],
        spans=spans,
        asked=_whole(about.get("mlflow.traceInputs"), root and root.asked),
        answered=_whole(about.get("mlflow.traceOutputs"), root and root.answered),
        time=_time(info.get("request_time"), info.get("timestamp_ms")),
        session=name_or_none(about.get("mlflow.trace.session") or tags.get("mlflow.trace.session")),
        user=name_or_none(about.get("mlflow.trace.user") or tags.get("mlflow.trace.user")),
    )
    replies = replies_of(trace)
    yield from replies.items or [Drop("trace_without_spans")]
    for assessment in info.get("assessments") or []:
        span_id = name_or_none(assessment.get("span_id"))
        target = trace.answer_id
        if span_id:
            # Assessments name a span in hex, spans may name themselves in base64.
            target = replies.of_span.get(_hex(span_id), f"{target}-{_hex(span_id)}")
        try:
            yield from _signals(assessment, target, trace, config)
        except (KeyError, ValueError, TypeError, AttributeError):
            yield as_json(assessment)


def _whole(told: Any, of_root: Any) -> Any:
    """Input or output of a trace: its outermost span's, for what the metadata tell is cut after 250 characters."""
    if of_root is not None:
        return of_root
    cut = isinstance(told, str) and len(told) >= _PREVIEW_CHARS and told.endswith(_CUT)
    return None if cut or told == "" else told


def _time(text: Any, milliseconds: Any) -> str | None:
    if isinstance(milliseconds, int) and text is None:
        return time_of_nanoseconds(milliseconds * 1_000_000)
    return time_of(text)


def _span(span: dict[str, Any]) -> Span:
    attributes = {name: _attribute(value) for name, value in (span.get("attributes") or {}).items()}
    kind = attributes.get("mlflow.spanType")
    model = attributes.get("mlflow.llm.model") or attributes.get("mlflow.chat.model")
    parent = name_or_none(span.get("parent_span_id") or span.get("parent_id"))
    context = span.get("context") or {}
    return Span(
        id=_hex(span.get("span_id") or context["span_id"]),
        parent=_hex(parent) if parent else None,
        kind=MODEL
        if kind in ("LLM", "CHAT_MODEL")
        else f"{kind.lower()}_span"
        if kind in _OTHER
        else "step_span",
        name=str(span.get("name") or ""),
        asked=attributes.get("mlflow.spanInputs"),
        answered=attributes.get("mlflow.spanOutputs"),
        start=time_of_nanoseconds(span.get("start_time_unix_nano") or span.get("start_time")),
        end=time_of_nanoseconds(span.get("end_time_unix_nano") or span.get("end_time")),
        source=span,
        fields=without_none(model={"name": model} if isinstance(model, str) and model else None),
    )


def _attribute(value: Any) -> Any:
    """MLflow stores every attribute as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _hex(span_id: str) -> str:
    """A span's id in hex, as the OpenTelemetry API has it; spans are exported with it in base64."""
    if len(span_id) == 12 and span_id.endswith("="):
        try:
            return base64.b64decode(span_id, validate=True).hex()
        except binascii.Error:
            return span_id
    return span_id.removeprefix("0x")


def _signals(assessment: dict[str, Any], target: str, trace: Trace, config: Config) -> Iterator[Item]:
    """What an assessment says, and, where it holds no more, that it is taken back."""
    if assessment.get("valid") is not False:
        yield _feedback(assessment, target, trace, config)
        return
    try:
        said = _feedback(assessment, target, trace, config)
    except (KeyError, ValueError, TypeError, AttributeError):
        said = Drop("replaced_assessment")  # it never was a signal, so there is nothing to take back
    yield said
    if isinstance(said, dict):
        made_id = said["feedback_id"]
        yield {**said, "feedback_id": f"{made_id}-replaced", "retracts": made_id}


def _feedback(assessment: dict[str, Any], target: str, trace: Trace, config: Config) -> dict[str, Any] | Drop:
    name = str(assessment.get("assessment_name") or assessment["name"])
    if "expectation" in assessment:
        what = _expected(name, assessment["expectation"], config)
    elif "feedback" in assessment:
        given = assessment["feedback"]
        if given.get("error") is not None and given.get("value") is None:
            return Drop("failed_assessment")
        value = given.get("value")
        what = signal_of(
            name, as_json(value).decode() if isinstance(value, list | dict) else value, config.scores
        )
    else:
        return Drop("issue_link")
    feedback_id, time = _id_and_time(assessment)
    actor, who = _by(assessment.get("source") or {}, trace, config)
    return {
        "type": "feedback",
        "feedback_id": feedback_id,
        "interaction_id": target,
        "event_time": time or trace.time or UNDATED,
        "kind": what[0],
        "value": what[1],
        "actor": actor,
        "metadata": without_none(
            source="mlflow", name=name, comment=name_or_none(assessment.get("rationale"))
        ),
        **without_none(user_id=who),
    }


def signal_id(assessment: dict[str, Any]) -> str:
    """Id of the feedback that an assessment becomes; another one after it was changed."""
    return _id_and_time(assessment)[0]


def _id_and_time(assessment: dict[str, Any]) -> tuple[str, str | None]:
    return exports.revised(
        f"mlflow-{assessment['assessment_id']}",
        assessment.get("create_time"),
        assessment.get("last_update_time"),
        _AT_ONCE_S,
    )


def _by(source: dict[str, Any], trace: Trace, config: Config) -> tuple[str, str | None]:
    """Who assessed, and the person's id; judges and programs are nobody's."""
    actor = _ACTORS.get(str(source.get("source_type")).upper(), "code")
    if actor != "user":
        return actor, None
    who = name_or_none(source.get("source_id"))
    if who == _NOBODY:
        who = None
    if trace.user is None:
        return config.human_actor, who
    return ("user" if who == trace.user else "rater"), who


def _expected(name: str, expectation: dict[str, Any], config: Config) -> tuple[str, Any]:
    value = expectation.get("value")
    if value is None and isinstance(expectation.get("serialized_value"), dict):
        value = _attribute(expectation["serialized_value"].get("value"))
    if name in config.edits and (reply := reply_of(value)) is not None:
        return "edit", {"text": reply["content"]}
    return "comment", {"text": value if isinstance(value, str) else as_json(value).decode()}
