"""A small sample of every format a source reads, with one part that is broken. Invented content, real shapes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feedback.events import canonical
from tests.unit.feedback.made import feedback, interaction


def lines(path: Path, *documents: Any) -> Path:
    """One JSON document a line, then a broken line."""
    path.write_text("".join(json.dumps(document) + "\n" for document in documents) + "broken\n")
    return path


def _palate_jsonl(folder: Path) -> Path:
    events = [interaction(f"i{n}") for n in range(5)] + [
        feedback(f"f{n}", f"i{n}", "thumb", 1) for n in range(5)
    ]
    path = folder / "events.jsonl"
    path.write_bytes(b"".join(canonical(event) + b"\n" for event in events) + b"broken\n")
    return path


def oasst_tree(n: int) -> dict[str, Any]:
    replies = [
        {
            "message_id": f"{n}{r}",
            "role": "assistant",
            "text": f"{r}",
            "rank": r,
            "emojis": {"+1": r},
            "replies": [],
        }
        for r in range(3)
    ]
    prompt = {"message_id": f"{n}", "role": "prompter", "text": f"Why {n}?", "replies": replies}
    return {"message_tree_id": f"{n}", "prompt": prompt}


def _oasst(folder: Path) -> Path:
    return lines(folder / "trees.jsonl", *(oasst_tree(n) for n in range(3)))


def _llmfao(folder: Path) -> Path:
    pair = {"prompt": 1, "text": "Why?", "model_x": 1, "result_x": "x", "model_y": 2, "result_y": "y"}
    (folder / "pairs-crowd.jsonl").write_text(json.dumps(pair) + "\nbroken\n")
    rows = [f"0,1,1,2,{n},{winner},X,Y" for n, winner in enumerate(["left", "right", "tie"])]
    header = "id,prompt,model_x,model_y,worker,winner,left,right"
    (folder / "crowd-comparisons.csv").write_text("\n".join([header, *rows, "broken"]) + "\n")
    return folder


def mlflow_span(name: str, kind: str, asked: Any, answered: Any, *, span: str, parent: str | None = None):
    return {
        "trace_id": "haXLDqgDSWNjIA34xLTBTA==",
        "span_id": span,
        "parent_span_id": parent,
        "name": name,
        "start_time_unix_nano": 1_772_366_400_000_000_000,
        "end_time_unix_nano": 1_772_366_400_250_000_000,
        "attributes": {
            "mlflow.spanType": json.dumps(kind),
            "mlflow.spanInputs": json.dumps(asked),
            "mlflow.spanOutputs": json.dumps(answered),
        },
    }


def mlflow_assessment(name: str, said: dict[str, Any], *, number: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "assessment_id": f"a-{name}-{number}",
        "assessment_name": name,
        "trace_id": "tr-1",
        "source": {"source_type": "HUMAN", "source_id": "u-1"},
        "create_time": "2026-03-01T12:00:05Z",
        "last_update_time": "2026-03-01T12:00:05Z",
        "valid": True,
        **said,
        **fields,
    }


def mlflow_trace(trace_id: str = "tr-1") -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "Capital of France?"}]}
    answered = {"choices": [{"message": {"role": "assistant", "content": "Paris."}}]}
    return {
        "info": {
            "trace_id": trace_id,
            "request_time": "2026-03-01T12:00:00.000Z",
            "state": "OK",
            "trace_metadata": {
                "mlflow.trace.user": "u-1",
                "mlflow.trace.session": "s-1",
                "mlflow.traceInputs": json.dumps(asked),
                "mlflow.traceOutputs": json.dumps(answered),
            },
            "assessments": [
                mlflow_assessment("thumbs", {"feedback": {"value": True}}, rationale="short and right"),
                mlflow_assessment("expected_response", {"expectation": {"value": "Paris"}}),
            ],
        },
        "data": {
            "spans": [
                mlflow_span("turn", "AGENT", asked, answered, span="xMgDGHmy2Co="),
                mlflow_span("look", "TOOL", {"q": "x"}, "…", span="AAAAAAAAAAA=", parent="xMgDGHmy2Co="),
                mlflow_span(
                    "chat", "CHAT_MODEL", asked, answered, span="N7/t0ZNsfcE=", parent="xMgDGHmy2Co="
                ),
            ]
        },
    }


def langfuse_observation(name: str, kind: str, asked: Any, answered: Any, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "traceId": "t1",
        "type": kind,
        "name": name,
        "startTime": "2026-03-01T12:00:00.000Z",
        "endTime": "2026-03-01T12:00:01.000Z",
        "parentObservationId": None,
        "input": asked,
        "output": answered,
        **fields,
    }


def langfuse_score(name: str, value: Any, kind: str = "NUMERIC", **fields: Any) -> dict[str, Any]:
    return {
        "id": f"score-{name}",
        "name": name,
        "value": value,
        "dataType": kind,
        "source": "API",
        "timestamp": "2026-03-01T12:05:00.000Z",
        "createdAt": "2026-03-01T12:05:00.000Z",
        "updatedAt": "2026-03-01T12:05:00.000Z",
        "observationId": None,
        **fields,
    }


def langfuse_trace(trace_id: str = "t1") -> dict[str, Any]:
    return {
        "trace": {
            "id": trace_id,
            "projectId": "p",
            "timestamp": "2026-03-01T12:00:00.000Z",
            "userId": "u1",
            "sessionId": "s1",
            "input": json.dumps({"messages": [{"role": "user", "content": "Weather?"}]}),
            "output": "Sunny.",
            "scores": [langfuse_score("thumbs-up", 1), langfuse_score("toxicity", 0, source="EVAL")],
            "corrections": [langfuse_score("output", 0, "CORRECTION", longStringValue="Cloudy.")],
        },
        "observations": [
            langfuse_observation("agent", "AGENT", None, None),
            langfuse_observation("tool", "TOOL", "{}", "sun", parentObservationId="agent"),
            langfuse_observation(
                "call", "GENERATION", '[{"role":"user","content":"Weather?"}]', "Sunny.", model="m-1"
            ),
        ],
    }


TENSORZERO_INFERENCE = {
    "id": "01934d3c-f9b0-7e02-bcac-49363015485a",
    "function_name": "write_haiku",
    "variant_name": "small",
    "episode_id": "0193fb9d-c8c7-7e33-801a-0d8ba652f020",
    "input": '{"messages":[{"role":"user","content":[{"type":"text","value":{"topic":"sea"}}]}]}',
    "output": '[{"type":"text","text":"Waves."}]',
    "inference_params": '{"chat_completion":{"temperature":0.5}}',
    "processing_time_ms": 12,
    "tags": {},
}


def tensorzero_rows() -> list[dict[str, Any]]:
    about = TENSORZERO_INFERENCE["id"]
    made = "0193fb9e-1b7e-7d91-847d-3c7ebf1973ec"
    episode = TENSORZERO_INFERENCE["episode_id"]
    return [
        TENSORZERO_INFERENCE,
        {"id": made, "target_id": about, "metric_name": "thumbs_up", "value": True, "tags": {}},
        {"id": made, "target_id": about, "metric_name": "haiku_rating", "value": 0.5, "tags": {}},
        {"id": made, "target_id": episode, "target_type": "episode", "value": "too long", "tags": {}},
        {"id": made, "inference_id": about, "value": '[{"type":"text","text":"Surf."}]', "tags": {}},
    ]


def otlp(*attributes: tuple[str, Any]) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", bool: "boolValue", float: "doubleValue", int: "intValue"}
    return [{"key": key, "value": {kinds[type(value)]: value}} for key, value in attributes]


OTEL_INPUT = [{"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}]
OTEL_OUTPUT = [
    {"role": "assistant", "parts": [{"type": "text", "content": "Sunny."}], "finish_reason": "stop"}
]


def otel_batch(span: str = "051581bf3cb55c13") -> dict[str, Any]:
    chat = {
        "traceId": "5b8aa5a2d2c872e8321cf37308d69df2",
        "spanId": span,
        "name": "chat m-1",
        "startTimeUnixNano": "1772366400000000000",
        "endTimeUnixNano": "1772366401000000000",
        "attributes": otlp(
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.response.id", f"resp-{span}"),
            ("gen_ai.input.messages", json.dumps(OTEL_INPUT)),
            ("gen_ai.output.messages", json.dumps(OTEL_OUTPUT)),
        ),
        "events": [
            {
                "name": "gen_ai.evaluation.result",
                "timeUnixNano": "1772366410000000000",
                "attributes": otlp(
                    ("gen_ai.evaluation.name", "correct"), ("gen_ai.evaluation.score.label", "pass")
                ),
            }
        ],
    }
    tool = {**chat, "spanId": "aa" * 8, "name": "execute_tool", "events": []}
    tool["attributes"] = otlp(("gen_ai.operation.name", "execute_tool"))
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [chat, tool]}]}]}


def langsmith_run(run_id: str = "d0d84d31-923d-4cb5-94a8-40a0a0087578", **fields: Any) -> dict[str, Any]:
    return {
        "id": run_id,
        "run_type": "llm",
        "name": "ChatOpenAI",
        "trace_id": run_id,
        "parent_run_id": None,
        "start_time": "2026-03-01T12:00:00.000000",
        "end_time": "2026-03-01T12:00:01.000000",
        "inputs": {"messages": [{"role": "user", "content": "howdy"}]},
        "outputs": {"choices": [{"message": {"role": "assistant", "content": "Howdy!"}}]},
        **fields,
    }


def langsmith_feedback(key: str = "thumbs_up", **fields: Any) -> dict[str, Any]:
    return {
        "id": f"f-{key}",
        "run_id": "d0d84d31-923d-4cb5-94a8-40a0a0087578",
        "key": key,
        "score": 1,
        "value": None,
        "comment": None,
        "correction": None,
        "feedback_source": {"type": "api"},
        "created_at": "2026-03-01T12:10:00.000000",
        "modified_at": "2026-03-01T12:10:00.000000",
        **fields,
    }


def openai_pair(better: str = "12 °C.", worse: str = "Not cold.") -> dict[str, Any]:
    return {
        "input": {"messages": [{"role": "user", "content": "How cold is it?"}], "tools": []},
        "preferred_output": [{"role": "assistant", "content": better}],
        "non_preferred_output": [{"role": "assistant", "content": worse}],
    }


def label_studio_task(selected: str = "left", number: int = 7) -> dict[str, Any]:
    return {
        "id": number,
        "data": {"prompt": "Explain tides", "answer1": "The moon.", "answer2": "Water."},
        "annotations": [
            {
                "id": 12,
                "completed_by": {"id": 3, "email": "someone@example.org"},
                "was_cancelled": False,
                "created_at": "2026-03-01T12:00:00.000000Z",
                "updated_at": "2026-03-01T12:00:00.100000Z",
                "result": [{"from_name": "pw", "type": "pairwise", "value": {"selected": selected}}],
            }
        ],
        "predictions": [],
    }


def argilla_record(**fields: Any) -> dict[str, Any]:
    return {
        "id": "r-7",
        "status": "completed",
        "metadata": {},
        "fields": {"prompt": "Explain tides", "response-1": "The moon.", "response-2": "Water."},
        "responses": {"preference": [{"value": ["response-2", "response-1"], "user_id": "u1"}]},
        "suggestions": {"preference": {"value": "response-1", "agent": "judge", "score": 0.9}},
        **fields,
    }


SAMPLES: dict[str, Callable[[Path], Path]] = {
    "palate_jsonl": _palate_jsonl,
    "oasst": _oasst,
    "llmfao": _llmfao,
    "mlflow_traces": lambda folder: lines(folder / "traces.jsonl", mlflow_trace(), mlflow_trace("tr-2")),
    "langfuse": lambda folder: lines(folder / "traces.jsonl", langfuse_trace(), langfuse_trace("t2")),
    "tensorzero": lambda folder: lines(folder / "rows.jsonl", *tensorzero_rows()),
    "otel_genai": lambda folder: lines(folder / "spans.jsonl", otel_batch(), otel_batch("bb" * 8)),
    "langsmith": lambda folder: lines(folder / "runs.jsonl", langsmith_run(), langsmith_feedback()),
    "openai_preference": lambda folder: lines(folder / "pairs.jsonl", openai_pair(), openai_pair("13 °C.")),
    "label_studio": lambda folder: lines(
        folder / "tasks.jsonl", label_studio_task(), label_studio_task("right", 8)
    ),
    "argilla": lambda folder: lines(folder / "records.jsonl", argilla_record(), argilla_record(id="r-8")),
}
"""Writes a sample into a folder, by the source's name."""
