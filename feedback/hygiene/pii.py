"""Personal data and secrets in text, replaced by placeholders that say of which sort they were.

    "mail jo@example.org or call +44 20 7946 0958"  ->  "mail <EMAIL> or call <PHONE>", {"EMAIL": 1, "PHONE": 1}

Rules and not a model by default: the same text gives the same result everywhere, in time proportional to its
length whatever it holds (no pattern can backtrack without bound). Most text has nothing that a rule could find and
costs only a scan for the characters that all of them need. Names and addresses have no form that rules could
recognise; `engine = "presidio"` looks for them too, where that package is installed.

What is found: e-mail addresses; telephone numbers in international form, in the common national forms with
separators, and bare numbers after words like "call"; payment cards (issuer, length, Luhn check); IPv4 and IPv6
addresses except loopback and netmasks; keys with a known prefix, JSON web tokens, bearer tokens and private keys;
IBANs (checksum). Dates, years, versions and plain numbers stay.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from feedback.hygiene.pii_rules import RULES, Rule, may_have_key, may_have_number

Kind = Literal["key", "email", "iban", "card", "ip", "phone"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Every sort, in the order in which they are looked for: a key may contain what looks like a number."""


class PiiConfig(BaseModel):
    """What is replaced in the text that is trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    enabled: bool = True
    """False leaves text as users wrote it."""
    kinds: tuple[Kind, ...] = KINDS
    """What to look for."""
    engine: Literal["rules", "presidio"] = "rules"
    """`presidio` looks for names, places and more as well; needs presidio-analyzer and its language model."""
    language: str = "en"
    """Language that presidio reads; rules need none."""

    @model_validator(mode="after")
    def _engine_is_there(self) -> Self:
        if (
            self.enabled
            and self.engine == "presidio"
            and importlib.util.find_spec("presidio_analyzer") is None
        ):
            raise ValueError("engine = 'presidio' needs a package: pip install presidio-analyzer")
        return self


_PLACEHOLDER_BEFORE = re.compile(r"<[A-Z_]{2,24}>$")
_PLACEHOLDER_AFTER = re.compile(r"<[A-Z_]{2,24}>")


def scrub(text: str, config: PiiConfig) -> tuple[str, Counter[str]]:
    """Replaces what the rules find.

    Args:
        text: as a user or a model wrote it.
        config: what to look for.

    Returns:
        The text with placeholders like `<EMAIL>`, and how many of each sort were put in (`{"EMAIL": 1}`). With
        rules alone `scrub(scrub(x)) == scrub(x)`; placeholders that were in the text are not counted.

    Raises:
        HygieneError: presidio is asked for and cannot be loaded.
    """
    found: Counter[str] = Counter()
    if not config.enabled:
        return text, found
    if config.engine == "presidio":
        from feedback.hygiene.pii_presidio import scrub_entities

        text = scrub_entities(text, config.language, found)
    likely = _likely(text)
    rules = [rule for kind in config.kinds if kind in likely for rule in RULES[kind]]
    while rules:
        before = found.total()
        for rule in rules:
            text = rule.pattern.sub(_replacing(rule, found), text)
        # Again after a replacement, so that the result is one that nothing is found in.
        if found.total() == before:
            break
    return text, found


def _likely(text: str) -> list[Kind]:
    """The sorts that could be in a text at all; most texts have nothing that any rule could start from."""
    likely: list[Kind] = []
    if may_have_key(text):
        likely.append("key")
    if "@" in text:
        likely.append("email")
    if may_have_number(text):
        likely += ["iban", "card", "ip", "phone"]
    elif text.count(":") > 1:
        likely.append("ip")
    return likely


def _replacing(rule: Rule, found: Counter[str]) -> Callable[[re.Match[str]], str]:
    def replace(match: re.Match[str]) -> str:
        whole = match[0]
        span = rule.check(match)
        # What touches a placeholder was judged when the text beside it was still there: it stays as judged.
        if span is None or _touches_placeholder(match.string, *span):
            return whole
        found[rule.label] += 1
        start, end = span[0] - match.start(), span[1] - match.start()
        return f"{whole[:start]}<{rule.label}>{whole[end:]}"

    return replace


def _touches_placeholder(text: str, start: int, end: int) -> bool:
    before = text[start - 1 : start] == ">" and _PLACEHOLDER_BEFORE.search(text[max(0, start - 26) : start])
    return bool(before or (text[end : end + 1] == "<" and _PLACEHOLDER_AFTER.match(text, end)))
