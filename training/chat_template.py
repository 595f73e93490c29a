"""Messages as a base model's chat template wants them, and what the template makes of them.

A template may leave out what it does not know: a role, a tool call, reasoning. It does so without a word, and the model
is then trained on a context that nobody ever saw. So a mark is put behind each of these and looked for in the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from training.errors import TrainingError
from training.turns import Message

LOST_RESULT, LOST_CALL, LOST_MESSAGE = "tool_result_lost", "tool_call_lost", "message_lost"
_UNRENDERABLE = {LOST_RESULT, LOST_CALL, LOST_MESSAGE}
LOST_REASONING, LOST_NAME = "reasoning_lost", "name_lost"
REFUSED, UNREADABLE_CALL = "template_refuses", "tool_call_unreadable"


class Unrenderable(Exception):
    """A chat that the template cannot show; never leaves this package's rendering."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Template:
    """A tokenizer's chat template with all that is fixed for a chat."""

    tokenizer: Any
    tools: Sequence[Mapping[str, Any]] | None = None
    """Schemas of the tools that were on offer."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Switches of the template, such as enable_thinking."""

    def text(self, messages: Sequence[Message], *, ask: bool) -> str:
        """The chat as text; `ask` opens the assistant's turn at its end.

        Raises:
            Unrenderable: the template refuses the messages.
            TrainingError: there is no template.
        """
        if not self.tokenizer.chat_template:
            raise TrainingError(
                "The base model's tokenizer has no chat template, so nothing says how a chat is rendered.",
                next_step="use a chat model as [model] base",
            )
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in self.tools] if self.tools else None,
                add_generation_prompt=ask,
                tokenize=False,
                **self.options,
            )
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError):
            # Templates check little: a missing field shows as whatever Python makes of it.
            raise Unrenderable(REFUSED) from None
        return text


Arguments = Literal["object", "text"]
"""How templates take the arguments of tool calls: most write an object out as JSON, some put text in as it is."""


def for_template(message: Message, arguments: Arguments = "object") -> dict[str, Any]:
    """A message of the event format in the words of chat templates.

    Raises:
        Unrenderable: a tool call has no name.
    """
    made: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("name"):
        made["name"] = message["name"]
    if (message.get("reasoning") or "").strip():
        made["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        made["tool_calls"] = [_call(call, arguments) for call in message["tool_calls"]]
    return made


def _call(call: Mapping[str, Any], form: Arguments) -> dict[str, Any]:
    """A tool call in OpenAI's form."""
    inner = call.get("function")
    function = dict(inner) if isinstance(inner, Mapping) else {k: v for k, v in call.items() if k != "id"}
    if not isinstance(function.get("name"), str):
        raise Unrenderable(UNREADABLE_CALL)
    arguments = function.get("arguments") or {}
    if form == "object" and isinstance(arguments, str):
        with suppress(ValueError):
            parsed = json.loads(arguments)
            arguments = parsed if isinstance(parsed, dict) else arguments
    elif form == "text" and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    about = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**about, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def lost(template: Template, messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """What a template leaves out of a chat.

    Args:
        template: the template.
        messages: from `for_template`, the reply last. Of earlier turns reasoning may be missing: many models are
            served without it.

    Raises:
        Unrenderable: the template refuses the messages.
    """
    stem = _unused(messages)
    marks: dict[str, str] = {}

    def marked(text: str, reason: str) -> str:
        mark = f"{stem}{len(marks)}x"
        marks[mark] = reason
        return text + mark

    shown = []
    for place, message in enumerate(messages):
        changed = dict(message)
        if message["content"] or message["role"] == "tool":
            reason = LOST_RESULT if message["role"] == "tool" else LOST_MESSAGE
            changed["content"] = marked(message["content"], reason)
        if "name" in message:
            changed["name"] = marked(message["name"], LOST_NAME)
        if "tool_calls" in message:
            changed["tool_calls"] = [_marked_call(call, marked) for call in message["tool_calls"]]
        if "reasoning_content" in message and place == len(messages) - 1:
            changed["reasoning_content"] = marked(message["reasoning_content"], LOST_REASONING)
        shown.append(changed)
    text = template.text(shown, ask=False)
    return {reason for mark, reason in marks.items() if mark not in text}


def _marked_call(call: Mapping[str, Any], marked: Any) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    shown = (
        {**arguments, "x": marked("", LOST_CALL)}
        if isinstance(arguments, dict)
        else marked(arguments, LOST_CALL)
    )
    return {**call, "function": {"name": marked(function["name"], LOST_CALL), "arguments": shown}}


def in_its_words(
    template: Template, prompt: Sequence[Message], replies: Sequence[Message]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[set[str]]]:
    """Prompt and replies in the template's words, and what it leaves out of each reply's chat.

    Raises:
        Unrenderable: it leaves out what must not be missing, however tool calls are put.
    """
    calls = any(message.get("tool_calls") for message in (*prompt, *replies))
    forms: tuple[Arguments, ...] = ("object", "text") if calls else ("object",)
    refusals: list[str] = []
    for form in forms:
        try:
            messages, shown = (
                [for_template(message, form) for message in part] for part in (prompt, replies)
            )
            lacking = [lost(template, [*messages, reply]) for reply in shown]
        except Unrenderable as problem:
            refusals.append(problem.reason)
            continue
        gone = sorted(_UNRENDERABLE & set().union(*lacking))
        if not gone:
            return messages, shown, lacking
        refusals.append(gone[0])
    raise Unrenderable(refusals[0])


def reasoning_span(
    template: Template, messages: Sequence[Mapping[str, Any]], text: str
) -> tuple[int, int] | None:
    """Where the last message's reasoning stands in the text of a chat; None where that cannot be told.

    Args:
        template: the template.
        messages: from `for_template`, the last one with reasoning.
        text: what the template makes of them.

    Returns:
        First character, and the one after the last.
    """
    reasoning = messages[-1]["reasoning_content"]
    inner = reasoning.strip()  # templates strip, which marks outside of it would prevent
    before, after = (f"{_unused(messages)}{number}x" for number in (0, 1))
    at = reasoning.index(inner)
    around = f"{reasoning[:at]}{before}{inner}{after}{reasoning[at + len(inner) :]}"
    marked = template.text([*messages[:-1], {**messages[-1], "reasoning_content": around}], ask=False)
    if marked.count(before) != 1 or marked.count(after) != 1:
        return None
    start, end = marked.index(before), marked.index(after) - len(before)
    return (start, end) if marked.replace(before, "").replace(after, "") == text else None


def _unused(messages: Sequence[Mapping[str, Any]]) -> str:
    """Letters that are nowhere in the messages, and that templates and JSON leave alone."""
    text = json.dumps(messages)
    stem = "mqz"
    while stem in text:
        stem += "q"
    return stem
