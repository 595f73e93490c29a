"""A logged prompt as the tokens that are to be answered, by the rules that all updates render chats by.

Where token ids were logged they are taken as they are; elsewhere the chat template renders messages, tools, tool calls
and results. A prompt that is too long loses its oldest turns (`training.turns`). What differs from what was served is
noted, as in `training.rendering`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from training.chat_template import LOST_REASONING, Template, Unrenderable, in_its_words
from training.logged_tokens import Logged
from training.rendered import TOO_LONG, NotRendered, Rendered
from training.rendering import OTHER_PROMPT, UNKNOWN_IDS, RenderSettings
from training.turns import Cut, Message, cuts

_ANSWER: Message = {"role": "assistant", "content": "…"}
"""A reply to see with it what the template leaves out: many show no chat that ends with a question alone."""


def attempt_prompt(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    settings: RenderSettings,
    tools: Sequence[Mapping[str, Any]] | None = None,
    logged_ids: Sequence[int] | None = None,
) -> tuple[Rendered, list[dict[str, Any]]] | NotRendered:
    """A prompt as tokens, with the messages that are left of it, or why there are none.

    Ids that were logged stand for the whole prompt even where the template cannot show it: they were served.

    Args:
        tokenizer: the base model's, with its chat template.
        messages: of the event format.
        settings: `max_tokens` is that of the prompt alone; `reasoning` is not read.
        tools: schemas of the tools that were on offer.
        logged_ids: the tokens that the model read, where they were logged.

    Returns:
        Tokens without a completion, and the messages that they show.

    Raises:
        TrainingError: the tokenizer has no chat template.
    """
    template = Template(tokenizer, tools, settings.template_options)
    logged, notes = _usable(tokenizer, logged_ids, settings)
    fits = logged is not None and len(logged) <= settings.max_tokens
    try:
        shown, _, lacking = in_its_words(template, messages, [_ANSWER])
        ways = cuts(shown)
        whole = _tokens(template, ways[0])
        notes |= lacking[0] | ({OTHER_PROMPT} if logged is not None and logged != whole else set())
        if logged is not None and fits:
            return _made(logged, ways[0], notes), [dict(m) for m in messages]
        number, ids = _shortest_cut(template, ways, logged or whole, settings)
    except Unrenderable as problem:
        if logged is not None and fits:
            return _made(logged, Cut([], 0), notes | {problem.reason, OTHER_PROMPT}), [
                dict(m) for m in messages
            ]
        return NotRendered(problem.reason)
    if ids is None:
        return NotRendered(TOO_LONG)
    left = [dict(m) for m in cuts(messages)[number].messages]
    return _made(ids, ways[number], notes - {OTHER_PROMPT}), left


def _usable(
    tokenizer: Any, logged_ids: Sequence[int] | None, settings: RenderSettings
) -> tuple[list[int] | None, set[str]]:
    """The logged ids, where they are to be used and can be this tokenizer's."""
    if not logged_ids or not settings.use_logged_tokens:
        return None, set()
    if not Logged(logged_ids, ()).known_to(tokenizer):
        return None, {UNKNOWN_IDS}
    return list(logged_ids), set()


def _shortest_cut(
    template: Template, ways: Sequence[Cut], whole: Sequence[int], settings: RenderSettings
) -> tuple[int, list[int] | None]:
    """The way that leaves out least of what fits, and its tokens; None where nothing fits."""
    if len(whole) <= settings.max_tokens:
        return 0, list(whole)
    made: dict[int, list[int]] = {}

    def fits(number: int) -> bool:
        made[number] = _tokens(template, ways[number])
        return len(made[number]) <= settings.max_tokens

    last = len(ways) if settings.overlong == "cut" else 1
    number = 1 + bisect_left(range(1, last), True, key=fits)
    return number, made[number] if number < last else None


def _tokens(template: Template, way: Cut) -> list[int]:
    """The prompt, its end opening the assistant's turn."""
    text = template.text(way.messages, ask=True)
    return list(template.tokenizer(text, add_special_tokens=False)["input_ids"])


def _made(ids: list[int], way: Cut, notes: set[str]) -> Rendered:
    differs = bool(notes & {UNKNOWN_IDS, OTHER_PROMPT, LOST_REASONING})
    return Rendered(ids, [], [], way.turns, differs, notes=tuple(sorted(notes)))
