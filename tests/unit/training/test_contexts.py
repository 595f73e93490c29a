"""Preference rows beside what was served: found by evidence, exactly where texts agree, and counted where not."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from feedback.hygiene.pii import PiiConfig
from feedback.preferences import PreferConfig, dedupe, join, prefer
from feedback.served import SERVED, Rules, served_table
from feedback.splits import SplitConfig
from tests.unit.feedback.made import EVERYTHING_TRAINS, feedback, interaction, of_kind
from tests.unit.feedback.made import table as events_table
from tests.unit.reward_models.made import row, table
from training.contexts import contexts

CALL = [{"id": "c1", "function": {"name": "weather", "arguments": "{}"}}]
PROMPT = [
    {"role": "user", "content": "Wétter?"},
    {"role": "assistant", "content": "", "tool_calls": CALL, "reasoning": "Ask."},
    {"role": "tool", "content": "7 °C", "name": "weather"},
]
PLAIN = [{"role": m["role"], "content": m["content"]} for m in PROMPT]


def served(name: str, reply: str, prompt: list[dict[str, Any]] = PROMPT, **more: Any) -> dict[str, Any]:
    completion = {"role": "assistant", "content": reply, "reasoning": f"thought of {name}"}
    made = {"interaction_id": name, "prompt": json.dumps(prompt), "completion": json.dumps(completion)}
    return {**dict.fromkeys(SERVED.names), **made, **more}


def kept(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SERVED)


def preferred(number: int, evidence: list[str], **more: Any) -> dict[str, Any]:
    return row(number, prompt=PLAIN, evidence=evidence, **more)


def test_prompts_and_replies_are_those_that_were_served() -> None:
    found = contexts(
        table([preferred(0, ["a", "b", "f1"], chosen="Regen.", rejected="Sonne.")]),
        kept(
            served("b", "Sonne.", prompt_ids=[1, 2], completion_ids=[3]),
            served("other", "Regen."),
            served("a", "Regen.", prompt_ids=[1, 2], completion_ids=[4, 5], tools='[{"name":"weather"}]'),
        ),
    )
    one = found.row(0)
    assert found.not_found == 0 and one.prompt == PROMPT
    assert one.chosen == {"role": "assistant", "content": "Regen.", "reasoning": "thought of a"}
    assert one.rejected == {"role": "assistant", "content": "Sonne.", "reasoning": "thought of b"}
    assert (one.prompt_ids, one.chosen_ids, one.rejected_ids) == ([1, 2], [4, 5], [3])
    assert contexts(table([preferred(0, ["a"])]), kept(served("a", "x", tools='[{"n":1}]'))).row(0).tools == [
        {"n": 1}
    ]


def test_a_correction_stands_as_it_was_written() -> None:
    edited = preferred(0, ["a", "f1"], chosen="Regen, 7 °C.", rejected="Regen.", rule="edit")
    one = contexts(table([edited]), kept(served("a", "Regen.", completion_ids=[4]))).row(0)
    assert one.chosen == {"role": "assistant", "content": "Regen, 7 °C."} and one.chosen_ids is None
    assert (
        one.rejected is not None and one.rejected["reasoning"] == "thought of a" and one.rejected_ids == [4]
    )
    assert one.prompt == PROMPT


def test_an_unpaired_row_has_no_rejected_reply() -> None:
    liked = preferred(0, ["a", "f1"], chosen="Regen.", rejected=None, label=True)
    found = contexts(table([liked]), kept(served("a", "Regen.")))
    assert found.row(0).rejected is None and found.rejected.null_count == 1
    assert found.row(0).chosen["reasoning"] == "thought of a"


def test_what_is_not_there_is_the_row_s_own_and_is_counted() -> None:
    rows = [
        preferred(0, ["gone", "f1"], chosen="Regen.", rejected="x"),  # sampled out
        preferred(1, ["c", "f2"], chosen="Regen.", rejected="x"),  # of another prompt
        preferred(2, ["a"], chosen="Regen.", rejected="x"),
        preferred(3, [], chosen="", rejected="x"),
    ]
    other = [{"role": "user", "content": "Wetter?"}]
    found = contexts(table(rows), kept(served("c", "Regen.", other), served("a", "Regen.")))
    assert found.not_found == 3
    assert [found.row(n).prompt for n in range(4)] == [PLAIN, PLAIN, PROMPT, PLAIN]
    assert found.row(0).chosen == {"role": "assistant", "content": "Regen."}
    assert found.row(3).chosen == {"role": "assistant", "content": ""}
    assert [found.row(n).tools for n in range(4)] == [None] * 4


def test_without_rows_or_without_anything_served() -> None:
    nothing = contexts(table([]), kept(served("a", "Regen.")))
    assert len(nothing.prompts) == len(nothing.chosen) == nothing.not_found == 0
    own = contexts(table([preferred(0, ["a"], chosen="r")]), SERVED.empty_table())
    assert own.not_found == 1 and own.row(0).prompt == PLAIN and own.row(0).prompt_ids is None


def test_rows_and_what_was_served_may_lie_in_many_pieces() -> None:
    names = [f"i{n}" for n in range(7)]
    rows = [table([preferred(n, [name], chosen=f"r{n}", rejected=None)]) for n, name in enumerate(names)]
    replies = [
        kept(served(name, f"r{n}", completion_ids=[n])) for n, name in reversed(list(enumerate(names)))
    ]
    found = contexts(pa.concat_tables(rows), pa.concat_tables(replies))
    assert found.not_found == 0 and [found.row(n).chosen_ids for n in range(7)] == [[n] for n in range(7)]
    sliced = contexts(pa.concat_tables(rows).slice(3, 2), pa.concat_tables(replies).slice(1, 4))
    assert [sliced.row(n).chosen_ids for n in range(2)] == [[3], [4]] and sliced.not_found == 0


def test_roles_and_contents_are_not_run_together() -> None:
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    one = [{"role": "user", "content": "a\nuser: b"}]
    found = contexts(table([row(0, prompt=one, evidence=["x"])]), kept(served("x", "r", two)))
    assert found.not_found == 1 and found.row(0).prompt == one


def test_what_was_cleaned_of_personal_data_is_found_too() -> None:
    """From events on: both tables are made of the same texts, cleaned alike."""
    replies = [
        interaction("a", prompt="mail jo@example.org", reply="sent to jo@example.org"),
        interaction(
            "b", prompt="mail jo@example.org", reply="no", at_s=1, metadata={"completion_token_ids": [5]}
        ),
    ]
    vote = feedback("f1", "a", "vote", {"among": ["a", "b"], "winner": "a"})
    events, _ = dedupe(events_table([*replies, vote]))
    open_ = SplitConfig(**EVERYTHING_TRAINS)
    parts = of_kind(events, "interaction"), of_kind(events, "feedback")
    rows, _ = prefer(join(*parts)[0], PreferConfig(split=open_))
    there, _ = served_table(*parts, Rules(split=open_, pii=PiiConfig()))
    found = contexts(rows, there)
    assert rows.num_rows == 1 and found.not_found == 0
    assert found.row(0).chosen == {"content": "sent to <EMAIL>", "role": "assistant"}
    assert found.row(0).rejected_ids == [5]
