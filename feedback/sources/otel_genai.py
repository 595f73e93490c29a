"""OpenTelemetry GenAI: spans with messages, and evaluations of them, in OTLP/JSON or one span a line.

    {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "5b8a…", "spanId": "051581bf3cb55c13",
      "name": "chat gpt-4o", "endTimeUnixNano": "1765964314000000000", "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.input.messages", "value": {"stringValue":
          "[{\\"role\\": \\"user\\", \\"parts\\": [{\\"type\\": \\"text\\", \\"content\\": \\"Weather?\\"}]}]"}},
        {"key": "gen_ai.output.messages", "value": {"stringValue": "[{\\"role\\": \\"assistant\\", …}]"}}],
      "events": [{"name": "gen_ai.evaluation.result", "timeUnixNano": "1765964320000000000", "attributes": [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "correct"}},
        {"key": "gen_ai.evaluation.score.label", "value": {"stringValue": "pass"}}]}]}]}]}]}

Spans as SDKs print them (`context`, `attributes` as an object) are read as well, and log records of the events
`gen_ai.evaluation.result` and `gen_ai.client.inference.operation.details`. So are the older forms in which
messages stand: numbered attributes (`gen_ai.prompt.0.role`, `gen_ai.completion.0.content`) and one event of the
span for each message (`gen_ai.user.message`, `gen_ai.choice`). A span with output messages becomes
an interaction; of several choices the last one. An evaluation becomes feedback about the span it belongs to:
thumb, rating, outcome, or comment for a label. Spans and log records without messages are dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict

from feedback import exports
from feedback.chat import prompt_of, reply_of
from feedback.exports import UNDATED, Drop, Item, as_json, time_of, time_of_nanoseconds, without_none
from feedback.scores import Scores, signal_of
from feedback.sources import Partition, Record
from feedback.traces import name_or_none

EVALUATION = "gen_ai.evaluation.result"
DETAILS = "gen_ai.client.inference.operation.details"
_VERDICTS = {"pass": True, "passed": True, "true": True, "fail": False, "failed": False, "false": False}
_MAX_DEPTH = 32
_NUMBERED = re.compile(r"(?P<place>\d{1,4})\.(tool_calls\.(?P<call>\d{1,4})\.)?(?P<name>\w+)")


class Config(BaseModel):
    """How evaluations are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scores: Scores = Scores()
    """Which evaluations are thumbs and ratings."""
    actor: Literal["user", "rater", "judge", "code"] = "judge"
    """Who evaluates: the conventions do not say; mostly it is a model."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    return exports.partitions("otel_genai", path, lambda value: _convert(value, config))


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """Records `lo` to `hi`, by index."""
    return exports.read(partition, lo, hi, lambda value: _convert(value, config))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such an export."""
    keys = exports.shape(head)
    if {"resourceSpans", "resourceLogs"} & keys:
        return True
    ids = {"context", "spanId", "span_id", "context.span_id"} & keys
    return "attributes" in keys and bool(ids) and "mlflow.spanType" not in keys


def _convert(value: dict[str, Any], config: Config) -> Iterator[Item]:
    spans, logs = _spans_and_logs(value)
    responses: dict[str, str] = {}
    for span in spans:
        about = _attributes(span.get("attributes"))
        events = span.get("events") or []
        for event in events:
            if event.get("name") == DETAILS:
                about |= _attributes(event.get("attributes"))
        about = _older(about, events) | about
        reply_id = _reply_id(span)
        yield _interaction(span, about, reply_id)
        if (response := name_or_none(about.get("gen_ai.response.id"))) is not None:
            responses[response] = reply_id
        for event in events:
            if event.get("name") == EVALUATION:
                yield _feedback(event, _attributes(event.get("attributes")), reply_id, config)
    for log in logs:
        yield _log(log, responses, config)


def _spans_and_logs(value: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if "resourceSpans" in value or "resourceLogs" in value:
        spans = [
            span
            for resource in value.get("resourceSpans") or []
            for scope in resource.get("scopeSpans") or []
            for span in scope.get("spans") or []
        ]
        logs = [
            record
            for resource in value.get("resourceLogs") or []
            for scope in resource.get("scopeLogs") or []
            for record in scope.get("logRecords") or []
        ]
        return spans, logs
    is_log = "body" in value or "eventName" in value or "event_name" in value
    return ([], [value]) if is_log else ([value], [])


def _attributes(given: Any) -> dict[str, Any]:
    """Attributes by name, from OTLP's list of typed values or from an object."""
    if isinstance(given, dict):
        return dict(given)
    return {one["key"]: _any_value(one.get("value"), 0) for one in given or []}


def _older(about: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """Messages that are not in today's attributes, under the names of those."""
    asked = _numbered(about, "gen_ai.prompt.")
    answered = _numbered(about, "gen_ai.completion.")
    for event in events:
        name, said = str(event.get("name") or ""), _attributes(event.get("attributes"))
        if name == "gen_ai.choice":
            inner = _json(said.get("message"))
            answered.append({"role": "assistant", **(inner if isinstance(inner, dict) else said)})
        elif name.startswith("gen_ai.") and name.endswith(".message"):
            role = name.removeprefix("gen_ai.").removesuffix(".message")
            asked.append({"role": role, **said})
    found = {"gen_ai.input.messages": asked, "gen_ai.output.messages": answered}
    return {name: messages for name, messages in found.items() if messages}


def _numbered(about: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Messages from attributes such as `gen_ai.prompt.0.content` and `….0.tool_calls.0.name`."""
    found: dict[int, dict[str, Any]] = {}
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    for name, value in about.items():
        match = _NUMBERED.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if match is None:
            continue
        place = int(match["place"])
        message = found.setdefault(place, {})
        if match["call"] is None:
            message[match["name"]] = _parts(value) if match["name"] == "content" else value
        else:
            calls.setdefault((place, int(match["call"])), {})[match["name"]] = value
    for place, number in sorted(calls):
        found[place].setdefault("tool_calls", []).append(calls[place, number])
    default = "assistant" if prefix == "gen_ai.completion." else "user"
    return [{"role": default, **found[place]} for place in sorted(found)]


def _parts(content: Any) -> Any:
    """Content that is a list of parts, written as JSON; any other text is left as it is."""
    found = _json(content) if isinstance(content, str) and content.startswith("[") else None
    return found if found and all(isinstance(one, dict) and "type" in one for one in found) else content


def _any_value(value: Any, depth: int) -> Any:
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return value
    if "arrayValue" in value:
        return [_any_value(item, depth + 1) for item in value["arrayValue"].get("values") or []]
    if "kvlistValue" in value:
        pairs = value["kvlistValue"].get("values") or []
        return {pair["key"]: _any_value(pair.get("value"), depth + 1) for pair in pairs}
    if "intValue" in value:
        return int(value["intValue"])
    return next((value[kind] for kind in ("stringValue", "boolValue", "doubleValue") if kind in value), None)


def _reply_id(record: dict[str, Any]) -> str:
    context = record.get("context") or record
    trace, span = (context.get(name) for name in ("trace_id", "span_id"))
    trace, span = trace or context.get("traceId"), span or context.get("spanId")
    if not isinstance(trace, str) or not isinstance(span, str):
        raise TypeError("a span without ids")
    trace, span = (one.lower().removeprefix("0x") for one in (trace, span))
    if not trace.strip("0") or not span.strip("0"):  # what was written outside of any span has such ids
        raise TypeError("a span without ids")
    return f"otel-{trace}-{span}"


def _interaction(span: dict[str, Any], about: dict[str, Any], reply_id: str) -> Item:
    operation = about.get("gen_ai.operation.name")
    if about.get("gen_ai.output.messages") is None:
        if operation is None:
            return Drop("other_span")
        return Drop("tool_span" if operation == "execute_tool" else "span_without_messages")
    reply = reply_of(about["gen_ai.output.messages"])
    if reply is None:
        return Drop("no_reply")
    prompt = prompt_of(about.get("gen_ai.input.messages"))
    instructions = _json(about.get("gen_ai.system_instructions"))
    if instructions and not any(message["role"] == "system" for message in prompt):
        prompt = prompt_of([{"role": "system", "parts": instructions}]) + prompt
    if not prompt:
        return as_json(span)
    start, end = _times(span)
    model = about.get("gen_ai.response.model") or about.get("gen_ai.request.model")
    sampling = {name: about.get(f"gen_ai.request.{name}") for name in ("temperature", "top_p", "seed")}
    return {
        "type": "interaction",
        "interaction_id": reply_id,
        "event_time": end or start or UNDATED,
        "prompt": prompt,
        "completion": reply,
        "metadata": without_none(source="otel_genai", name=span.get("name"), operation=operation),
        **without_none(
            session_id=name_or_none(about.get("gen_ai.conversation.id") or about.get("session.id")),
            user_id=name_or_none(about.get("user.id") or about.get("enduser.id")),
            agent=name_or_none(about.get("gen_ai.agent.name")),
            model={"name": model} if isinstance(model, str) and model else None,
            sampling=without_none(**sampling) or None,
            tokens=about.get("gen_ai.usage.output_tokens"),
        ),
    }


def _times(span: dict[str, Any]) -> tuple[str | None, str | None]:
    if "endTimeUnixNano" in span or "startTimeUnixNano" in span:
        return tuple(time_of_nanoseconds(span.get(f"{end}TimeUnixNano")) for end in ("start", "end"))  # type: ignore[return-value]
    if "timeUnixNano" in span:
        return None, time_of_nanoseconds(span["timeUnixNano"])
    return time_of(span.get("start_time")), time_of(span.get("end_time") or span.get("timestamp"))


def _log(log: dict[str, Any], responses: dict[str, str], config: Config) -> Item:
    about = _attributes(log.get("attributes"))
    event = log.get("eventName") or log.get("event_name") or about.get("event.name")
    if event == DETAILS:
        return _interaction(log, about, _reply_id(log))
    if event != EVALUATION:
        return Drop("other_log_record")
    try:
        target = _reply_id(log)
    except TypeError:  # not written within a span: the response it names may stand in this document
        response = about.get("gen_ai.response.id")
        if not isinstance(response, str):
            return as_json(log)
        target = responses.get(response, f"otel-response-{response}")
    return _feedback(log, about, target, config)


def _feedback(event: dict[str, Any], about: dict[str, Any], target: str, config: Config) -> Item:
    name, value = about.get("gen_ai.evaluation.name"), about.get("gen_ai.evaluation.score.value")
    label = about.get("gen_ai.evaluation.score.label")
    if value is None and label is None:
        return Drop("failed_evaluation" if about.get("error.type") else "empty_evaluation")
    said = value
    if value is None:
        said = _VERDICTS.get(str(label).casefold(), label)
    try:
        kind, signal = signal_of(str(name), said, config.scores)
    except ValueError:
        return as_json(event)
    time = time_of_nanoseconds(event.get("timeUnixNano") or event.get("observedTimeUnixNano"))
    time = time or time_of(event.get("timestamp")) or UNDATED
    return {
        "type": "feedback",
        "feedback_id": exports.content_id("otel", target, name, time, value, label),
        "interaction_id": target,
        "event_time": time,
        "kind": kind,
        "value": signal,
        "actor": config.actor,
        "metadata": without_none(
            source="otel_genai", name=name, label=label, comment=about.get("gen_ai.evaluation.explanation")
        ),
    }


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return [{"type": "text", "content": value}] if value else None
