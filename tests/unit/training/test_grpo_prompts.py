"""Which prompts are answered, and when."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from feedback.served import SERVED
from tests.unit.reward_models.made import row, table
from training.grpo_prompts import Chosen, choose, draw_seed, refills, scheduled
from training.rendered import TOO_LONG, NotRendered, Rendered

NONE = SERVED.empty_table()


def render(row: dict[str, Any]) -> tuple[Rendered, list[dict[str, Any]]] | NotRendered:
    messages = row["messages"]
    if messages[-1]["role"] == "odd":
        return NotRendered("template_refuses")
    ids = row["prompt_ids"] or [ord(c) for c in messages[-1]["content"]]
    if len(ids) > 20:
        return NotRendered(TOO_LONG)
    return Rendered(ids, [], [], mismatch=bool(row["prompt_ids"])), messages


def chosen(served: pa.Table = NONE, preferences: pa.Table | None = None, **changes: Any) -> Chosen:
    given = {"max_prompts": 10, "seed": 3, **changes}
    return choose(served, table([]) if preferences is None else preferences, render, **given)


def served(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"interaction_id": f"i{n}", "prompt_key": f"k{n}", **r} for n, r in enumerate(rows)], schema=SERVED
    )


def asks(text: str, role: str = "user") -> str:
    return json.dumps([{"role": role, "content": text}])


def test_every_distinct_prompt_is_used_once_or_counted() -> None:
    found = chosen(
        served(
            {"prompt": asks("aa"), "user_id": "u", "agent": "w"},
            {"prompt": asks("aa"), "prompt_key": "k0", "user_id": "v"},
            {"prompt": asks("b" * 21)},
            {"prompt": asks("c", "odd")},
            {"prompt": "no json"},
            {"prompt": "[1]"},
            {"prompt": "[]"},
            {"prompt": None},
        )
    )
    assert [p.key for p in found.prompts] == ["k0"]
    assert found.prompts[0].ids == (97, 97)
    assert found.prompts[0].user_id in ("u", "v")
    assert found.left_out == {"longer_than_max_prompt_tokens": 1, "not_rendered": 1, "not_readable": 4}


def test_what_became_of_the_prompts_is_counted() -> None:
    found = chosen(
        served(
            {"prompt": asks("ab"), "prompt_ids": [7, 8, 9]},
            {"prompt": asks("ab")},
            {"prompt": asks("c", "odd")},
            {"prompt": asks("b" * 21)},
            {"prompt": None},  # there is nothing to render
        )
    )
    assert {p.key: p.ids for p in found.prompts} == {"k0": (7, 8, 9), "k1": (97, 98)}
    assert found.mismatched == 1
    wanted = {
        "rendered": 2,
        "cut": 0,
        "left_out": 1,
        "mismatch": 1,
        "unrenderable": 1,
        "template_refuses": 1,
        "too_long": 1,
    }
    assert found.metrics == {f"render/{name}": count for name, count in wanted.items()}


def test_messages_and_tools_are_read_from_their_json() -> None:
    seen: list[dict[str, Any]] = []

    def watched(row: dict[str, Any]) -> Any:
        seen.append(row)
        return render(row)

    tools = [{"type": "function", "function": {"name": "wetter", "description": "für Zürich"}}]
    rows = served({"prompt": asks("ü"), "tools": json.dumps(tools)}, {"prompt": asks("v"), "tools": "{"})
    choose(rows, table([]), watched, max_prompts=10, seed=3)
    assert {row["messages"][0]["content"]: row["tools"] for row in seen} == {"ü": tools, "v": None}


def test_preferences_of_the_train_split_alone_and_only_where_nothing_was_served() -> None:
    rows = table([row(1), row(2, split="test"), row(3, prompt_key="prompt-1"), row(4, split="evaluation")])
    found = chosen(preferences=rows)
    assert [p.key for p in found.prompts] == ["prompt-1"]
    assert found.prompts[0].messages[0]["role"] == "user"
    assert [p.key for p in chosen(served({"prompt": asks("a")}), rows).prompts] == ["k0"]
    assert chosen().prompts == []


def test_the_choice_does_not_depend_on_the_order_of_the_rows() -> None:
    rows = table([row(n, prompt=[{"role": "user", "content": str(n)}]) for n in range(30)])
    wanted = chosen(preferences=rows)
    assert len(wanted.prompts) == 10 and wanted.left_out == {"over_max_prompts": 20}
    assert chosen(preferences=rows.take(list(reversed(range(30))))) == wanted
    assert chosen(preferences=rows, seed=4) != wanted


def test_each_pass_has_every_prompt_once_in_an_order_of_its_own() -> None:
    places = [i for g in range(7) for i in scheduled(7, g, 3, seed=5)]
    passes = [places[start : start + 7] for start in range(0, 21, 7)]
    assert all(sorted(one) == list(range(7)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert scheduled(7, 4, 3, seed=5) == places[12:15]  # without the generations before it
    assert sorted(scheduled(2, 0, 6, seed=5)) == [0, 0, 0, 1, 1, 1]  # fewer prompts than places


def test_refills_are_new_and_bounded() -> None:
    assert set(refills(6, 0, 1, 9, taken=[0, 1, 2], seed=1)) == {3, 4, 5}
    assert refills(3, 0, 1, 2, taken=[0, 1, 2], seed=1) == []
    orders = {tuple(refills(20, g, t, 5, [], seed=1)) for g in range(3) for t in range(3)}
    assert len(orders) == 9
    assert len({draw_seed(1, g, t) for g in range(20) for t in range(20)}) == 400
