"""Messages as providers and frameworks write them. One row is one form."""

from __future__ import annotations

import pytest

from feedback.chat import asked_of, prompt_of, reply_of

USER = {"role": "user", "content": "Hi"}
REPLY = {"role": "assistant", "content": "Ho"}


def call(arguments: str = '{"city":"Rome"}', **fields):
    return {**fields, "type": "function", "function": {"name": "weather", "arguments": arguments}}


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("Hi", [USER]),
        ('"Hi"', [USER]),
        ('{"messages": [{"role": "user", "content": "Hi"}]}', [USER]),
        ({"messages": [[{"lc": 1, "kwargs": {"type": "human", "content": "Hi"}}]]}, [USER]),  # LangChain
        ([{"type": "human", "content": "Hi"}], [USER]),
        (
            {"messages": [{"lc": 1, "id": ["langchain_core", "messages", "HumanMessage"], "kwargs": USER}]},
            [USER],
        ),  # LangChain.js
        (
            {"messages": [{"lc": 1, "id": ["m", "HumanMessage"], "kwargs": {"content": "Hi"}}]},
            [USER],
        ),
        ({"messages": [["user", "Hi"], ["ai", "Ho"]]}, [USER, REPLY]),  # LangGraph's short form
        ([{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}], [USER]),  # OpenTelemetry
        ([{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], [USER]),  # OpenAI responses
        ({"prompt": "Hi", "system": "Be brief."}, [{"role": "system", "content": "Be brief."}, USER]),
        (
            {
                "config": {"system_instruction": "Be brief."},
                "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            },
            [{"role": "system", "content": "Be brief."}, USER],
        ),  # Gemini
        ([{"role": "developer", "content": "Be brief."}], [{"role": "system", "content": "Be brief."}]),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {}}],
                }
            ],
            [{"role": "user", "content": "See\n<image_url>"}],
        ),
        (
            [{"role": "assistant", "content": None, "tool_calls": [call(id="c1")]}],
            [{"role": "assistant", "content": "", "tool_calls": [call(id="c1")]}],
        ),
        (
            [{"type": "function_call", "name": "weather", "arguments": '{"city":"Rome"}', "call_id": "c1"}],
            [{"role": "assistant", "content": "", "tool_calls": [call(id="c1")]}],
        ),
        ([{"type": "function_call_output", "output": "21 °C"}], [{"role": "tool", "content": "21 °C"}]),
        (
            [{"role": "user", "content": [{"type": "tool_result", "content": "21 °C"}]}],
            [{"role": "tool", "content": "21 °C"}],
        ),  # Anthropic
        (
            [{"role": "user", "parts": [{"function_response": {"response": {"t": 21}}}]}],
            [{"role": "tool", "content": '{"t":21}'}],
        ),
        ({"content": "no role"}, []),
        ({"epochs": 3}, []),
        ([], []),
        (None, []),
        (3, []),
    ],
)
def test_prompts(value, messages):
    assert prompt_of(value) == messages


@pytest.mark.parametrize(
    ("value", "reply"),
    [
        ("Ho", REPLY),
        ('"Ho"', REPLY),
        ('{"price": 3}', {"role": "assistant", "content": '{"price": 3}'}),  # text that is JSON
        ({"choices": [{"message": REPLY}]}, REPLY),
        ({"choices": [{"text": "Ho"}]}, REPLY),
        ({"index": 0, "message": REPLY}, REPLY),
        ({"generations": [[{"text": "Ho"}]]}, REPLY),
        ({"candidates": [{"content": {"role": "model", "parts": [{"text": "Ho"}]}}]}, REPLY),
        ({"content": {"role": "model", "parts": [{"text": "Ho"}]}}, REPLY),
        (
            {"output": [{"type": "reasoning"}, {"type": "message", "role": "assistant", "content": "Ho"}]},
            REPLY,
        ),
        ({"messages": [USER, REPLY]}, REPLY),
        (
            [{"role": "assistant", "parts": [{"type": "text", "content": "Ho"}], "finish_reason": "stop"}],
            REPLY,
        ),
        ([{"type": "text", "text": "Ho"}], REPLY),
        ({"answer": "Ho"}, REPLY),
        (
            [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Ho"}],
            {**REPLY, "reasoning": "Hm"},
        ),
        (
            {"role": "assistant", "content": "Ho", "reasoning_content": "Hm"},
            {**REPLY, "reasoning": "Hm"},
        ),
        (
            [{"toolCallId": "c1", "toolName": "weather", "input": '{"city":"Rome"}'}],
            {"role": "assistant", "content": "", "tool_calls": [call(id="c1")]},
        ),  # Vercel
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "name": "weather", "input": {"city": "Rome"}}],
            },
            {"role": "assistant", "content": "", "tool_calls": [call()]},
        ),
        ({"messages": [USER]}, None),
        ({"loss": 0.5}, None),
        ([], None),
        (None, None),
        (0.5, None),
        (True, None),
    ],
)
def test_replies(value, reply):
    assert reply_of(value) == reply


def test_a_call_that_stands_in_three_places_is_one():
    """LangChain keeps the provider's form beside its own, with arguments spelt otherwise."""
    message = {
        "type": "ai",
        "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}],
        "tool_calls": [{"name": "weather", "args": {"city": "Rome"}, "id": "c1", "type": "tool_call"}],
        "additional_kwargs": {"tool_calls": [call('{"city": "Rome"}', id="c1")]},
    }
    assert reply_of(message) == {"role": "assistant", "content": "", "tool_calls": [call(id="c1")]}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"ticket": "Hi", "extra": None}, "Hi"),
        ({"a": 1, "b": "x"}, '{"a":1,"b":"x"}'),
        ({"question": "Hi"}, "Hi"),
    ],
)
def test_arguments_of_any_name_are_what_was_asked(arguments, text):
    assert asked_of(arguments) == [{"role": "user", "content": text}]
    assert asked_of({"ticket": None}) == asked_of(3) == []
