"""What traces of applications become: MLflow, Langfuse, OpenTelemetry, LangSmith."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from feedback.preferences import PreferConfig
from feedback.sources import recognise
from tests.contract import samples as made
from tests.unit.feedback.made import EVERYTHING_TRAINS, run, table
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
        made.mlflow_assessment("gone", {"feedback": {"value": None}}, valid=False),
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
        ("outcome", {"metric": "old", "value": 0.0}, "user"),
        ("outcome", {"metric": "old", "value": 0.0}, "user"),  # its retraction
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


def test_mlflow_an_assessment_that_another_replaced_is_taken_back(tmp_path):
    trace = made.mlflow_trace()
    judge = {"source_type": "LLM_JUDGE", "source_id": "judge-1"}
    old = made.mlflow_assessment("correct", {"feedback": {"value": True}}, source=judge)
    new = made.mlflow_assessment("correct", {"feedback": {"value": False}}, number=1)
    trace["info"]["assessments"] = [old]
    before = Outcome("mlflow_traces", tmp_path, trace)  # read while it still held
    trace["info"]["assessments"] = [{**old, "valid": False}, {**new, "overrides": old["assessment_id"]}]
    after = Outcome("mlflow_traces", tmp_path, trace)
    said, back, instead = after.signals
    assert (said, back.retracts) == (before.signals[0], said.feedback_id)
    _, fates = run(
        table([*before.events, *after.events]),
        PreferConfig(split=EVERYTHING_TRAINS, actors=("user", "judge")),
    )
    became = {
        (fate["event_id"], fate["fate"], fate["reason"]) for fate in fates if fate["kind"] == "feedback"
    }
    assert became == {
        (said.feedback_id, "no_preference", "retracted"),
        (said.feedback_id, "duplicate", "same_event"),
        (back.feedback_id, "no_preference", "retraction"),
        (instead.feedback_id, "ready", None),
    }


def test_mlflow_who_assessed(tmp_path):
    trace = made.mlflow_trace()

    def by(kind, who):
        source = {"source_type": kind, "source_id": who}
        return made.mlflow_assessment("thumbs", {"feedback": {"value": True}}, source=source)

    trace["info"]["assessments"] = [
        by("HUMAN", "u-1"), by("HUMAN", "expert"), by("HUMAN", "default"), by("LLM_JUDGE", "m"), by("CODE", "f")
    ]  # fmt: skip
    wanted = [("user", "u-1"), ("rater", "expert"), ("rater", None), ("judge", None), ("code", None)]
    got = Outcome("mlflow_traces", tmp_path, trace).signals
    assert [(signal.actor, signal.user_id) for signal in got] == wanted
    del trace["info"]["trace_metadata"]["mlflow.trace.user"]
    nameless = Outcome("mlflow_traces", tmp_path, trace).signals
    assert [signal.actor for signal in nameless] == ["user", "user", "user", "judge", "code"]
    raters = Outcome("mlflow_traces", tmp_path, trace, human_actor="rater").signals
    assert [signal.actor for signal in raters] == ["rater", "rater", "rater", "judge", "code"]


def test_mlflow_metadata_that_were_cut_are_no_text(tmp_path):
    """MLflow cuts a trace's inputs and outputs after 250 characters; the outermost span has them whole."""
    trace = made.mlflow_trace()
    asked, answered = {"ticket": "why " * 200}, "so " * 200
    trace["data"]["spans"] = [made.mlflow_span("turn", "CHAIN", asked, answered, span="xMgDGHmy2Co=")]
    about = trace["info"]["trace_metadata"]
    about["mlflow.traceInputs"] = json.dumps(asked)[:247] + "..."
    about["mlflow.traceOutputs"] = json.dumps(answered)[:247] + "..."
    (reply,) = Outcome("mlflow_traces", tmp_path, trace).replies
    assert [message.content for message in reply.prompt] == ["why " * 200]
    assert reply.completion.content == answered


def test_mlflow_rows_of_a_search_and_what_the_command_prints(tmp_path):
    trace = made.mlflow_trace()
    rows = [{"trace_id": "tr-1", "trace": json.dumps(trace), "assessments": []}, {"traces": [trace]}]
    for row in rows:
        got = Outcome("mlflow_traces", tmp_path, row)
        assert got.events == Outcome("mlflow_traces", tmp_path, trace).events
        (tmp_path / "row.json").write_text(json.dumps(row))
        assert recognise(tmp_path / "row.json") == "mlflow_traces"


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


def langfuse_rows() -> list[dict]:
    """As the blob storage export and the newer API have them."""
    common = {"project_id": "p", "environment": "default"}
    seen = {"trace_id": "t1", "start_time": "2026-03-01 12:00:00.000000", "end_time": None, **common}
    score = {"name": "thumbs-up", "source": "API", "timestamp": "2026-03-01 12:05:00.000000"}
    return [
        {
            "id": "root",
            "type": "AGENT",
            "parent_observation_id": "",
            "user_id": "u1",
            "session_id": "s1",
            **seen,
        }
        | {"input": '{"ticket":"Late."}', "output": "Sorry."},
        {"id": "call", "type": "GENERATION", "parent_observation_id": "root", "user_id": "u1", **seen}
        | {"input": "Late.", "output": "Sorry.", "provided_model_name": "m-1"}
        | {"model_parameters": '{"temperature":0.5}'},
        {"id": "tool", "type": "TOOL", "parent_observation_id": "root", "input": "", "output": "x", **seen},
        {"id": "a", "value": 1, "data_type": "NUMERIC", "trace_id": "t1", "observation_id": None, **score},
        {"id": "b", "value": 0, "data_type": "NUMERIC", "trace_id": "t1", "observation_id": "call", **score},
        {"id": "c", "value": True, "dataType": "BOOLEAN", **score}
        | {"subject": {"kind": "observation", "id": "root", "traceId": "t1"}},
        {"id": "d", "value": "On its way.", "dataType": "CORRECTION", **score}
        | {"subject": {"kind": "trace", "id": "t1"}},
        {"id": "e", "value": 1, "dataType": "NUMERIC", "subject": {"kind": "session", "id": "s1"}, **score},
        {"id": "f", "value": 1, "dataType": "NUMERIC", "subject": {"kind": "experiment", "id": "x"}, **score},
        {"id": "g", "value": 1, "dataType": "NUMERIC", **score},
    ]


def test_langfuse_rows_of_the_blob_export_and_of_the_api(tmp_path):
    got = Outcome("langfuse", tmp_path, *langfuse_rows())
    ids = [reply.interaction_id for reply in got.replies]
    assert ids == ["langfuse-t1", "langfuse-t1-root", "langfuse-t1-call"]
    assert got.replies[0].prompt[0].content == "Late."
    assert (got.replies[2].model.name, got.replies[2].sampling.temperature) == ("m-1", 0.5)
    assert [(s.interaction_id or s.session_id, s.kind, s.value) for s in got.signals] == [
        ("langfuse-t1", "thumb", 1),
        ("langfuse-t1-call", "thumb", -1),
        ("langfuse-t1-root", "thumb", 1),
        ("langfuse-t1", "edit", {"text": "On its way."}),
        ("s1", "thumb", 1),
    ]
    assert got.dropped == {"tool_span": 1, "score_of_an_experiment": 1}
    assert [json.loads(letter.raw)["id"] for letter in got.dead] == ["g"]  # it does not say what it is about
    page = Outcome("langfuse", tmp_path, {"data": langfuse_rows(), "meta": {}})
    assert page.events[:-1] == got.events[:-1]
    for number, document in enumerate([{"data": langfuse_rows(), "meta": {}}, *langfuse_rows()]):
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
        assert recognise(tmp_path / f"{number}.json") == "langfuse"


def test_langfuse_a_trace_that_does_not_hold_its_observations(tmp_path):
    row = {
        "id": "t1", "timestamp": "2026-03-01 12:00:00", "user_id": "u1", "session_id": "", "bookmarked": False,
        "input": "Weather?", "output": "Sunny.",
    }  # fmt: skip
    listed = {**made.langfuse_trace()["trace"], "observations": ["call"], "scores": ["score-1"]}
    for document in (row, listed):
        (reply,) = Outcome("langfuse", tmp_path, document).replies
        assert (reply.interaction_id, reply.user_id) == ("langfuse-t1", "u1")
        assert (reply.prompt[0].content, reply.completion.content) == ("Weather?", "Sunny.")
    assert Outcome("langfuse", tmp_path, {**row, "output": None}).dropped == {"trace_without_text": 1}


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


def test_otel_ids_of_no_span_are_none(tmp_path):
    batch = made.otel_batch()
    said = made.otlp(
        ("gen_ai.evaluation.name", "correct"),
        ("gen_ai.evaluation.score.value", 1.0),
        ("gen_ai.response.id", "resp-051581bf3cb55c13"),
    )
    logs = [
        {"eventName": "gen_ai.evaluation.result", "attributes": said, "traceId": one * 32, "spanId": one * 16}
        for one in ("", "0")
    ]
    batch["resourceLogs"] = [{"scopeLogs": [{"logRecords": logs}]}]
    got = Outcome("otel_genai", tmp_path, batch)
    assert {signal.interaction_id for signal in got.signals} == {got.replies[0].interaction_id}
    assert len(got.signals) == 3


def test_otel_messages_in_older_places(tmp_path):
    span = {"context": {"trace_id": "0xAB", "span_id": "0x01"}, "end_time": "2026-03-01T12:00:01Z"}
    numbered = {
        "gen_ai.operation.name": "chat",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": '[{"type":"text","text":"Weather?"}]',
        "gen_ai.completion.0.content": '{"sky":"clear"}',
        "gen_ai.completion.0.tool_calls.0.name": "look",
        "gen_ai.completion.0.tool_calls.0.arguments": "{}",
    }
    (reply,) = Outcome("otel_genai", tmp_path, {**span, "attributes": numbered}).replies
    assert [(m.role, m.content) for m in reply.prompt] == [("system", "Be brief."), ("user", "Weather?")]
    assert reply.completion.content == '{"sky":"clear"}'
    assert reply.completion.tool_calls == [
        {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    ]
    events = [
        {"name": "gen_ai.user.message", "attributes": {"content": "Weather?"}},
        {"name": "gen_ai.choice", "attributes": {"index": 0, "message": '{"content":"Clear."}'}},
    ]
    attributes = {"gen_ai.operation.name": "chat"}
    (reply,) = Outcome("otel_genai", tmp_path, {**span, "attributes": attributes, "events": events}).replies
    assert (reply.prompt[0].content, reply.completion.content) == ("Weather?", "Clear.")


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


def test_langsmith_dumps_of_langchain_js(tmp_path):
    def dump(name, **fields):
        return {"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", name], "kwargs": fields}

    asked = {
        "messages": [[dump("SystemMessage", content="Be brief."), dump("HumanMessage", content="Weather?")]]
    }
    called = {"name": "look", "args": {"city": "Rome"}, "id": "c1", "type": "tool_call"}
    message = dump("AIMessageChunk", content="", tool_calls=[called], additional_kwargs={})
    generation = {"text": "", "type": "ChatGeneration", "message": message}
    one = made.langsmith_run(inputs=asked, outputs={"generations": [[generation]]})
    (reply,) = Outcome("langsmith", tmp_path, one).replies
    assert [(m.role, m.content) for m in reply.prompt] == [("system", "Be brief."), ("user", "Weather?")]
    assert [call["id"] for call in reply.completion.tool_calls] == ["c1"]
    as_text = {
        **one,
        "inputs": json.dumps(one["inputs"]),
        "outputs": json.dumps(one["outputs"]),
    }  # bulk export
    assert Outcome("langsmith", tmp_path, as_text).replies == [reply]


def test_langsmith_a_judged_run_keeps_its_question_and_a_person_overrules_a_judge(tmp_path):
    root = made.langsmith_run(
        "root", run_type="chain", inputs={"ticket": "Late."}, outputs={"output": "Sorry."}
    )
    judged = made.langsmith_feedback(
        "correct", run_id=None, trace_id="root", score=1, feedback_source={"type": "auto_eval"}
    )
    got = Outcome("langsmith", tmp_path, root, judged, {**judged, "id": "g", "correction": {"score": False}})
    assert got.replies[0].prompt[0].content == "Late."
    assert got.said == [("outcome", {"metric": "correct", "value": 1.0}, "judge"), ("thumb", -1, "rater")]
    assert {signal.interaction_id for signal in got.signals} == {"langsmith-root"}


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
