"""Named features of a reply's text: what a linear reward model can say in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from reward_models.language import language_of

WORD = re.compile(r"\w+(?:['’]\w+)?", re.UNICODE)
PATTERNS: dict[str, re.Pattern[str]] = {
    "list_items": re.compile(r"(?m)^\s*(?:[-*•]|\d+[.)])\s+"),
    "code_blocks": re.compile(r"```|(?m:^ {4}\S)"),
    "questions": re.compile(r"\?"),
    "exclamations": re.compile(r"!"),
    "hedges": re.compile(
        r"\b(?:may|might|could|perhaps|possibly|probably|generally|usually|it depends|in general|i think)\b",
        re.I,
    ),
    "refusals": re.compile(
        r"\b(?:i can(?:no|')t|i am unable|i'm unable|as an ai|i'm sorry,? but|i apologi[sz]e)\b", re.I
    ),
    "second_person": re.compile(r"\byou(?:r|rs|'re|'ve|'ll|'d)?\b", re.I),
    "first_person": re.compile(r"\bI(?:'m|'ve|'ll|'d)?\b"),
    "contractions": re.compile(r"\b\w+['’](?:s|re|ve|ll|t|d|m)\b", re.I),
    "emoji": re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]"),
    "headings": re.compile(r"(?m)^#{1,6} |\*\*[^*]+\*\*"),
    "digits": re.compile(r"\d"),
}
NAMES = (
    "log_words",
    *PATTERNS,
    "repetition",
    "words_per_sentence",
    "ends_finished",
    "non_ascii",
    "other_language",
    "prompt_overlap",
)


def text_features(prompts: Sequence[str], replies: Sequence[str]) -> np.ndarray:
    """(B, len(NAMES)) features of B replies; counts enter as log(1 + count), lest long replies dominate.

    Args:
        prompts: last user message of each prompt.
        replies: reply texts.
    """
    return np.array([_row(p, r) for p, r in zip(prompts, replies, strict=True)], dtype=np.float64).reshape(
        len(replies), len(NAMES)
    )


def _row(prompt: str, reply: str) -> list[float]:
    words = [w.lower() for w in WORD.findall(reply)]
    grams = list(zip(words, words[1:], words[2:], strict=False))
    asked_words = [w.lower() for w in WORD.findall(prompt)]
    asked = {w for w in asked_words if len(w) > 3}
    languages = {language_of(asked_words), language_of(words)} - {None}
    sentences = max(1, len(re.findall(r"[.!?]+(?:\s|$)", reply)))
    counts = [float(np.log1p(len(p.findall(reply)))) for p in PATTERNS.values()]
    return [
        float(np.log1p(len(words))),
        *counts,
        1 - len(set(grams)) / len(grams) if grams else 0.0,
        float(np.log1p(len(words) / sentences)),
        float(reply.rstrip()[-1:] in tuple(".!?…)\"'”`")),
        float(np.log1p(sum(ord(c) > 127 for c in reply))),
        float(len(languages) == 2),  # known of both, and not the same
        len(asked & set(words)) / max(1, len(asked)),
    ]
