"""What a simulated user notices about a reply. Only the simulation reads it; no model is trained on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

WARM = re.compile(
    r"\b(glad you|happy to|sorry to hear|that sounds|great question|good question|you've got this|you can do"
    r"|i'm here|i am here|well done|proud of|take care|thank you for|thanks for|i understand|i hear you"
    r"|of course|no worries|good luck|enjoy)\b",
    re.IGNORECASE,
)
CONTRACTION = re.compile(r"\b\w+['’](s|re|ve|ll|t|d|m)\b", re.IGNORECASE)
LIST_ITEM = re.compile(r"(^|\n|\s)(\d+[.)]|[-*•])\s+\S")
WORD = re.compile(r"[A-Za-z][A-Za-z'’]*")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
STOPWORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "and",
        "or",
        "but",
        "to",
        "of",
        "in",
        "on",
        "for",
        "with",
        "my",
        "me",
        "i",
        "you",
        "your",
        "is",
        "are",
        "was",
        "be",
        "do",
        "does",
        "did",
        "can",
        "could",
        "should",
        "would",
        "what",
        "how",
        "when",
        "why",
        "which",
        "that",
        "this",
        "it",
        "at",
        "as",
        "from",
        "have",
        "has",
        "had",
        "some",
        "any",
        "after",
        "before",
        "about",
        "into",
        "not",
        "so",
    ]
)


@dataclass(frozen=True)
class Noticed:
    """Features of one reply, each roughly within [0, 1] unless said otherwise."""

    words: int
    """Length in words."""
    warmth: float
    """Warm expressions: none 0, one 0.7, two or more 1."""
    question: float
    """1 when the reply asks something back."""
    structure: float
    """1 when the reply has list items."""
    contractions: float
    """Contractions per 20 words, at most 1: an informal habit of language."""
    finished: float
    """1 when the reply ends like a finished sentence."""
    on_topic: float
    """Share of the prompt's content words that the reply takes up, doubled, at most 1."""
    repetition: float
    """Share of word 3-grams that occurred before in the reply."""


def notice(prompt: str, reply: str) -> Noticed:
    """Read one reply the way a simulated user does."""
    words = [w.lower() for w in WORD.findall(reply)]
    warm = len(WARM.findall(reply))
    grams = list(zip(words, words[1:], words[2:], strict=False))
    asked = {w.lower() for w in WORD.findall(prompt)} - STOPWORDS
    taken_up = len(asked & set(words)) / max(1, len(asked))
    return Noticed(
        words=len(words),
        warmth=(0.0, 0.7, 1.0)[min(warm, 2)],
        question=float("?" in reply),
        structure=float(bool(LIST_ITEM.search(reply))),
        contractions=min(1.0, 20 * len(CONTRACTION.findall(reply)) / max(20, len(words))),
        finished=float(reply.rstrip()[-1:] in ".!?…)\"'”"),
        on_topic=min(1.0, 2 * taken_up),
        repetition=1 - len(set(grams)) / len(grams) if grams else 0.0,
    )


def sentences(text: str) -> list[str]:
    """Split into sentences; a last one without an end mark is kept as it is."""
    return [s for s in SENTENCE_END.split(text.strip()) if s]
