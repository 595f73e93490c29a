"""From a logged chat to the tokens that were served, or as near to them as the log allows; and how near that is.

Where token ids were logged they are taken as they are. Elsewhere the base model's chat template renders the messages,
tool calls, tool results, names and reasoning included, and the completion is what follows the longest common beginning
of the prompt alone and the whole chat, so that the end-of-turn token is trained on. Whatever differs from what was
served is counted: a template that does not know what it is given, ids that the template would not give, turns that
were cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from training import chat_template
from training.chat_template import Template, Unrenderable, in_its_words, reasoning_span
from training.errors import TrainingError
from training.logged_tokens import Logged, differ, mask_like
from training.rendered import TOO_LONG, NotRendered, RenderCounts, Rendered, counted
from training.turns import Cut, Message, cuts

__all__ = [
    "NotRendered", "RenderCounts", "RenderSettings", "Rendered", "attempt", "attempt_pair", "counted", "render",
]  # fmt: skip

EMPTY, REASONING_NOT_FOUND = "empty_completion", "reasoning_not_found"
UNKNOWN_IDS, OTHER_PROMPT, OTHER_REPLY = "logged_ids_unknown", "logged_prompt_differs", "logged_reply_differs"
_MISMATCHES = {UNKNOWN_IDS, OTHER_PROMPT, OTHER_REPLY, chat_template.LOST_REASONING}


class RenderSettings(BaseModel):
    """How logged chats become tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_tokens: int = Field(default=512, ge=16)
    """Longest prompt and reply together, in tokens."""
    overlong: Literal["cut", "leave_out"] = "cut"
    """`cut` leaves out the oldest turns of a prompt that is too long; system message and last question stay."""
    reasoning: Literal["keep", "mask", "drop"] = "keep"
    """Of a reply's reasoning: train on it, keep it as context that no loss reads, or leave it out."""
    use_logged_tokens: bool = True
    """Take token ids as they were logged instead of rendering the messages."""
    template_options: dict[str, Any] = Field(default_factory=dict)
    """Switches of the chat template that the product sets, such as { enable_thinking = false }."""


def render(
    tokenizer: Any,
    prompt: Sequence[Message],
    completion: Message | str,
    *,
    settings: RenderSettings,
    tools: Sequence[Mapping[str, Any]] | None = None,
    logged_prompt_ids: Sequence[int] | None = None,
    logged_completion_ids: Sequence[int] | None = None,
) -> Rendered | None:
    """`attempt`, with None for what cannot be trained on."""
    outcome = attempt(
        tokenizer,
        prompt,
        completion,
        settings=settings,
        tools=tools,
        logged_prompt_ids=logged_prompt_ids,
        logged_completion_ids=logged_completion_ids,
    )
    return outcome if isinstance(outcome, Rendered) else None


def attempt(
    tokenizer: Any,
    prompt: Sequence[Message],
    completion: Message | str,
    *,
    settings: RenderSettings,
    tools: Sequence[Mapping[str, Any]] | None = None,
    logged_prompt_ids: Sequence[int] | None = None,
    logged_completion_ids: Sequence[int] | None = None,
) -> Rendered | NotRendered:
    """A chat as tokens, or why there are none.

    Args:
        tokenizer: the base model's, with its chat template.
        prompt: messages of the event format: role, content, name, reasoning, tool_calls.
        completion: the reply, likewise, or its text.
        settings: see `RenderSettings`.
        tools: schemas of the tools that were on offer.
        logged_prompt_ids: the tokens that the model read, where they were logged.
        logged_completion_ids: the tokens that it wrote.

    Raises:
        TrainingError: the tokenizer has no chat template, or cannot say where reasoning stands.
    """
    given = Logged(logged_prompt_ids or None, (logged_completion_ids or None,))
    template = Template(tokenizer, tools, settings.template_options)
    outcome = _rendered(template, prompt, [completion], settings, given)
    return outcome if isinstance(outcome, NotRendered) else outcome[0]


def attempt_pair(
    tokenizer: Any,
    prompt: Sequence[Message],
    chosen: Message | str,
    rejected: Message | str,
    *,
    settings: RenderSettings,
    tools: Sequence[Mapping[str, Any]] | None = None,
    logged_prompt_ids: Sequence[int] | None = None,
    logged_chosen_ids: Sequence[int] | None = None,
    logged_rejected_ids: Sequence[int] | None = None,
) -> tuple[Rendered, Rendered] | NotRendered:
    """Two replies to one prompt as tokens: both with the same prompt, cut alike, or neither.

    Where both are rendered from messages this is what TRL's DPO trains on: both completions begin where the first of
    them parts from the prompt. For the arguments see `attempt`.
    """
    given = Logged(logged_prompt_ids or None, (logged_chosen_ids or None, logged_rejected_ids or None))
    template = Template(tokenizer, tools, settings.template_options)
    outcome = _rendered(template, prompt, [chosen, rejected], settings, given)
    if isinstance(outcome, NotRendered):
        return outcome
    shared = min(len(side.prompt_ids) for side in outcome)
    first, second = (_begun_at(side, shared) for side in outcome)
    return first, second


def _begun_at(side: Rendered, place: int) -> Rendered:
    """With the end of the prompt, from a place on, as the beginning of the completion."""
    moved = side.prompt_ids[place:]
    # The end of a prompt was never sampled: where the sampled tokens are known, no loss reads it.
    mask = [0 if side.logged else 1] * len(moved)
    return replace(
        side,
        prompt_ids=side.prompt_ids[:place],
        completion_ids=moved + side.completion_ids,
        completion_mask=mask + side.completion_mask,
    )


@dataclass(frozen=True)
class _Reply:
    message: dict[str, Any]
    """In the template's words."""
    ids: Sequence[int] | None
    """As logged, where they are to be used."""
    notes: frozenset[str]
    masked: bool
    """Whether it has reasoning that no loss reads."""


@dataclass(frozen=True)
class _Chat:
    """Replies to one prompt, all but cut and tokenised."""

    template: Template
    prompt: list[dict[str, Any]]
    prompt_ids: Sequence[int] | None
    replies: list[_Reply]


def _rendered(
    template: Template,
    prompt: Sequence[Message],
    completions: Sequence[Message | str],
    settings: RenderSettings,
    logged: Logged,
) -> list[Rendered] | NotRendered:
    """All replies with one prompt, the longest one with which every reply fits."""
    try:
        chat = _chat(template, prompt, completions, settings, logged)
        ways = cuts(chat.prompt) if settings.overlong == "cut" else [Cut(list(chat.prompt), 0)]
        made: dict[int, list[Rendered]] = {}

        def fits(number: int) -> bool:
            made[number] = [_side(chat, reply, ways[number]) for reply in chat.replies]
            return max(len(side) for side in made[number]) <= settings.max_tokens

        number = 0 if fits(0) else 1 + bisect_left(range(1, len(ways)), True, key=fits)
    except Unrenderable as problem:
        return NotRendered(problem.reason)
    if number >= len(ways):
        return NotRendered(TOO_LONG)
    return made[number] if all(side.completion_ids for side in made[number]) else NotRendered(EMPTY)


def _chat(
    template: Template,
    prompt: Sequence[Message],
    completions: Sequence[Message | str],
    settings: RenderSettings,
    logged: Logged,
) -> _Chat:
    """What is asked of the template, once it is known that it can show it.

    Raises:
        Unrenderable: it cannot.
    """
    unknown = settings.use_logged_tokens and not logged.known_to(template.tokenizer)
    if unknown or not settings.use_logged_tokens:
        logged = Logged(None, (None,) * len(completions))
    replies = [
        {"role": "assistant", "content": each} if isinstance(each, str) else dict(each)
        for each in completions
    ]
    thought = [bool((reply.get("reasoning") or "").strip()) for reply in replies]
    if settings.reasoning == "drop":
        replies = [{key: value for key, value in reply.items() if key != "reasoning"} for reply in replies]
    messages, shown, lacking = in_its_words(template, prompt, replies)
    made = []
    for reply, notes, reasoned, ids in zip(shown, lacking, thought, logged.completions, strict=True):
        # Logged tokens hold the reasoning that is to be dropped.
        kept = None if reasoned and settings.reasoning == "drop" else ids
        noted = frozenset(notes | ({UNKNOWN_IDS} if unknown else set()))
        made.append(_Reply(reply, kept, noted, reasoned and settings.reasoning == "mask"))
    return _Chat(template, messages, logged.prompt, made)


def _side(chat: _Chat, reply: _Reply, way: Cut) -> Rendered:
    """One reply after one way to cut the prompt, however long."""
    tokenizer, notes = chat.template.tokenizer, set(reply.notes)
    asked = _tokens(tokenizer, chat.template.text(way.messages, ask=True))
    whole, mask = _whole(chat.template, reply, way)
    start = _common(asked, whole)
    prompt, ids, trained = whole[:start], whole[start:], mask[start:]
    served = asked if chat.prompt_ids is None or way.turns else list(chat.prompt_ids)
    if served != asked:
        notes.add(OTHER_PROMPT)
    if reply.ids is not None:
        prompt, ids = served, list(reply.ids)
        # Where the template shows the prompt differently once a reply follows, its end belongs to what is compared.
        if differ(tokenizer, asked[start:] + ids, whole[start:]):
            notes.add(OTHER_REPLY)
        trained = mask_like(ids, whole[start:], trained) if reply.masked else [1] * len(ids)
    elif start == len(asked):
        prompt = served
    return Rendered(
        prompt,
        ids,
        trained,
        way.turns,
        bool(notes & _MISMATCHES),
        reply.ids is not None,
        tuple(sorted(notes)),
    )


def _whole(template: Template, reply: _Reply, way: Cut) -> tuple[list[int], list[int]]:
    """The tokens of prompt and reply, and 1 for each that is no reasoning to be masked."""
    messages = [*way.messages, reply.message]
    text = template.text(messages, ask=False)
    if not reply.masked or chat_template.LOST_REASONING in reply.notes:
        ids = _tokens(template.tokenizer, text)
        return ids, [1] * len(ids)
    if not template.tokenizer.is_fast:
        raise TrainingError(
            "This tokenizer cannot say where in a text its tokens stand, so reasoning cannot be masked.",
            got=type(template.tokenizer).__name__,
            next_step="use reasoning = 'keep' or 'drop'",
        )
    span = reasoning_span(template, messages, text)
    if span is None:
        raise Unrenderable(REASONING_NOT_FOUND)
    found = template.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    inside = [first < span[1] and last > span[0] for first, last in found["offset_mapping"]]
    return list(found["input_ids"]), [1 - masked for masked in inside]


def _tokens(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a rendered chat; it has its special tokens in its text."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    shorter = min(len(first), len(second))
    return next((i for i in range(shorter) if first[i] != second[i]), shorter)
