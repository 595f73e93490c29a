"""What traces of applications become: MLflow, Langfuse, OpenTelemetry, LangSmith."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tests.contract import samples as made
from tests.unit.feedback.sources.reading import Outcome


def test_mlflow_a_trace_is_judged_by_its_answer(tmp_path):
    got = Outcome("mlflow_traces", tmp_path, made.mlflow_trace())
    (reply,) = got.replies
    assert reply.interaction_id == "mlflow-tr-1"
    assert (reply.user_id, reply.session_id, reply.agent) == ("u-1", "s-1", "turn")
    assert reply.prompt[0].content == "Capital of France?"
    assert reply.completion.content == "Paris."
    assert reply.event_time == datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    assert got.said == [("thumb", 1, "user"), ("edit", {"text": "Paris"}, "user")]
    assert {signal.interaction_id for signal in got.signals} == {"mlflow-tr-1"}
    assert got.dropped == {"agent_span": 1, "tool_span": 1}


def test_mlflow_assessments_by_value_and_source(tmp_path):
    trace = made.mlflow_trace()
    judge = {"source_type": "LLM_JUDGE", "source_id": "judge-1"}
    trace["info"]["assessments"] = [
        made.mlflow_assessment("toxic", {"feedback": {"value": True}}, source=judge),
        made.mlflow_assessment("quality", {"feedback": {"value": 4}}),
        made.mlflow_assessment("score", {"feedback": {"value": 0.25}}, source={"source_type": "CODE"}),
        made.mlflow_assessment("tone", {"feedback": {"value": "friendly"}}),
        made.mlflow_assessment("broken", {"feedback": {"error": {"error_code": "E"}}}),
        made.mlflow_assessment("old", {"feedback": {"value": False}}, valid=False),
        made.mlflow_assessment("facts", {"expectation": {"serialized_value": {"value": '["Paris"]'}}}),
        made.mlflow_assessment("thumbs", {"feedback": {"value": {"a": 1}}}, source={"source_id": "u-9"}),
        made.mlflow_assessment("nothing", {"feedback": {"value": None}}),
    ]
    got = Outcome("mlflow_traces", tmp_path, trace, scores={"scales": {"quality": (1, 5)}})
    assert got.said == [
        ("outcome", {"metric": "toxic", "value": 1.0}, "judge"),  # a name that is no known verdict
        ("rating", {"value": 4.0, "lo": 1.0, "hi": 5.0}, "user"),
        ("outcome", {"metric": "score", "value": 0.25}, "code"),
        ("comment", {"text": "friendly"}, "user"),
        ("comment", {"text": '["Paris"]'}, "user"),
        ("comment", {"text": '{"a":1}'}, "code"),
    ]
    assert got.dropped["failed_assessment"] == 1
    assert got.dropped["replaced_assessment"] == 1
    assert len(got.dead) == 1  # a feedback without a value


def test_mlflow_an_assessment_changed_later_is_a_newer_signal(tmp_path):
    trace = made.mlflow_trace()
    at_once = {"create_time": "2026-03-01T12:00:05Z", "last_update_time": "2026-03-01T12:00:05.3Z"}
    later = {"create_time": "2026-03-01T12:00:05Z", "last_update_time": "2026-03-02T09:00:00Z"}
    trace["info"]["assessments"] = [
        made.mlflow_assessment("thumbs", {"feedback": {"value": True}}, **at_once),
        made.mlflow_assessment("thumbs", {"feedback": {"value": False}}, **later),
    ]
    first, second = Outcome("mlflow_traces", tmp_path, trace).signals
    assert first.feedback_id == "mlflow-a-thumbs-0"
    assert second.feedback_id == "mlflow-a-thumbs-0@2026-03-02T09:00:00Z"
    assert second.event_time > first.event_time


def test_mlflow_an_assessment_of_one_span_is_about_that_reply(tmp_path):
    trace = made.mlflow_trace()
    asked = {"messages": [{"role": "user", "content": "Plan?"}]}
    plan = made.mlflow_span("plan", "LLM", asked, "First look.", span="AQEBAQEBAQE=", parent="xMgDGHmy2Co=")
    trace["data"]["spans"].append(plan)
    trace["info"]["assessments"] = [
        made.mlflow_assessment("thumbs", {"feedback": {"value": False}}, span_id="01" * 8),
        made.mlflow_assessment("liked", {"feedback": {"value": True}}, span_id="00" * 8),
    ]
    got = Outcome("mlflow_traces", tmp_path, trace)
    assert [reply.interaction_id for reply in got.replies] == ["mlflow-tr-1", f"mlflow-tr-1-{'01' * 8}"]
    assert got.signals[0].interaction_id == f"mlflow-tr-1-{'01' * 8}"
    assert got.signals[1].interaction_id == "mlflow-tr-1"  # a tool's span has no reply: the answer's


def test_mlflow_without_a_model_span_the_outermost_is_the_reply(tmp_path):
    trace = made.mlflow_trace()
    trace["data"]["spans"] = trace["data"]["spans"][:2]
    got = Outcome("mlflow_traces", tmp_path, trace)
    assert [reply.interaction_id for reply in got.replies] == ["mlflow-tr-1"]
    assert got.dropped == {"tool_span": 1}
    trace["info"]["trace_metadata"] = {}
    trace["data"]["spans"] = [made.mlflow_span("fit", "TASK", {"epochs": 3}, 0.5, span="xMgDGHmy2Co=")]
    got = Outcome("mlflow_traces", tmp_path, trace)
    assert not got.replies
    assert got.dropped == {"task_span": 1}


def test_langfuse_scores_by_type_and_source(tmp_path):
    document = made.langfuse_trace()
    score = made.langfuse_score
    document["trace"]["scores"] = [
        score("helpful", 0, "BOOLEAN", source="ANNOTATION", authorUserId="ann"),
        score("thumbs-up", 1),
        score("user-feedback", 1),  # could be one star of five
        score("hallucination", 0.4, source="EVAL"),
        score("tone", 0, "CATEGORICAL", stringValue="rude"),
        score("empty", None, "NUMERIC"),
        score("stars", 4, observationId="call"),
    ]
    got = Outcome("langfuse", tmp_path, document, scores={"scales": {"stars": (1, 5)}})
    assert got.said == [
        ("thumb", -1, "rater"),
        ("thumb", 1, "user"),
        ("outcome", {"metric": "user-feedback", "value": 1.0}, "user"),
        ("outcome", {"metric": "hallucination", "value": 0.4}, "judge"),
        ("comment", {"text": "rude"}, "user"),
        ("rating", {"value": 4.0, "lo": 1.0, "hi": 5.0}, "user"),
        ("edit", {"text": "Cloudy."}, "user"),
    ]
    assert got.signals[0].user_id == "ann"
    assert {signal.interaction_id for signal in got.signals} == {"langfuse-t1"}
    assert got.dropped == {"agent_span": 1, "tool_span": 1, "empty_score": 1}


def test_langfuse_of_several_generations_the_one_that_is_the_output_answers(tmp_path):
    document = made.langfuse_trace()
    call = made.langfuse_observation
    document["observations"] = [
        call("a", "GENERATION", '[{"role":"user","content":"Weather?"}]', "Sunny."),
        call(
            "b",
            "GENERATION",
            '[{"role":"user","content":"Title?"}]',
            "A title",
            endTime="2026-03-01T12:00:09Z",
        ),
        call("c", "GENERATION", None, None),
        call("outer", "GENERATION", "Hi", "Ho"),
        call("inner", "GENERATION", "Hi", "Ho", parentObservationId="outer"),
    ]
    got = Outcome("langfuse", tmp_path, document)
    assert {r.interaction_id: r.completion.content for r in got.replies} == {
        "langfuse-t1": "Sunny.",
        "langfuse-t1-b": "A title",
        "langfuse-t1-inner": "Ho",
    }
    assert got.dropped == {"no_reply": 1, "wrapper_span": 1}


def test_langfuse_a_call_without_its_question_gets_the_traces(tmp_path):
    document = made.langfuse_trace()
    document["observations"] = [
        made.langfuse_observation("call", "GENERATION", '[{"role":"tool","content":"21 °C"}]', "Sunny.")
    ]
    (reply,) = Outcome("langfuse", tmp_path, document).replies
    assert [message.role for message in reply.prompt] == ["user", "tool"]
    assert reply.metadata["prompt_from_trace"] is True
    document["trace"]["input"] = None
    document["observations"][0]["input"] = {"size": 3}
    got = Outcome("langfuse", tmp_path, document)
    assert not got.replies
    assert got.dead[0].reason == "unknown_type"
    assert json.loads(got.dead[0].raw)["id"] == "call"  # handed on as it came


def test_langfuse_the_older_form_holds_its_observations(tmp_path):
    document = made.langfuse_trace()
    whole = {**document["trace"], "observations": document["observations"]}
    assert Outcome("langfuse", tmp_path, whole).events == Outcome("langfuse", tmp_path, document).events


def test_otel_a_span_with_messages_is_a_reply_and_its_evaluation_a_signal(tmp_path):
    got = Outcome("otel_genai", tmp_path, made.otel_batch())
    (reply,) = got.replies
    assert reply.interaction_id == "otel-5b8aa5a2d2c872e8321cf37308d69df2-051581bf3cb55c13"
    assert reply.event_time == datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)
    assert got.said == [("thumb", 1, "judge")]
    assert got.signals[0].interaction_id == reply.interaction_id
    assert got.dropped == {"tool_span": 1}


def test_otel_evaluations_as_log_records(tmp_path):
    batch = made.otel_batch()
    named = ("gen_ai.evaluation.name", "quality")

    def log(*attributes, **fields):
        return {
            "eventName": "gen_ai.evaluation.result",
            "timeUnixNano": "1772366420000000000",
            "attributes": made.otlp(named, *attributes),
            **fields,
        }

    span = {"traceId": "5b8aa5a2d2c872e8321cf37308d69df2", "spanId": "051581bf3cb55c13"}
    records = [
        log(("gen_ai.evaluation.score.value", 0.5), **span),
        log(
            ("gen_ai.evaluation.score.value", 3.0),
            ("gen_ai.response.id", "resp-051581bf3cb55c13"),
        ),
        log(("gen_ai.evaluation.score.label", "not_relevant"), **span),
        log(("error.type", "timeout"), **span),
        {"eventName": "browser.click", "attributes": []},
        log(("gen_ai.evaluation.score.value", 1.0)),
    ]
    batch["resourceLogs"] = [{"scopeLogs": [{"logRecords": records}]}]
    got = Outcome("otel_genai", tmp_path, batch, scores={"scales": {"quality": (1, 5)}})
    assert got.said[1:] == [
        ("outcome", {"metric": "quality", "value": 0.5}, "judge"),
        ("rating", {"value": 3.0, "lo": 1.0, "hi": 5.0}, "judge"),
        ("comment", {"text": "not_relevant"}, "judge"),
    ]
    assert len({signal.interaction_id for signal in got.signals}) == 1
    assert len(got.dead) == 1  # it says neither which span nor which response it is about
    assert got.dropped == {"tool_span": 1, "failed_evaluation": 1, "other_log_record": 1}


def test_otel_spans_as_an_sdk_prints_them(tmp_path):
    span = {
        "name": "chat m-1",
        "context": {"trace_id": "0xAB", "span_id": "0x01", "trace_state": "[]"},
        "start_time": "2026-03-01T12:00:00Z",
        "end_time": "2026-03-01T12:00:01Z",
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
            "gen_ai.input.messages": json.dumps(made.OTEL_INPUT),
            "gen_ai.output.messages": json.dumps(made.OTEL_OUTPUT),
            "gen_ai.conversation.id": "c1",
        },
        "events": [],
    }
    (reply,) = Outcome("otel_genai", tmp_path, span).replies
    assert reply.interaction_id == "otel-ab-01"
    assert [message.content for message in reply.prompt] == ["Be brief.", "Weather?"]
    assert reply.session_id == "c1"


def test_langsmith_start_and_end_of_a_run_are_one_reply(tmp_path):
    run = made.langsmith_run()
    start = {**run, "outputs": {}, "end_time": None}
    end = {name: run[name] for name in ("id", "outputs", "end_time")}
    (reply,) = Outcome("langsmith", tmp_path, {"post": [start], "patch": [end]}).replies
    assert reply == Outcome("langsmith", tmp_path, run).replies[0]


def test_langsmith_feedback_by_what_it_holds(tmp_path):
    records = [
        made.langsmith_feedback("thumbs_up", score=0),
        made.langsmith_feedback("user_score", score=True),
        made.langsmith_feedback("user_score", score=1, id="n"),
        made.langsmith_feedback("rel", score=0.7, feedback_config={"type": "continuous", "min": 0, "max": 1}),
        made.langsmith_feedback(
            "tone", score=None, value="rude", feedback_source={"type": "app", "user_id": "a"}
        ),
        made.langsmith_feedback("note", score=None, comment="too long", feedback_source={"type": "model"}),
        made.langsmith_feedback("fix", score=0, correction={"output": "Hello."}),
        made.langsmith_feedback("none", score=None),
        made.langsmith_feedback("project", run_id=None),
    ]
    got = Outcome("langsmith", tmp_path, {"runs": [made.langsmith_run()], "feedback": records})
    assert got.said == [
        ("thumb", -1, "user"),
        ("thumb", 1, "user"),
        ("outcome", {"metric": "user_score", "value": 1.0}, "user"),
        ("rating", {"value": 0.7, "lo": 0.0, "hi": 1.0}, "user"),
        ("comment", {"text": "rude"}, "rater"),
        ("comment", {"text": "too long"}, "judge"),
        ("edit", {"text": "Hello."}, "user"),
    ]
    assert got.dropped == {"empty_feedback": 1}
    assert len(got.dead) == 1
    assert {signal.interaction_id for signal in got.signals} == {got.replies[0].interaction_id}


def test_langsmith_the_outermost_run_is_judged_so_it_is_a_reply(tmp_path):
    root = made.langsmith_run(
        "root", run_type="chain", inputs={"question": "Why?"}, outputs={"answer": "So."}
    )
    child = made.langsmith_run("child", parent_run_id="root")
    tool = made.langsmith_run("tool", run_type="tool", parent_run_id="root")
    got = Outcome("langsmith", tmp_path, {**root, "child_runs": [child, tool]})
    assert [reply.interaction_id for reply in got.replies] == ["langsmith-root", "langsmith-child"]
    assert got.dropped == {"tool_run": 1}


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("langfuse", made.langsmith_run()),
        ("mlflow_traces", made.langfuse_trace()),
        ("otel_genai", made.mlflow_trace()),
        ("langsmith", made.openai_pair()),
        ("tensorzero", made.argilla_record()),
    ],
)
def test_another_format_is_all_dead_letters(name, document, tmp_path):
    got = Outcome(name, tmp_path, document)
    assert len(got.dead) == len(got.events) == 1
    assert not got.dropped
