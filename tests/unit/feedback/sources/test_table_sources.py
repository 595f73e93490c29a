"""What rows of comparisons and of gateways become: TensorZero, OpenAI, Label Studio, Argilla."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from feedback.preferences import PreferConfig
from feedback.sources import recognise
from tests.contract import samples as made
from tests.unit.feedback.made import EVERYTHING_TRAINS, run, table
from tests.unit.feedback.sources.reading import Outcome


def chosen_and_rejected(outcome: Outcome) -> list[tuple[str, str | None]]:
    rows, _ = run(table(outcome.events), PreferConfig(split=EVERYTHING_TRAINS))
    return sorted((row["chosen"], row["rejected"]) for row in rows)


def test_tensorzero_rows(tmp_path):
    got = Outcome("tensorzero", tmp_path, *made.tensorzero_rows())
    (reply,) = got.replies
    assert reply.event_time == datetime(2024, 11, 21, 5, 41, 2, tzinfo=UTC)  # in the UUIDv7
    assert reply.prompt[0].content == '{"topic":"sea"}'  # arguments of the function's template
    assert (reply.agent, reply.arm, reply.sampling.temperature) == ("write_haiku", "small", 0.5)
    assert got.said == [
        ("thumb", 1, "user"),
        ("outcome", {"metric": "haiku_rating", "value": 0.5}, "user"),
        ("comment", {"text": "too long"}, "user"),
        ("edit", {"text": "Surf."}, "user"),
    ]
    about = [signal.interaction_id for signal in got.signals]
    assert about == [reply.interaction_id, reply.interaction_id, None, reply.interaction_id]
    assert got.signals[2].session_id == reply.session_id
    assert len({signal.feedback_id for signal in got.signals}) == 4  # though the rows share an id
    assert ("Surf.", "Waves.") in chosen_and_rejected(got)


def test_tensorzero_metrics_of_episodes_and_of_evaluations(tmp_path):
    row = made.tensorzero_rows()[1]
    rows = [
        {**row, "metric_name": "solved"},
        {**row, "metric_name": "solved_episode"},
        {**row, "metric_name": "exact", "tags": {"tensorzero::evaluator_name": "exact"}},
    ]
    got = Outcome("tensorzero", tmp_path, *rows, episode_metrics=["solved"], actor="rater")
    assert [signal.session_id is not None for signal in got.signals] == [True, True, False]
    assert [signal.actor for signal in got.signals] == ["rater", "rater", "judge"]


def test_tensorzero_json_functions_and_the_listing(tmp_path):
    """The text of a JSON function is the reply, never what a member of its JSON says."""
    said, better = '{"answer":"Waves."}', '{"answer":"Surf."}'
    inference, *_, demonstration = made.tensorzero_rows()
    rows = [
        {**inference, "output": json.dumps({"raw": said, "parsed": json.loads(said)})},
        {**demonstration, "value": json.dumps({"raw": better, "parsed": json.loads(better)})},
    ]
    got = Outcome("tensorzero", tmp_path, *rows)
    assert got.replies[0].completion.content == said
    assert got.said == [("edit", {"text": better}, "user")]
    parsed = {**inference, "output": {"raw": None, "parsed": {"answer": "Waves."}}}
    assert Outcome("tensorzero", tmp_path, parsed).replies[0].completion.content == said
    listed = {name: value for name, value in inference.items() if name != "id"} | {
        "inference_id": inference["id"],
        "output": [{"type": "text", "text": "Surf."}],
        "dispreferred_outputs": [[{"type": "text", "text": "Waves."}]],
    }
    got = Outcome("tensorzero", tmp_path, listed)
    assert got.replies[0].completion.content == "Waves."
    assert got.said == [("edit", {"text": "Surf."}, "user")]


def test_openai_pairs(tmp_path):
    got = Outcome("openai_preference", tmp_path, made.openai_pair(), made.openai_pair("12 °C.", "12 °C."))
    assert chosen_and_rejected(got) == [("12 °C.", "Not cold.")]
    assert got.dropped == {"equal_outputs": 1}
    assert len({reply.interaction_id for reply in got.replies}) == 2  # the same reply is the same interaction
    assert Outcome("openai_preference", tmp_path, made.openai_pair(), actor="judge").said[0][2] == "judge"


def test_label_studio_votes(tmp_path):
    task = made.label_studio_task()
    (annotation,) = task["annotations"]
    other = {"type": "choices", "value": {"choices": ["x"]}}
    task["annotations"] += [
        {**annotation, "id": 13, "completed_by": 4, "result": [*annotation["result"], other]},
        {**annotation, "id": 14, "was_cancelled": True, "result": []},
        {**annotation, "id": 15, "result": []},
        {**annotation, "id": 16, "result": [{"type": "pairwise", "value": {}}]},
    ]
    task["predictions"] = [{"id": 1, "result": []}]
    got = Outcome("label_studio", tmp_path, task)
    assert [signal.user_id for signal in got.signals] == ["labelstudio-3", "labelstudio-4"]
    assert chosen_and_rejected(got) == [("The moon.", "Water.")] * 2
    assert got.dropped == {
        "other_result": 1,
        "skipped_annotation": 1,
        "empty_annotation": 1,
        "model_prediction": 1,
    }
    assert len(got.dead) == 1  # neither left nor right
    assert b"someone@example.org" not in b"".join(letter.raw for letter in got.dead)


def test_label_studio_fields_by_other_names(tmp_path):
    task = made.label_studio_task("right")
    task["data"] = {"q": "Explain tides", "ours": "The moon.", "theirs": "Water."}
    assert len(Outcome("label_studio", tmp_path, task).dead) == 1
    got = Outcome("label_studio", tmp_path, task, prompt="q", left="ours", right="theirs")
    assert chosen_and_rejected(got) == [("Water.", "The moon.")]


def test_label_studio_left_is_what_the_result_names_first(tmp_path):
    task = made.label_studio_task("left")
    task["annotations"][0]["result"][0]["to_name"] = "answer2,answer1"
    assert chosen_and_rejected(Outcome("label_studio", tmp_path, task)) == [("Water.", "The moon.")]


def test_label_studio_flat_export(tmp_path):
    task = made.label_studio_task("right")
    (annotation,) = task["annotations"]
    flat = {
        **task["data"], "id": 7, "annotator": 3, "annotation_id": annotation["id"], "lead_time": 4.2,
        "created_at": annotation["created_at"], "updated_at": annotation["updated_at"],
        "pw": [{"selected": "right"}],
    }  # fmt: skip
    assert Outcome("label_studio", tmp_path, flat).events == Outcome("label_studio", tmp_path, task).events
    (tmp_path / "flat.json").write_text(json.dumps([flat]))
    assert recognise(tmp_path / "flat.json") == "label_studio"


def test_argilla_labels_that_name_a_reply_otherwise(tmp_path):
    labels = ["Response 2", "2", "response_1", "3", "unsure"]
    said = [{"value": label, "user_id": f"u{n}"} for n, label in enumerate(labels)]
    got = Outcome("argilla", tmp_path, made.argilla_record(responses={"better": said}))
    one, two = (reply.interaction_id for reply in got.replies)
    assert [signal.value["winner"] for signal in got.signals] == [two, two, one]
    assert got.dropped["unclear_which_reply"] == 2


def test_argilla_rankings_labels_numbers_and_texts(tmp_path):
    record = made.argilla_record()
    said = {
        "preference": [
            {"value": ["response-2", "response-1"], "user_id": "u1"},
            {
                "value": [{"rank": 1, "value": "response-1"}, {"rank": 2, "value": "response-2"}],
                "user_id": "u2",
            },
            {
                "value": [{"rank": 1, "value": "response-1"}, {"rank": 1, "value": "response-2"}],
                "user_id": "u3",
            },
            {"value": "response-1", "user_id": "u4"},
            {"value": "tie", "user_id": "u5"},
            {"value": ["response-2"], "user_id": "u6", "status": "draft"},
        ],
        "quality-response-2": [{"value": 4, "user_id": "u1"}],
        "quality": [{"value": 4, "user_id": "u1"}],
    }
    got = Outcome(
        "argilla", tmp_path, {**record, "responses": said}, scores={"scales": {"quality-response-2": (1, 5)}}
    )
    one, two = (reply.interaction_id for reply in got.replies)
    assert [(kind, value) for kind, value, _ in got.said] == [
        ("vote", {"ranking": [two, one]}),
        ("vote", {"ranking": [one, two]}),
        ("vote", {"among": [one, two], "winner": None}),
        ("vote", {"among": [one, two], "winner": one}),
        ("vote", {"among": [one, two], "winner": None}),
        ("rating", {"value": 4.0, "lo": 1.0, "hi": 5.0}),
    ]
    assert got.signals[-1].interaction_id == two
    assert got.dropped == {"draft_response": 1, "unclear_which_reply": 1, "model_suggestion": 1}


def test_argilla_one_reply_and_flat_records(tmp_path):
    flat = {
        "id": "r-1",
        "status": "completed",
        "instruction": "Explain tides",
        "response": "The moon.",
        "corrected.responses": ["The moon and the sun."],
        "corrected.responses.users": ["u1"],
        "corrected.responses.status": ["submitted"],
        "note.responses": ["thin"],
        "note.responses.users": ["u1"],
        "note.responses.status": ["submitted"],
        "note.suggestion": None,
    }
    got = Outcome("argilla", tmp_path, flat)
    assert got.said == [
        ("edit", {"text": "The moon and the sun."}, "rater"),
        ("comment", {"text": "thin"}, "rater"),
    ]
    assert chosen_and_rejected(got) == [("The moon and the sun.", "The moon.")]
    older = {
        "fields": {"prompt": "Explain tides", "response": "The moon."},
        "responses": [{"user_id": "u1", "status": "submitted", "values": {"note": {"value": "thin"}}}],
    }
    assert Outcome("argilla", tmp_path, older).said == [("comment", {"text": "thin"}, "rater")]
