"""Prompts that GRPO answers: as served, cut at the borders of turns, and nothing lost in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.templates import CHATML, HEADERS, STRICT, THINKING
from training.errors import TrainingError
from training.grpo_rendering import attempt_prompt
from training.rendered import TOO_LONG, NotRendered, Rendered
from training.rendering import RenderSettings

WIDE = RenderSettings(max_tokens=4096)
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLED = [
    SYSTEM,
    {"role": "user", "content": "Weather in Zürich? ☂"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "content": "7 °C, rain", "name": "weather"},
]


@pytest.fixture
def tokenizer(tiny_base: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_base)


def with_template(tokenizer: Any, template: str) -> Any:
    tokenizer.chat_template = template
    return tokenizer


def talk(*said: str) -> list[dict[str, Any]]:
    """A system message, then user and assistant by turns."""
    return [SYSTEM, *({"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said))]


def asked(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def rendered(tokenizer: Any, messages: list[dict[str, Any]], **given: Any) -> tuple[Rendered, list[Any]]:
    found = attempt_prompt(tokenizer, messages, **{"settings": WIDE, **given})
    assert not isinstance(found, NotRendered), found.reason
    return found


@pytest.mark.parametrize("template", [CHATML, HEADERS, THINKING])
def test_a_prompt_is_what_the_template_makes_of_it(template: str, tokenizer: Any) -> None:
    chat = talk("Wie geht's?", "Gut.", "Schön! ☂")
    found, messages = rendered(with_template(tokenizer, template), chat)
    assert found.prompt_ids == asked(tokenizer, chat) and messages == chat
    assert found.completion_ids == [] and not found.mismatch and found.notes == () and found.cut_turns == 0


def test_tools_and_switches_of_the_template_are_used(tokenizer: Any) -> None:
    with_template(tokenizer, THINKING)
    settings = RenderSettings(max_tokens=4096, template_options={"enable_thinking": False})
    found, _ = rendered(tokenizer, CALLED, settings=settings, tools=TOOLS)
    text = tokenizer.decode(found.prompt_ids)
    assert '"name": "weather"' in text and "<tool_call>" in text and "7 °C, rain" in text
    assert text.endswith("<think>\n\n</think>\n\n")
    without, _ = rendered(tokenizer, CALLED)
    assert not tokenizer.decode(without.prompt_ids).endswith("</think>\n\n")


def test_what_the_template_would_leave_out_is_refused(tokenizer: Any) -> None:
    with_template(tokenizer, CHATML)
    assert attempt_prompt(tokenizer, CALLED, settings=WIDE) == NotRendered("tool_call_lost")
    with_template(tokenizer, STRICT)
    assert attempt_prompt(tokenizer, talk("Hi"), settings=WIDE) == NotRendered("template_refuses")
    tokenizer.chat_template = None
    with pytest.raises(TrainingError, match="no chat template"):
        attempt_prompt(tokenizer, talk("Hi"), settings=WIDE)


def test_logged_ids_are_used_and_a_difference_is_noted(tokenizer: Any) -> None:
    with_template(tokenizer, CHATML)
    chat = talk("Hello")
    own = asked(tokenizer, chat)
    same, _ = rendered(tokenizer, chat, logged_ids=own)
    assert same.prompt_ids == own and not same.mismatch and same.notes == ()
    other, messages = rendered(tokenizer, chat, logged_ids=[7, 8, 9])
    assert other.prompt_ids == [7, 8, 9] and other.mismatch and messages == chat
    assert other.notes == ("logged_prompt_differs",)
    foreign, _ = rendered(tokenizer, chat, logged_ids=[7, len(tokenizer)])  # of another tokenizer
    assert foreign.prompt_ids == own and foreign.mismatch and foreign.notes == ("logged_ids_unknown",)
    empty, _ = rendered(tokenizer, chat, logged_ids=[])
    assert empty.prompt_ids == own and not empty.mismatch
    off = RenderSettings(max_tokens=4096, use_logged_tokens=False)
    unused, _ = rendered(tokenizer, chat, logged_ids=[7, 8, 9], settings=off)
    assert unused.prompt_ids == own and not unused.mismatch


def test_logged_ids_stand_for_a_chat_that_the_template_refuses(tokenizer: Any) -> None:
    with_template(tokenizer, STRICT)
    found, messages = rendered(tokenizer, talk("Hi"), logged_ids=[1, 2])
    assert found.prompt_ids == [1, 2] and messages == talk("Hi")
    assert found.mismatch and found.notes == ("logged_prompt_differs", "template_refuses")
    too_many = attempt_prompt(
        tokenizer, talk("Hi"), settings=RenderSettings(max_tokens=16), logged_ids=[1] * 17
    )
    assert too_many == NotRendered("template_refuses")


@pytest.mark.parametrize("logged", [False, True])
def test_a_long_prompt_loses_its_oldest_turns_and_no_more(logged: bool, tokenizer: Any) -> None:
    with_template(tokenizer, CHATML)
    chat = talk("first " * 30, "yes", "second " * 30, "no", "third?")
    one, two = [SYSTEM, *chat[3:]], [SYSTEM, *chat[5:]]
    sizes = [len(asked(tokenizer, messages)) for messages in (chat, one, two)]
    ids = asked(tokenizer, chat) if logged else None
    for room, wanted, turns in (
        (sizes[0], chat, 0),
        (sizes[0] - 1, one, 2),
        (sizes[1] - 1, two, 4),
        (sizes[2], two, 4),
    ):
        found, messages = rendered(tokenizer, chat, settings=RenderSettings(max_tokens=room), logged_ids=ids)
        assert messages == wanted and found.prompt_ids == asked(tokenizer, wanted)
        assert found.cut_turns == turns and not found.mismatch
    small = RenderSettings(max_tokens=sizes[2] - 1)
    assert attempt_prompt(tokenizer, chat, settings=small, logged_ids=ids) == NotRendered(TOO_LONG)
    whole = RenderSettings(max_tokens=sizes[0] - 1, overlong="leave_out")
    assert attempt_prompt(tokenizer, chat, settings=whole, logged_ids=ids) == NotRendered(TOO_LONG)


def test_a_tool_call_is_never_parted_from_its_result(tokenizer: Any) -> None:
    with_template(tokenizer, THINKING)
    chat = [*CALLED, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": "And tomorrow?"}]
    room = len(rendered(tokenizer, chat)[0].prompt_ids) - 1
    found, messages = rendered(tokenizer, chat, settings=RenderSettings(max_tokens=room))
    assert messages == [SYSTEM, chat[-1]] and found.cut_turns == 3
