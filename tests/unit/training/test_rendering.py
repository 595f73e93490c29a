"""From chats to tokens: as TRL and the template have it, as logged, cut by turns, and nothing lost in silence."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.training.templates import CHATML, HEADERS, STRICT, THINKING, TIGHT
from training.errors import TrainingError
from training.logged_tokens import mask_like
from training.rendering import (
    NotRendered,
    RenderCounts,
    Rendered,
    RenderSettings,
    attempt,
    attempt_pair,
    counted,
    render,
)
from training.turns import cuts

Tokenizer = Any
WIDE = RenderSettings(max_tokens=4096)


@pytest.fixture
def tokenizer(tiny_base: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_base)


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    tokenizer.chat_template = template
    return tokenizer


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: Any = '{"city": "Zürich"}', **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


SYSTEM = {"role": "system", "content": "Be brief."}
WITH_TOOL = [
    SYSTEM,
    user("Weather?"),
    assistant("", tool_calls=[call("weather")]),
    {"role": "tool", "content": "7 °C, rain", "name": "weather"},
]


def shown(tokenizer: Tokenizer, rendered: Rendered | NotRendered | None) -> tuple[str, str]:
    assert isinstance(rendered, Rendered), rendered
    assert len(rendered.completion_ids) == len(rendered.completion_mask)
    return tokenizer.decode(rendered.prompt_ids), tokenizer.decode(rendered.completion_ids)


def trained(tokenizer: Tokenizer, rendered: Rendered | None) -> str:
    assert rendered is not None
    pairs = zip(rendered.completion_ids, rendered.completion_mask, strict=True)
    return tokenizer.decode([token for token, mask in pairs if mask])


# ---------------------------------------------------------------------------------------------------- exactness


def test_a_chat_becomes_the_text_of_the_template_and_its_end_of_turn_is_trained_on(
    tokenizer: Tokenizer,
) -> None:
    made = render(tokenizer, [user("Hé, où?")], "Là-bas 🙂.", settings=WIDE)
    assert shown(tokenizer, made) == (
        "<|im_start|>system\nYou answer.<|im_end|>\n<|im_start|>user\nHé, où?<|im_end|>\n<|im_start|>assistant\n",
        "Là-bas 🙂.<|im_end|>\n",
    )
    assert made == Rendered(made.prompt_ids, made.completion_ids, [1] * len(made.completion_ids))
    assert made.completion_ids[-2] == tokenizer.eos_token_id


CHATS = [
    ([user("What about the bridges?")], "Rust.", "They fail slowly, I think."),
    ([SYSTEM, user("Hé 你好?")], "", "ну да 🙂"),  # an empty reply
    ([user("a"), assistant("b"), user("  c\n")], "\n\nspaced ", " 2"),
    ([SYSTEM, user("x"), assistant("y"), user("12")], "48", " 48"),
]


@pytest.mark.parametrize(
    "template", [CHATML, THINKING, HEADERS, TIGHT], ids=["chatml", "thinking", "headers", "tight"]
)
def test_a_pair_is_what_trl_s_dpo_trains_on(tokenizer: Tokenizer, template: str) -> None:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = [
        {"prompt": prompt, "chosen": [assistant(chosen)], "rejected": [assistant(rejected)]}
        for prompt, chosen, rejected in CHATS
    ]
    with_template(tokenizer, template)
    # TRL's own preparation, which asks of the trainer nothing but itself.
    arguments = DPOConfig(output_dir="unused", use_cpu=True, bf16=False, max_length=None, report_to="none")
    itself = SimpleNamespace(_tokenizer=tokenizer)
    theirs = DPOTrainer._prepare_dataset(itself, Dataset.from_list(rows), tokenizer, arguments, "train")
    for row, (prompt, chosen, rejected) in zip(theirs, CHATS, strict=True):
        ours = attempt_pair(tokenizer, prompt, chosen, rejected, settings=WIDE)
        assert not isinstance(ours, NotRendered)
        assert [side.prompt_ids for side in ours] == [row["prompt_ids"]] * 2
        assert [side.completion_ids for side in ours] == [row["chosen_ids"], row["rejected_ids"]]
        assert all(set(side.completion_mask) == {1} and not side.mismatch for side in ours)


def test_both_replies_begin_where_the_first_parts_from_the_prompt(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, TIGHT)
    spaced, plain = (render(tokenizer, [user("q")], text, settings=WIDE) for text in ("the town", "The town"))
    assert spaced is not None and plain is not None
    pair = attempt_pair(tokenizer, [user("q")], "the town", "The town", settings=WIDE)
    assert not isinstance(pair, NotRendered)
    shortest = min(len(spaced.prompt_ids), len(plain.prompt_ids))
    assert len(spaced.prompt_ids) != len(plain.prompt_ids)  # or this shows nothing
    for side, alone in zip(pair, (spaced, plain), strict=True):
        assert len(side.prompt_ids) == shortest and sum(side.completion_mask) == len(side.completion_ids)
        assert side.prompt_ids + side.completion_ids == alone.prompt_ids + alone.completion_ids


# ------------------------------------------------------------------------------- tools, results, names, reasoning


def test_tool_calls_and_results_are_rendered_as_the_template_wants_them(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, THINKING)
    tools = [{"type": "function", "function": {"name": "weather"}}]
    prompt, completion = shown(tokenizer, render(tokenizer, WITH_TOOL, "Rain.", settings=WIDE, tools=tools))
    assert (
        '{"name": "weather", "arguments": {"city": "Zürich"}}' in prompt
    )  # an object, not a string in a string
    assert "<tool_response>\n7 °C, rain\n</tool_response>" in prompt
    assert prompt.startswith(f"<|im_start|>system\n{json.dumps(tools[0])}\n")
    assert completion == "<think>\n\n</think>\n\nRain.<|im_end|>\n"


@pytest.mark.parametrize(
    "logged",
    [
        call("weather"),
        {"name": "weather", "arguments": {"city": "Zürich"}},
        call("weather", {"city": "Zürich"}),
    ],
)
def test_a_reply_may_be_a_tool_call_alone_in_whatever_form_it_was_logged(
    tokenizer: Tokenizer, logged: Any
) -> None:
    with_template(tokenizer, HEADERS)
    made = render(tokenizer, [user("Weather?")], assistant("", tool_calls=[logged]), settings=WIDE)
    assert shown(tokenizer, made)[1] == '{"name": "weather", "parameters": {"city": "Zürich"}}<|im_end|>'
    assert made is not None and made.notes == ()


def test_a_template_that_puts_arguments_in_as_text_is_given_text(tokenizer: Tokenizer) -> None:
    as_text = (
        "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}"
    )
    with_template(tokenizer, "{% for m in messages %}{{ m.content }}" + as_text + "<|im_end|>{% endfor %}")
    for arguments in ('{"city":"Zürich"}', {"city": "Zürich"}):
        reply = assistant("", tool_calls=[call("weather", arguments)])
        text = arguments if isinstance(arguments, str) else '{"city": "Zürich"}'
        made = render(tokenizer, [user("q")], reply, settings=WIDE)
        assert shown(tokenizer, made) == ("q<|im_end|>", f"weather {text}<|im_end|>")


@pytest.mark.parametrize(
    ("template", "prompt", "completion", "reason"),
    [
        (CHATML, WITH_TOOL, "Rain.", "tool_call_lost"),
        (CHATML, [user("q")], assistant("", tool_calls=[call("f")]), "tool_call_lost"),
        ("{% for m in messages if m.role != 'tool' %}{{ m.role }} {{ m.content }} {{ m.tool_calls }}{% endfor %}",
         WITH_TOOL, "Rain.", "tool_result_lost"),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", [SYSTEM, user("q")], "r",
         "message_lost"),
        (HEADERS, [user("q")], assistant("said too", tool_calls=[call("f")]), "message_lost"),
        (HEADERS, [user("q")], assistant("", tool_calls=[call("f"), call("g")]), "template_refuses"),
        (STRICT, [SYSTEM, user("q")], "r", "template_refuses"),
        ("{{ messages[0].content + 1 }}", [user("q")], "r", "template_refuses"),
        (THINKING, [user("q")], assistant("", tool_calls=[{"function": {}}]), "tool_call_unreadable"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", [user("q")], "", "empty_completion"),
    ],
)  # fmt: skip
def test_what_a_template_cannot_show_is_refused_with_a_reason(
    tokenizer: Tokenizer, template: str, prompt: list[dict[str, Any]], completion: Any, reason: str
) -> None:
    with_template(tokenizer, template)
    outcome = attempt(tokenizer, prompt, completion, settings=WIDE)
    assert outcome == NotRendered(reason) and render(tokenizer, prompt, completion, settings=WIDE) is None


def test_names_and_arguments_that_only_some_templates_show_are_noted(tokenizer: Tokenizer) -> None:
    named = [{**user("q"), "name": "Zoë"}]
    plain = render(tokenizer, named, "r", settings=WIDE)
    assert plain is not None and (plain.notes, plain.mismatch) == (("name_lost",), False)
    with_template(tokenizer, CHATML.replace("{{ m['role'] }}", "{{ m['role'] }} {{ m['name'] or '' }}"))
    showing = render(tokenizer, named, "r", settings=WIDE)
    assert showing is not None and showing.notes == () and "user Zoë\nq" in shown(tokenizer, showing)[0]
    with_template(
        tokenizer,
        "{% for m in messages %}{{ m.content }}{{ (m.tool_calls or [{}])[0].get('function', {}).name }}{% endfor %}",
    )
    assert attempt(
        tokenizer, [user("q")], assistant("", tool_calls=[call("f")]), settings=WIDE
    ) == NotRendered(
        "tool_call_lost"  # its arguments are
    )


def test_a_mark_that_stands_in_the_chat_hides_nothing(tokenizer: Tokenizer) -> None:
    prompt = [user("mqz0x mqz1x mqz2x mqzq"), *WITH_TOOL[2:]]
    assert attempt(tokenizer, prompt, "mqz3x", settings=WIDE) == NotRendered("tool_call_lost")


def test_no_template_at_all_is_an_error_of_the_set_up(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, "")
    with pytest.raises(TrainingError, match="no chat template"):
        render(tokenizer, [user("q")], "r", settings=WIDE)


THOUGHT = assistant("Yes, 你好.", reasoning="First é, then <b> and 7.\n")


def test_reasoning_is_trained_on_masked_or_dropped(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, THINKING)
    whole = "<think>\nFirst é, then <b> and 7.\n</think>\n\nYes, 你好.<|im_end|>\n"
    kept = render(tokenizer, [user("q")], THOUGHT, settings=WIDE)
    assert shown(tokenizer, kept)[1] == whole == trained(tokenizer, kept)
    masked = render(tokenizer, [user("q")], THOUGHT, settings=RenderSettings(reasoning="mask"))
    assert kept is not None and masked is not None and masked.completion_ids == kept.completion_ids
    left = trained(tokenizer, masked)
    assert (
        left.endswith("</think>\n\nYes, 你好.<|im_end|>\n")
        and left.startswith("<think>")
        and "First" not in left
    )
    assert len(left) <= len("<think>\n\n</think>\n\nYes, 你好.<|im_end|>\n") and not masked.mismatch
    dropped = render(tokenizer, [user("q")], THOUGHT, settings=RenderSettings(reasoning="drop"))
    assert trained(tokenizer, dropped) == "<think>\n\n</think>\n\nYes, 你好.<|im_end|>\n"
    without = render(
        tokenizer, [user("q")], assistant("Yes, 你好."), settings=RenderSettings(reasoning="mask")
    )
    assert without is not None and without == dropped


def test_the_reasoning_of_earlier_turns_is_the_template_s_business(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, THINKING)
    prompt = [user("a"), THOUGHT, user("b")]
    for mode in ("keep", "mask", "drop"):
        made = render(tokenizer, prompt, "c", settings=RenderSettings(reasoning=mode))
        assert "First" not in shown(tokenizer, made)[0] and made is not None and made.notes == ()
    agent = [user("a"), {**WITH_TOOL[2], "reasoning": "Ask the tool."}, WITH_TOOL[3]]
    assert (
        "<think>\nAsk the tool.\n</think>"
        in shown(tokenizer, render(tokenizer, agent, "c", settings=WIDE))[0]
    )


def test_reasoning_that_a_template_leaves_out_is_a_mismatch(tokenizer: Tokenizer) -> None:
    made = render(tokenizer, [user("q")], THOUGHT, settings=WIDE)
    assert shown(tokenizer, made)[1] == "Yes, 你好.<|im_end|>\n"
    assert made is not None and made.mismatch and made.notes == ("reasoning_lost",)
    assert not render(tokenizer, [user("q")], THOUGHT, settings=RenderSettings(reasoning="drop")).mismatch


def test_reasoning_that_cannot_be_found_is_not_trained_on(tokenizer: Tokenizer) -> None:
    with_template(
        tokenizer,
        CHATML.replace(
            "{{ m['content'] }}", "{{ m.reasoning_content }}{{ m.reasoning_content }}{{ m.content }}"
        ),
    )
    mask = RenderSettings(reasoning="mask")
    assert attempt(tokenizer, [user("q")], THOUGHT, settings=mask) == NotRendered("reasoning_not_found")


def test_the_template_s_own_switches_are_passed_on(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, THINKING)
    off = RenderSettings(template_options={"enable_thinking": False})
    prompt, completion = shown(tokenizer, render(tokenizer, [user("q")], "r", settings=off))
    assert prompt.endswith("assistant\n<think>\n\n</think>\n\n") and completion == "r<|im_end|>\n"


# ------------------------------------------------------------------------------------------------ logged tokens


def logged(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


ASKED = "<|im_start|>system\nYou answer.<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


def served(
    tokenizer: Tokenizer, completion: Any, prompt_text: str | None, reply_text: str | None, **settings: Any
):
    return render(
        tokenizer,
        [user("q")],
        completion,
        settings=RenderSettings(**settings),
        logged_prompt_ids=None if prompt_text is None else logged(tokenizer, prompt_text),
        logged_completion_ids=None if reply_text is None else logged(tokenizer, reply_text),
    )


def test_logged_tokens_are_taken_as_they_are(tokenizer: Tokenizer) -> None:
    made = served(tokenizer, "The town wakes.", ASKED, "The town wakes.<|im_end|>")
    assert shown(tokenizer, made) == (
        ASKED,
        "The town wakes.<|im_end|>",
    )  # and no line break, which was not sampled
    assert made.logged and not made.mismatch and made.notes == () and set(made.completion_mask) == {1}
    assert not served(
        tokenizer, "The town wakes.", None, "The town wakes."
    ).mismatch  # cut off at its longest
    ignored = served(tokenizer, "The town wakes.", ASKED, "The town.<|im_end|>", use_logged_tokens=False)
    assert (
        not ignored.logged
        and shown(tokenizer, ignored)[1] == "The town wakes.<|im_end|>\n"
        and not ignored.mismatch
    )


def test_tokens_that_spell_the_same_text_otherwise_are_used_and_counted(tokenizer: Tokenizer) -> None:
    other = [token for letter in "The town wakes." for token in logged(tokenizer, letter)] + [
        tokenizer.eos_token_id
    ]
    assert tokenizer.decode(other) == "The town wakes.<|im_end|>"
    made = render(tokenizer, [user("q")], "The town wakes.", settings=WIDE, logged_completion_ids=other)
    assert made is not None and made.completion_ids == other and made.prompt_ids == logged(tokenizer, ASKED)
    assert made.mismatch and made.notes == ("logged_reply_differs",)


@pytest.mark.parametrize(
    "reply", ["The town sleeps.<|im_end|>", "The town<|im_end|>", "The town", "The town wakes. More"]
)
def test_another_text_than_the_tokens_is_a_mismatch(tokenizer: Tokenizer, reply: str) -> None:
    made = served(tokenizer, "The town wakes.", ASKED, reply)
    assert made.mismatch and shown(tokenizer, made)[1] == reply


def test_another_prompt_than_the_tokens_is_a_mismatch(tokenizer: Tokenizer) -> None:
    older = ASKED.replace("You answer.", "You are brief.")
    made = served(tokenizer, "r", older, "r<|im_end|>")
    assert shown(tokenizer, made) == (older, "r<|im_end|>")
    assert made.mismatch and made.notes == ("logged_prompt_differs",)
    prompt_alone = served(tokenizer, "r", older, None)
    assert shown(tokenizer, prompt_alone) == (older, "r<|im_end|>\n") and prompt_alone.mismatch


def test_tokens_of_another_vocabulary_are_not_used(tokenizer: Tokenizer) -> None:
    ids = [5, len(tokenizer)]
    made = render(
        tokenizer, [user("q")], "r", settings=WIDE, logged_completion_ids=ids, logged_prompt_ids=[1, 2]
    )
    assert shown(tokenizer, made) == (ASKED, "r<|im_end|>\n")
    assert made is not None and made.mismatch and made.notes == ("logged_ids_unknown",) and not made.logged


def test_an_empty_list_of_tokens_is_none(tokenizer: Tokenizer) -> None:
    made = render(tokenizer, [user("q")], "r", settings=WIDE, logged_completion_ids=[], logged_prompt_ids=[])
    assert made == render(tokenizer, [user("q")], "r", settings=WIDE)


def test_reasoning_in_logged_tokens_is_masked_and_never_trained_on_by_mistake(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, THINKING)
    prompt = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    reply = "<think>\nFirst é, then <b> and 7.\n</think>\n\nYes, 你好.<|im_end|>"
    same = served(tokenizer, THOUGHT, prompt, reply, reasoning="mask")
    assert same.logged and not same.mismatch and shown(tokenizer, same)[1] == reply
    assert trained(tokenizer, same).endswith("Yes, 你好.<|im_end|>") and "First" not in trained(
        tokenizer, same
    )
    changed = served(tokenizer, THOUGHT, prompt, reply.replace("First", "At first"), reasoning="mask")
    assert changed.mismatch and trained(tokenizer, changed).endswith("Yes, 你好.<|im_end|>")
    assert not {"first", "First", "7"} & set(trained(tokenizer, changed).split())
    dropped = served(tokenizer, THOUGHT, prompt, reply, reasoning="drop")
    assert (
        not dropped.logged and shown(tokenizer, dropped)[1] == "<think>\n\n</think>\n\nYes, 你好.<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("served", "rendered", "mask", "expected"),
    [
        ([1, 2, 3, 9], [1, 2, 3, 9, 5], [0, 0, 1, 1, 1], [0, 0, 1, 1]),  # 5 was not sampled
        ([7, 2, 3, 9], [1, 2, 3, 9], [0, 0, 1, 1], [0, 0, 1, 1]),
        (
            [1, 7, 3, 9],
            [1, 2, 3, 9],
            [1, 1, 1, 1],
            [0, 0, 1, 1],
        ),  # what lies before a difference is not trusted
        ([8], [1, 2], [1, 1], [0]),
        ([1, 2], [2], [1], [0, 1]),
    ],
)
def test_a_mask_is_carried_over_from_the_end(
    served: list[int], rendered: list[int], mask: list[int], expected: list[int]
) -> None:
    assert mask_like(served, rendered, mask) == expected


def test_in_a_pair_each_reply_has_its_own_tokens(tokenizer: Tokenizer) -> None:
    pair = attempt_pair(
        tokenizer,
        [user("q")],
        "r",
        "edited",
        settings=WIDE,
        logged_prompt_ids=logged(tokenizer, ASKED),
        logged_chosen_ids=logged(tokenizer, "r<|im_end|>"),
    )
    assert not isinstance(pair, NotRendered)
    assert [side.logged for side in pair] == [True, False] and pair[0].prompt_ids == pair[1].prompt_ids
    assert [shown(tokenizer, side)[1] for side in pair] == ["r<|im_end|>", "edited<|im_end|>\n"]


def test_the_end_of_a_prompt_that_was_never_sampled_is_not_trained_on(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, TIGHT)
    text = logged(tokenizer, "The town<|im_end|>")
    pair = attempt_pair(tokenizer, [user("q")], "The town", "the town", settings=WIDE, logged_chosen_ids=text)
    assert not isinstance(pair, NotRendered)
    moved = len(pair[0].completion_ids) - len(text)
    assert moved == 1 and pair[0].completion_mask == [0] + [1] * len(text)
    assert set(pair[1].completion_mask) == {1}


# -------------------------------------------------------------------------------------------------- too long


def test_the_oldest_turns_go_first_and_no_call_without_its_result() -> None:
    memory = {"role": "system", "content": "memory"}
    prompt = [SYSTEM, user("1"), *WITH_TOOL[2:], assistant("2"), user("3"), memory, assistant("4"), user("5")]
    assert cuts(prompt) == [
        (prompt, 0),
        ([SYSTEM, *prompt[5:]], 3),  # the question, the call with its result, the answer
        ([SYSTEM, memory, user("5")], 5),
    ]
    asked = [SYSTEM, user("1"), assistant("2"), user("3"), *WITH_TOOL[2:]]
    assert cuts(asked)[-1] == ([SYSTEM, user("3"), *WITH_TOOL[2:]], 2)  # the tools called for it stay
    assert cuts([assistant("hello"), user("1")])[-1] == ([user("1")], 1)
    assert cuts([user("1"), user("2")])[-1] == ([user("2")], 1)
    assert cuts([SYSTEM]) == [([SYSTEM], 0)] and cuts([SYSTEM, user("1")]) == [([SYSTEM, user("1")], 0)]


LONG = [
    SYSTEM,
    *(m for n in range(6) for m in (user(f"question {n} " * 5), assistant(f"answer {n}"))),
    user("last"),
]


@pytest.mark.parametrize("template", [CHATML, THINKING, HEADERS])
def test_a_prompt_is_cut_as_little_as_makes_it_fit(tokenizer: Tokenizer, template: str) -> None:
    with_template(tokenizer, template)
    lengths = {}
    for number, way in enumerate(cuts(LONG)):
        made = render(tokenizer, way.messages, "reply", settings=WIDE)
        assert made is not None and made.cut_turns == 0
        lengths[number] = len(made)
    for number, way in enumerate(cuts(LONG)):
        for room, expected in ((lengths[number], number), (lengths[number] - 1, number + 1)):
            cut = attempt(tokenizer, LONG, "reply", settings=RenderSettings(max_tokens=room))
            if expected == len(lengths):
                assert cut == NotRendered("too_long")
                continue
            assert (
                isinstance(cut, Rendered) and cut.cut_turns == cuts(LONG)[expected].turns and len(cut) <= room
            )
            alone = render(tokenizer, cuts(LONG)[expected].messages, "reply", settings=WIDE)
            assert alone is not None and (cut.prompt_ids, cut.completion_ids) == (
                alone.prompt_ids,
                alone.completion_ids,
            )
        assert way.messages[0] == SYSTEM and way.messages[-1] == user("last")


def test_what_must_not_be_cut_is_left_out(tokenizer: Tokenizer) -> None:
    short = RenderSettings(max_tokens=40, overlong="leave_out")
    assert attempt(tokenizer, LONG, "reply", settings=short) == NotRendered("too_long")
    assert attempt(
        tokenizer, [user("q")], "word " * 60, settings=RenderSettings(max_tokens=40)
    ) == NotRendered("too_long")


def test_both_replies_of_a_pair_have_the_same_cut(tokenizer: Tokenizer) -> None:
    settings = RenderSettings(max_tokens=160)
    short, long = "reply", "word " * 30
    assert (
        render(tokenizer, LONG, short, settings=settings).cut_turns
        < render(tokenizer, LONG, long, settings=settings).cut_turns
    )
    pair = attempt_pair(tokenizer, LONG, short, long, settings=settings)
    assert not isinstance(pair, NotRendered) and pair[0].prompt_ids == pair[1].prompt_ids
    assert pair[0].cut_turns == pair[1].cut_turns > 0 and max(map(len, pair)) <= 160


def test_logged_replies_follow_a_cut_prompt_that_is_rendered(tokenizer: Tokenizer) -> None:
    whole = render(tokenizer, LONG, "reply", settings=WIDE)
    ids = logged(tokenizer, "reply<|im_end|>")
    arguments = {"logged_prompt_ids": whole.prompt_ids, "logged_completion_ids": ids}
    kept = render(tokenizer, LONG, "reply", settings=WIDE, **arguments)
    assert (kept.prompt_ids, kept.completion_ids, kept.cut_turns) == (whole.prompt_ids, ids, 0)
    cut = render(tokenizer, LONG, "reply", settings=RenderSettings(max_tokens=80), **arguments)
    assert cut.cut_turns == 10 and cut.completion_ids == ids and cut.logged and not cut.mismatch
    assert shown(tokenizer, cut)[0].startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nquestion 5"
    )


def test_a_template_that_refuses_a_greeting_takes_what_is_cut(tokenizer: Tokenizer) -> None:
    with_template(tokenizer, STRICT)
    prompt = [m for m in LONG if m["role"] != "system"]
    made = render(tokenizer, prompt, "reply", settings=RenderSettings(max_tokens=60))
    assert made is not None and made.cut_turns > 0


# ---------------------------------------------------------------------------------------------------- counts


def test_counts_sum_up_what_became_of_chats(tokenizer: Tokenizer) -> None:
    tight = RenderSettings(max_tokens=60)
    outcomes = [
        attempt(tokenizer, [user("q")], "r", settings=WIDE),
        attempt(tokenizer, LONG, "r", settings=tight),
        attempt(tokenizer, [user("q")], "word " * 90, settings=tight),
        attempt(tokenizer, [user("q")], THOUGHT, settings=WIDE),
        attempt(tokenizer, WITH_TOOL, "r", settings=WIDE),
    ]
    counts = counted(outcomes)
    reasons = {"reasoning_lost": 1, "tool_call_lost": 1, "too_long": 1}
    assert counts == RenderCounts(rendered=3, cut=1, left_out=1, mismatch=1, unrenderable=1, reasons=reasons)
    assert counts.metrics()["render/rendered"] == 3.0 and counts.metrics()["render/tool_call_lost"] == 1.0
    assert counted([]) == RenderCounts()
