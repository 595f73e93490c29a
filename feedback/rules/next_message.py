"""What the user wrote next: thanks, a complaint, or the same question again, as one unpaired row.

Only what can be read from the words alone: a message that asks the same again says that the reply did not answer;
one that opens with thanks or with a complaint says so. Everything else says nothing and makes no row. Reward models
do not take the weight as it stands: they learn what such messages mean here from the replies that also got an
explicit verdict (`[reward.labels.implicit]`).

`{"kind": "next_message", "value": {"text": "No, I meant the one for dessert."}}` is a complaint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from feedback.groups import Group
from feedback.rules import Proposal, Skip, labelled

KINDS = frozenset({"next_message"})

_WORD = re.compile(r"\w+")
_THANKS = re.compile(
    r"^\W*(?:(?:great|ok(?:ay)?|perfect|super|ah|oh)\W+)?"
    r"(?:thank(?:s| you)|thx|perfect\b|exactly\b|that (?:worked|helps|helped)|it works\b"
    r"|danke|perfekt\b|genau\b|merci|parfait|gracias|perfecto|grazie|perfetto|obrigad[oa]|bedankt|dank je)",
    re.IGNORECASE,
)
_NOT = r"(?: not|n['\u2019`]?t| no)"
_COMPLAINT = re.compile(
    r"^\W*(?:(?:u+m+|huh|wait|sorry|hm+|but)\W+)?(?:"
    rf"wrong\b|(?:that|it|this)(?:['\u2019]?s| is| was)(?: not|n['\u2019]?t| wrong| incorrect| false)"
    rf"|(?:(?:that|it|this) )?(?:does|did|do){_NOT} (?:really )?(?:work|help|answer)"
    rf"|(?:(?:that|it|this|you) )?(?:(?:does|did|do|are|is){_NOT} mak(?:e|ing) (?:any )?|makes? no )sense"
    rf"|you(?:['\u2019]?re| are) (?:wrong|not\b|off)|you (?:have|did){_NOT} (?:really )?(?:answer|understand|listen)"
    r"|i (?:said|meant|asked)\b|not what i\b"
    r"|what (?:do you|are you|did you) (?:mean|talk|say|try)\w*|what\W*$|huh\W*$"
    r"|falsch\b|das (?:ist|war) (?:nicht|falsch)|ich (?:meinte|sagte)\b|was meinst du|faux\b|ce n['\u2019]est pas"
    r"|incorrecto|eso no|sbagliato|errado|fout\b)",
    re.IGNORECASE,
)
_NO = re.compile(r"^\W*(?:no(?! problem| worries)|nope|nein|non|nee)\b", re.IGNORECASE)
"""A complaint too, unless the reply had asked something that can be answered with no."""


class Config(BaseModel):
    """How next messages are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    weight: float = Field(default=0.3, ge=0)
    """Weight of a message that says something."""
    same_question: float = Field(default=0.6, gt=0, le=1)
    """Share of words, of those in either message, from which on two messages ask the same (Jaccard index)."""


def propose(group: Group, config: Config) -> Iterator[Proposal | Skip]:
    """One row per reply and person whose next message says something about it."""
    said = []
    for signal in group.of_kind("next_message"):
        reply = group.replies[signal.reply_id]
        asked = next((m["content"] for m in reversed(reply.prompt) if m["role"] == "user"), "")
        value = reads(signal.value["text"], asked, reply.text, config.same_question)
        if value:
            said.append((signal, value))
        else:
            yield Skip(signal, "says_nothing")
    yield from labelled(said, group, config.weight)


def reads(text: str, asked: str, replied: str, same_question: float) -> int:
    """+1 for thanks, -1 for a complaint or the same question again, 0 for everything else.

    Args:
        text: what was written next.
        asked: the message that had been answered.
        replied: the answer.
        same_question: as of `Config`.
    """
    words, before = (set(_WORD.findall(each.casefold())) for each in (text, asked))
    if _COMPLAINT.search(text) or ("?" not in replied and _NO.search(text)):
        return -1
    if words and len(words & before) >= same_question * len(words | before):
        return -1
    return 1 if _THANKS.search(text) else 0
