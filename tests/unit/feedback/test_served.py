"""What was served and what its user did: which signals count, consent, split, personal data, and what came next."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from feedback.events import Event, Feedback, Interaction, prompt_key
from feedback.hygiene.pii import PiiConfig
from feedback.next_message import ends, first, said_next
from feedback.preferences import dedupe
from feedback.served import SERVED, Rules, served_table, token_ids, tool_schemas
from feedback.splits import SplitConfig, prompt_split, user_split
from tests.unit.feedback.made import EVERYTHING_TRAINS, NOON, event_set, feedback, interaction, of_kind, table

OPEN = SplitConfig(**EVERYTHING_TRAINS)
PLAIN = Rules(split=OPEN, pii=PiiConfig(enabled=False))


def tables(events: list[Event]) -> tuple[pa.Table, pa.Table]:
    kept, _ = dedupe(table(events))
    return of_kind(kept, "interaction"), of_kind(kept, "feedback")


def rows(events: list[Event], rules: Rules = PLAIN, **more: Any) -> dict[str, dict[str, Any]]:
    found, _ = served_table(*tables(events), rules, **more)
    assert found.schema == SERVED
    return {row["interaction_id"]: row for row in found.to_pylist()}


def one(*signals: Feedback, user: str | None = "u", rules: Rules = PLAIN) -> dict[str, Any]:
    return rows([interaction("i", user_id=user), *signals], rules)["i"]


def said(
    name: str, kind: str, value: Any = None, at_s: float = 100, user: str | None = "u", **more: Any
) -> Feedback:
    return feedback(name, "i", kind, value, at_s=at_s, user_id=user, **more)


def test_a_reply_stands_as_it_was_logged() -> None:
    prompt = [
        {"role": "system", "content": "You answer.", "name": "über"},
        {"role": "user", "content": "Wie spät ist es?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": {"name": "clock"}}]},
        {"role": "tool", "content": "12:00", "name": "clock"},
    ]
    completion = {"role": "assistant", "content": "Zwölf.", "reasoning": "noon"}
    logged = interaction(
        "i",
        user_id="u",
        session_id="s",
        agent="clerk",
        model={"name": "m", "version": "3", "adapter_digest": "ab"},
        sampling={"temperature": 0.7, "top_p": 0.9, "seed": 1},
        logprob=-2.5,
        tokens=4,
        propensity=0.25,
        metadata={"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "tools": [{"name": "clock"}]},
    )
    fields = logged.model_dump() | {"prompt": prompt, "completion": completion}
    row = rows([Interaction.model_validate(fields)])["i"]
    assert json.loads(row["prompt"]) == prompt and json.loads(row["completion"]) == completion
    wanted = {
        "session_id": "s", "user_id": "u", "agent": "clerk", "event_time": NOON, "prompt_ids": [1, 2],
        "completion_ids": [3, 4], "logprob": -2.5, "tokens": 4, "temperature": 0.7, "top_p": 0.9, "propensity": 0.25,
        "model_version": "3", "adapter_digest": "ab", "verdict": None, "copied": False, "retried": False,
        "edit": None, "next_message": None, "comment": None, "evidence": [], "scrubbed": [], "kept_share": 1.0,
        "tools": '[{"name":"clock"}]', "prompt_key": prompt_key(prompt),
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted


def test_nothing_said_and_nothing_logged_are_null() -> None:
    row = rows([interaction("i")])["i"]
    empty = (
        "user_id",
        "session_id",
        "prompt_ids",
        "completion_ids",
        "logprob",
        "temperature",
        "model_version",
        "verdict",
    )
    assert [row[name] for name in empty] == [None] * len(empty)
    assert served_table(*tables([]), PLAIN)[0].num_rows == 0


@pytest.mark.parametrize(
    ("signals", "verdict", "evidence"),
    [
        ([said("f1", "thumb", 1)], 1, ["f1"]),
        ([said("f1", "reject")], -1, ["f1"]),
        ([said("f1", "thumb", 1), said("f2", "thumb", -1, 101)], -1, ["f2"]),  # the newest of one person
        ([said("f2", "thumb", -1, 101), said("f1", "thumb", 1)], -1, ["f2"]),  # in any order of arrival
        ([said("f1", "accept"), said("f2", "thumb", -1, 101)], -1, ["f2"]),  # also of two kinds
        ([said("f1", "thumb", 1), said("f2", "thumb", 1, 101, retracts="f1")], None, []),
        ([said("f1", "thumb", 1), said("f2", "thumb", -1, 101, user="v")], None, []),  # people cancel out
        (
            [said("f1", "thumb", 1), said("f2", "thumb", -1, user="v"), said("f3", "accept", user="w")],
            1,
            ["f1", "f2", "f3"],
        ),
        ([said("f1", "thumb", 1, user=None), said("f2", "thumb", 1, user=None)], 1, ["f1", "f2"]),
        ([said("f1", "thumb", -1, actor="judge")], None, []),  # no actor that is trusted
        ([said("f1", "rating", {"value": 5, "lo": 1, "hi": 5})], None, []),  # no verdict
    ],
)
def test_the_verdict_is_what_counts_of_what_was_said(
    signals: list[Feedback], verdict: int | None, evidence: list[str]
) -> None:
    row = one(*signals)
    assert (row["verdict"], row["evidence"]) == (verdict, evidence)


def test_judges_count_where_they_are_trusted() -> None:
    rules = Rules(frozenset({"judge"}), OPEN, PiiConfig(enabled=False))
    assert one(said("f1", "thumb", -1, actor="judge"), said("f2", "thumb", 1), rules=rules)["verdict"] == -1


def test_people_who_are_silenced_are_not_heard() -> None:
    rules = Rules(split=OPEN, pii=PiiConfig(enabled=False), silenced=frozenset({"v"}))
    row = one(said("f1", "thumb", -1, user="v"), said("f2", "thumb", 1), rules=rules)
    assert (row["verdict"], row["evidence"]) == (1, ["f2"])


def test_words_and_deeds() -> None:
    row = one(
        said("f1", "copy"),
        said("f2", "retry", user="v"),  # somebody who had not asked
        said("f3", "edit", {"text": "older"}, 1),
        said("f4", "edit", {"text": "besser é"}, 2),
        said("f5", "comment", {"text": "too long"}),
        said("f6", "next_message", {"text": "And then?"}, 5),
        said("f7", "next_message", {"text": "Later."}, 9),
    )
    told = {n: row[n] for n in ("copied", "retried", "edit", "comment", "next_message")}
    assert told == {
        "copied": True, "retried": False, "edit": "besser é", "comment": "too long", "next_message": "And then?"
    }  # fmt: skip
    assert row["evidence"] == ["f1", "f4", "f5", "f6"]
    assert one(said("f1", "retry"))["retried"] and one(said("f1", "edit", {"text": " "}))["edit"] is None


def test_consent_and_split_decide_what_is_there() -> None:
    split = SplitConfig(test_users=0.3, evaluation_users=0.3, test_prompts=0.3, evaluation_prompts=0.3)
    users = [f"u{n}" for n in range(12)]
    events: list[Event] = [
        interaction(
            f"i-{user}-{n}", prompt=f"question {n}", user_id=user, uses=["train"] if n % 2 else ["evaluate"]
        )
        for user in users
        for n in range(10)
    ]
    for into, odd in (("train", 1), ("test", 0)):
        found = rows(events, Rules(split=split, into=into))
        assert found  # and of the right people, prompts and consent only
        for row in found.values():
            number = int(row["interaction_id"].rpartition("-")[2])
            assert user_split(row["user_id"], split) == into and number % 2 == odd
    _, left_out = served_table(*tables(events), Rules(split=split))
    assert left_out["consent_train"] == 60
    assert left_out["another_split"] + len(rows(events, Rules(split=split))) == 60


def test_what_somebody_of_another_split_says_is_not_heard() -> None:
    split = SplitConfig(test_users=0.5, evaluation_users=0, test_prompts=0, evaluation_prompts=0)
    ours, theirs = (
        next(f"u{n}" for n in range(99) if user_split(f"u{n}", split) == s) for s in ("train", "test")
    )
    rules = Rules(split=split)
    events = [
        interaction("i", user_id=ours),
        said("f1", "thumb", -1, user=theirs),
        said("f2", "copy", user=ours),
    ]
    row = rows(events, rules)["i"]
    assert row["verdict"] is None and row["copied"] and row["evidence"] == ["f2"]


def test_personal_data_is_replaced_and_what_spells_it_out_is_gone() -> None:
    mail = "write to jo@example.org"
    call = {"id": "c1", "function": {"name": "send", "arguments": json.dumps({"to": "jo@example.org"})}}
    fields = interaction(
        "i",
        prompt=mail,
        user_id="u",
        logprob=-1.0,
        metadata={"prompt_token_ids": [1], "completion_token_ids": [2]},
    ).model_dump()
    fields["completion"] = {"role": "assistant", "content": "", "tool_calls": [call]}
    clean = Rules(split=OPEN)
    row = rows([Interaction.model_validate(fields), said("f1", "edit", {"text": mail})], clean)["i"]
    assert "jo@" not in json.dumps(row, default=str)
    assert json.loads(row["completion"])["tool_calls"][0]["function"]["arguments"] == '{"to": "<EMAIL>"}'
    assert row["edit"] == "write to <EMAIL>" and row["scrubbed"] == ["EMAIL", "EMAIL"]
    assert row["prompt_ids"] is row["completion_ids"] is row["logprob"] is None
    harmless = interaction("i", metadata={"completion_token_ids": [2]}, logprob=-1.0)
    assert (rows([harmless], clean)["i"]["completion_ids"], rows([harmless], clean)["i"]["logprob"]) == (
        [2],
        -1.0,
    )


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ([0, 7], [0, 7]),
        ([], None),
        (None, None),
        ("12", None),
        ([1.0], None),
        ([True], None),
        ([-1], None),
        ([2**31], None),
    ],
)
def test_token_ids_are_whole_numbers(value: Any, ids: list[int] | None) -> None:
    assert token_ids(value) == ids


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([{"name": "clock"}], '[{"name":"clock"}]'),
        ('[{"type": "function", "name": "é"}]', '[{"type": "function", "name": "é"}]'),  # in its own order
        ([], None),
        ("clock", None),
        ({"name": "clock"}, None),
        (["clock"], None),
        (None, None),
    ],
)
def test_schemas_of_tools_may_be_text(value: Any, text: str | None) -> None:
    assert tool_schemas(value) == text


def turn(name: str, contents: list[str], reply: str, at_s: float, **more: Any) -> Interaction:
    """An interaction whose prompt is a conversation: user and assistant in turn."""
    roles = ["user", "assistant"] * len(contents)
    prompt = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    about = {"session_id": "s", "user_id": "u"} | more
    return Interaction.model_validate(
        interaction(name, reply=reply, at_s=at_s, **about).model_dump() | {"prompt": prompt}
    )


def told(events: list[Interaction], split: SplitConfig = OPEN) -> dict[str, tuple[str, str]]:
    replies, _ = tables(list(events))
    found = first(said_next(replies, ends(replies), split))
    return {name: (said.text, said.interaction_id) for name, said in found.items()}


def test_the_next_interaction_of_a_session_tells_what_was_written_next() -> None:
    a, b = turn("a", ["Hé"], "Ja?", 0), turn("b", ["Hé", "Ja?", "Wie spät?"], "Zwölf.", 10)
    c = turn("c", ["Hé", "Ja?", "Wie spät?", "Zwölf.", "Danke"], "Bitte.", 20)
    assert told([c, a, b]) == {"a": ("Wie spät?", "b"), "b": ("Danke", "c")}


@pytest.mark.parametrize(
    "changed",
    [
        {"session_id": "t"},  # another session
        {"session_id": None},
        {"user_id": "v"},  # somebody else
        {"uses": ["evaluate"]},  # not free for training
    ],
)
def test_only_the_same_person_in_the_same_session_continues(changed: dict[str, Any]) -> None:
    assert told([turn("a", ["q"], "r", 0), turn("b", ["q", "r", "more"], "x", 10, **changed)]) == {}


def test_another_reply_is_no_beginning_and_of_two_ways_on_the_first_counts() -> None:
    a = turn("a", ["q"], "r", 0)
    assert told([a, turn("b", ["q", "another", "more"], "x", 10)]) == {}
    assert told([a, turn("b", ["q", "r", "one"], "x", 20), turn("c", ["q", "r", "two"], "x", 10)])["a"] == (
        "two",
        "c",
    )


def test_a_call_of_a_tool_is_part_of_a_reply_and_its_result_is_no_message_of_the_user() -> None:
    call = [{"id": "1", "function": {"name": "clock", "arguments": "{}"}}]
    a = turn("a", ["q"], "", 0).model_dump()
    a["completion"]["tool_calls"], a["completion"]["reasoning"] = call, "hm"
    after = turn("b", ["q"], "x", 10).model_dump()
    after["prompt"] += [
        {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": "12"},
    ]
    both = [Interaction.model_validate(each) for each in (a, after)]
    assert told(both) == {}
    after["prompt"][-1] = {"role": "user", "content": "stop"}
    assert told([both[0], Interaction.model_validate(after)]) == {
        "a": ("stop", "b")
    }  # though reasoning is left out
    after["prompt"][1]["tool_calls"] = [{"id": "2"}]
    assert told([both[0], Interaction.model_validate(after)]) == {}


def test_a_signal_comes_before_the_next_interaction_and_the_evidence_says_which() -> None:
    a, b = turn("a", ["q"], "r", 0), turn("b", ["q", "r", "from the log"], "x", 10)
    replies, _ = tables([a, b])
    found = first(said_next(replies, ends(replies), OPEN))
    row = rows([a, b], said_next=found)["a"]
    assert (row["next_message"], row["evidence"]) == ("from the log", ["b"])
    signal = feedback("f1", "a", "next_message", {"text": "told"}, user_id="u")
    row = rows([a, b, signal], said_next=found)["a"]
    assert (row["next_message"], row["evidence"]) == ("told", ["f1"])


def test_a_next_message_that_falls_in_another_split_is_not_used() -> None:
    split = SplitConfig(test_users=0, evaluation_users=0, test_prompts=0.5, evaluation_prompts=0)
    texts = [f"q {n}" for n in range(99)]
    held_out = next(
        t for t in texts if prompt_split(prompt_key([{"role": "user", "content": t}]), split) == "test"
    )
    fields = turn("a", ["x"], "r", 0).model_dump() | {"prompt": [{"role": "system", "content": "Begin."}]}
    a = Interaction.model_validate(fields)
    turns = [*fields["prompt"], {"role": "assistant", "content": "r"}, {"role": "user", "content": held_out}]
    b = Interaction.model_validate(turn("b", ["x"], "r", 10).model_dump() | {"prompt": turns})
    assert told([a, b]) == {"a": (held_out, "b")}
    assert told([a, b], split) == {}


@pytest.mark.parametrize("seed", range(20))
def test_any_order_and_any_copies_give_the_same_table(seed: int) -> None:
    events = event_set(seed, (12, 40))
    split = SplitConfig(test_users=0.25, evaluation_users=0.25, test_prompts=0.25, evaluation_prompts=0.25)
    expected = served_table(*tables(events), Rules(split=split))
    shuffled = Random(seed).sample(events, len(events)) + events[:3]
    found = served_table(*tables(shuffled), Rules(split=split))
    assert found[0].equals(expected[0]) and found[1] == expected[1]
