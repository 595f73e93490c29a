"""Data sets of compared replies, which know prompts and replies but no interactions.

Each reply becomes an interaction whose id is the content, so that the same reply to the same prompt is one
interaction in whatever rows and files it stands, and a comparison a vote among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from feedback.chat import Message
from feedback.exports import UNDATED, content_id, without_none

_PROMPTS = ("prompt", "instruction", "question", "query", "input", "messages", "chat", "conversation", "text")
_REPLY = re.compile(
    r"(response|completion|answer|generation|output|reply|text|summary|candidate|option|model)?"
    r"[-_ ]?(\d{1,2}|[a-f]|left|right)(?:[-_ ](response|completion|answer|output|text))?",
    re.IGNORECASE,
)
_NAMES_MODELS = ("model", "")
_ALONE = ("response", "completion", "answer", "generation", "output", "reply")


def interaction(source: str, prompt: Sequence[Message], reply: Message) -> dict[str, Any]:
    """The interaction in which that reply was given to that prompt, at no known time."""
    return {
        "type": "interaction",
        "interaction_id": content_id(source, prompt, reply),
        "event_time": UNDATED,
        "prompt": list(prompt),
        "completion": reply,
        "metadata": {"source": source},
    }


def feedback(
    source: str,
    feedback_id: str,
    about: str,
    said: tuple[str, Any],
    *,
    time: str | None = None,
    user: str | None = None,
    actor: str = "rater",
    name: str | None = None,
) -> dict[str, Any]:
    """A signal about one of the replies."""
    return {
        "type": "feedback",
        "feedback_id": feedback_id,
        "interaction_id": about,
        "event_time": time or UNDATED,
        "kind": said[0],
        "value": said[1],
        "actor": actor,
        "metadata": without_none(source=source, name=name),
        **without_none(user_id=user),
    }


def vote(among: Sequence[str], winner: str | None) -> tuple[str, Any]:
    """Kind and value of a vote; winner None is a tie."""
    return "vote", {"among": list(among), "winner": winner}


def prompt_field(names: Iterable[str]) -> str | None:
    """The field that holds the prompt, by the names people give it."""
    known = {name.casefold(): name for name in names}
    return next((known[name] for name in _PROMPTS if name in known), None)


def reply_fields(names: Iterable[str]) -> list[str]:
    """The fields that hold replies, in order: `response-1`, `answer_b`, `left`, or a single `response`."""
    names = list(names)
    found = sorted((name for name in names if _REPLY.fullmatch(name)), key=lambda name: (len(name), name))
    # `model_a` beside `response_a` names who replied; fields that are called differently are never compared.
    alike: dict[tuple[str, str], list[str]] = {}
    for name in found:
        if match := _REPLY.fullmatch(name):
            key = ((match[1] or "").casefold(), (match[3] or "").casefold())
            alike.setdefault(key, []).append(name)
    several = [fields for key, fields in alike.items() if len(fields) >= 2 and key != _NAMES_MODELS]
    several += [fields for key, fields in alike.items() if len(fields) >= 2 and key == _NAMES_MODELS]
    if several:
        return several[0]
    known = {name.casefold(): name for name in names}
    alone = next((known[name] for name in _ALONE if name in known), None)
    return [alone] if alone is not None else found
