"""Chat messages as tools and providers write them, brought to palate's messages.

Known are the forms of OpenAI (chat and responses), Anthropic, Gemini, LangChain, the OpenTelemetry GenAI parts
and the Vercel AI SDK. What is no text in a message (an image, a file) is named in its place, `<image>`. A
tool call becomes a member of `tool_calls`, a tool's result text of a message of role `tool`.

>>> prompt_of({"messages": [{"role": "human", "content": [{"type": "text", "text": "Hi"}]}]})
[{'role': 'user', 'content': 'Hi'}]
>>> reply_of({"choices": [{"message": {"role": "assistant", "content": "Hello!"}}]})
{'role': 'assistant', 'content': 'Hello!'}
"""

from __future__ import annotations

from typing import Any

import orjson

Message = dict[str, Any]

_ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "ai": "assistant", "model": "assistant", "bot": "assistant", "tool": "tool", "function": "tool",
}  # fmt: skip
_ASKED = ("prompt", "question", "query", "input", "inputs", "args", "request", "new_message", "topic")
_ANSWERED = (
    "output", "outputs", "answer", "response", "result", "completion", "generated_text", "text", "return_value"
)  # fmt: skip
_CALLS = ("tool_call", "tool_use", "function_call", "tool-call", "server_tool_call")
_RESULTS = ("tool_call_response", "tool_result", "function_call_output", "tool-result", "function_response")
_MAX_DEPTH = 8


def prompt_of(value: Any) -> list[Message]:
    """The messages that a model was given; empty when the value is no such thing."""
    return _prompt(decoded(value), 0)


def reply_of(value: Any) -> Message | None:
    """What a model answered, as one message of role `assistant`; None when the value is no such thing."""
    found = _reply(decoded(value), 0)
    if found is None and isinstance(value, str):
        return {"role": "assistant", "content": value}  # text that only looks like JSON
    return found


def asked_of(value: Any) -> list[Message]:
    """Like `prompt_of`, and for arguments of any other name what they say: the one text, or all as JSON.

    For what people judge as a whole, such as a traced function, whose question must not be lost because its
    argument is called `ticket`.

    >>> asked_of({"ticket": "My order is late."})
    [{'role': 'user', 'content': 'My order is late.'}]
    """
    value = decoded(value)
    found = _prompt(value, 0)
    if found or not isinstance(value, dict):
        return found
    given = {name: one for name, one in value.items() if one not in (None, "", [], {})}
    if not given:
        return []
    (first, *rest) = given.values()
    return [{"role": "user", "content": _text(given if rest else first)}]


def decoded(value: Any) -> Any:
    """The value in a string of JSON, however often encoded; a string that is none stays one."""
    for _ in range(3):
        if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[", '"'):
            return value
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _prompt(value: Any, depth: int) -> list[Message]:
    if depth > _MAX_DEPTH:
        return []
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value.strip() else []
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return _prompt("\n".join(value), depth)
        if value and all(isinstance(item, list) for item in value) and _message(value[0]) is None:
            return _prompt(value[0], depth + 1)  # LangChain's batches of one
        return [message for item in value if (message := _message(item)) is not None]
    if not isinstance(value, dict):
        return []
    found = _wrapped(value, depth)
    if found:
        system = _system(value)
        return [{"role": "system", "content": system}, *found] if system else found
    message = _message(value)
    return [message] if message is not None else []


def _wrapped(value: dict[str, Any], depth: int) -> list[Message]:
    for key in ("messages", "contents", *_ASKED):
        if (inner := value.get(key)) is not None and (found := _prompt(inner, depth + 1)):
            return found
    return []


def _system(value: dict[str, Any]) -> str:
    """Instructions that stand beside the messages instead of among them."""
    config = value.get("config")
    places = [value.get(key) for key in ("system", "instructions", "system_instruction")]
    places.append(config.get("system_instruction") if isinstance(config, dict) else None)
    for place in places:
        if isinstance(place, str) and place:
            return place
        if isinstance(place, dict | list) and (text := _content(place)[0]):
            return text
    return ""


def _message(item: Any) -> Message | None:
    """One message of a list; None when it is none."""
    if isinstance(item, list) and len(item) == 2 and all(isinstance(one, str) for one in item):
        item = {"role": item[0], "content": item[1]}  # LangGraph's short form
    if not isinstance(item, dict):
        return None
    if isinstance(item.get("kwargs"), dict) and item.get("lc"):  # a serialised LangChain message
        item = {"type": _class_of(item.get("id")), **item["kwargs"]}
    kind = item.get("type")
    if kind in _CALLS and "role" not in item:
        return {"role": "assistant", "content": "", "tool_calls": [_call(item)]}
    if kind in _RESULTS and "role" not in item:
        return {"role": "tool", "content": _text(_result(item))}
    named = item.get("role") or kind
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        return None
    body = item.get("content", item.get("parts", item.get("text")))
    content, reasoning, calls = _content(body)
    if role == "user" and isinstance(body, list) and body and all(_is_result(part) for part in body):
        role = "tool"  # some providers send results in the user's name
    extra = item.get("additional_kwargs")
    holders = (item, extra if isinstance(extra, dict) else {})
    # LangChain keeps what the provider sent beside its own form, so a call may stand in three places.
    calls = _together(*[[_call(call) for call in _dicts(one.get("tool_calls"))] for one in holders], calls)
    reasoning = reasoning or _string(item.get("reasoning_content")) or _string(item.get("reasoning"))
    message: Message = {"role": role, "content": content}
    if isinstance(item.get("name"), str) and item["name"]:
        message["name"] = item["name"]
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _class_of(path: Any) -> str | None:
    """`human` of `["langchain_core", "messages", "HumanMessageChunk"]`: LangChain.js tells the role only there."""
    if not isinstance(path, list) or not path or not isinstance(path[-1], str):
        return None
    return path[-1].removesuffix("Chunk").removesuffix("Message").casefold()


def _content(value: Any) -> tuple[str, str, list[dict[str, Any]]]:
    """Text, reasoning and tool calls of a message's content."""
    if value is None:
        return "", "", []
    if isinstance(value, str):
        return value, "", []
    if isinstance(value, dict) and isinstance(value.get("parts"), list):
        value = value["parts"]
    parts = value if isinstance(value, list) else [value]
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in parts:
        _part(part, texts, reasoning, calls)
    return "\n".join(texts), "\n".join(reasoning), calls


def _part(part: Any, texts: list[str], reasoning: list[str], calls: list[dict[str, Any]]) -> None:
    if not isinstance(part, dict):
        texts.append(_text(part))
        return
    kind = part.get("type")
    text = part.get("text", part.get("content"))
    if isinstance(part.get("function_call"), dict):  # Gemini's parts have no type
        calls.append(_call(part["function_call"]))
    elif isinstance(part.get("function_response"), dict):
        texts.append(_text(part["function_response"].get("response")))
    elif kind in _CALLS or "toolCallId" in part:
        calls.append(_call(part))
    elif kind in _RESULTS:
        texts.append(_text(_result(part)))
    elif kind in ("reasoning", "thinking", "thought"):
        reasoning.append(_text(part.get("thinking", text)))
    elif isinstance(text, str):
        texts.append(text)
    elif kind in ("text", "raw_text", "template", "output_text", "input_text", "refusal"):
        # TensorZero keeps a templated message as the template's arguments.
        templated = part.get("arguments") if text is None else text
        texts.append(_text(part.get("refusal", part.get("value", templated))))
    elif kind is None or kind == "function":
        texts.append(_text(part))
    else:
        texts.append(f"<{kind}>" if isinstance(kind, str) else _text(part))


def _call(part: dict[str, Any]) -> dict[str, Any]:
    """A tool call in OpenAI's form."""
    function = part.get("function")
    source = function if isinstance(function, dict) else part
    # `raw_…` is what the model wrote where it named no known tool or wrote no valid arguments (TensorZero).
    name = source.get("name") or source.get("toolName") or source.get("raw_name")
    places = ("arguments", "input", "args", "server_tool_call", "raw_arguments")
    arguments: Any = next((source[key] for key in places if source.get(key) is not None), {})
    called: dict[str, Any] = {
        "type": "function",
        "function": {"name": _text(name), "arguments": _text(arguments)},
    }
    found = part.get("call_id") or part.get("id") or part.get("toolCallId")
    return {"id": found, **called} if isinstance(found, str) else called


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and (part.get("type") in _RESULTS or "function_response" in part)


def _result(part: dict[str, Any]) -> Any:
    return next((part[key] for key in ("response", "output", "content", "result") if key in part), "")


def _reply(value: Any, depth: int) -> Message | None:
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, str):
        return {"role": "assistant", "content": value}
    if isinstance(value, list):
        return _reply_in_list(value, depth)
    if not isinstance(value, dict):
        return None
    message = _message(value)
    if message is not None and message["role"] == "assistant":
        return message
    for key in ("choices", "generations", "candidates", "messages"):
        if isinstance(value.get(key), list) and value[key]:
            inner = value[key] if key == "messages" else value[key][0]
            if (found := _reply(inner, depth + 1)) is not None:
                return found
    for key in ("message", "content", *_ANSWERED):
        if (inner := value.get(key)) is not None and not isinstance(inner, bool | int | float):
            found = _reply(inner, depth + 1)
            if found is not None:
                return found
    return None


def _reply_in_list(value: list[Any], depth: int) -> Message | None:
    """The last message of the assistant in a conversation, or the one message that parts make up."""
    messages = [message for item in value if (message := _message(item)) is not None]
    if messages:
        last = [message for message in messages if message["role"] == "assistant"]
        return last[-1] if last else None
    if value and all(isinstance(item, list) for item in value):
        return _reply(value[0], depth + 1)
    for item in value:  # LangChain's generations, whose text lacks the tool calls of their message
        if isinstance(item, dict) and isinstance(item.get("message"), dict):
            return _reply(item["message"], depth + 1)
    if any(
        isinstance(item, dict) and ({"type", "text", "toolCallId", "parts"} & item.keys()) for item in value
    ):
        content, reasoning, calls = _content(value)
        made: Message = {"role": "assistant", "content": content}
        made |= {"reasoning": reasoning} if reasoning else {}
        return made | ({"tool_calls": calls} if calls else {})
    return _reply(value[0], depth + 1) if len(value) == 1 else None


def _together(*groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of all groups, but those that an earlier group has: of the same id, or equal."""
    found: list[dict[str, Any]] = []
    for group in groups:
        ids, known = {call["id"] for call in found if "id" in call}, list(found)
        found += [call for call in group if call.get("id") not in ids and call not in known]
    return found


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _text(value: Any) -> str:
    """Text as it is; anything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
