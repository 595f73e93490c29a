"""Where a conversation may be cut when it is too long: before a message of the user, the oldest part first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Message = Mapping[str, Any]


class Cut(NamedTuple):
    """A conversation without its oldest turns."""

    messages: list[Message]
    turns: int
    """How many turns are gone."""


def cuts(prompt: Sequence[Message]) -> list[Cut]:
    """All ways to shorten a prompt, beginning with none.

    System messages stay, wherever they are, and so does everything from the last message of the user on: what is to
    be answered, and the tools called for it so far. What is left begins with a message of the user, because a reply
    says little without what it answers, and many templates refuse it. A turn is a message of the user, or one of the
    assistant with the tool results that follow it; so a tool call is never parted from its result.

    Args:
        prompt: Messages with at least `role`.
    """
    asked = [place for place, message in enumerate(prompt) if message["role"] == "user"]
    found = [Cut(list(prompt), 0)]
    for place in asked:
        older = [message for message in prompt[:place] if message["role"] != "system"]
        turns = sum(message["role"] != "tool" for message in older)
        if turns:
            systems = [message for message in prompt[:place] if message["role"] == "system"]
            found.append(Cut([*systems, *prompt[place:]], turns))
    return found
