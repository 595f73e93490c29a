"""The patterns of personal data, and the checks that a match must pass: checksums, issuers, what stands before it.

A pattern finds candidates and a check decides, because what makes a card number or a telephone number cannot be
said in a pattern. Every repetition is bounded, or is over one class of characters that nothing after it can take
back, so that no text makes a search slow.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

Span = tuple[int, int]
Check = Callable[[re.Match[str]], Span | None]


class Rule(NamedTuple):
    """One pattern.

    Attributes:
        label: What stands in the placeholder.
        pattern: Finds candidates.
        check: The span to replace, or None where the candidate is something else.
    """

    label: str
    pattern: re.Pattern[str]
    check: Check


def may_have_key(text: str) -> bool:
    """Whether the beginning of a key is in a text; spelt out because a loop costs more than the searches."""
    return (
        "sk-" in text or "AKIA" in text or "ASIA" in text or "AIza" in text or "eyJ" in text or "xox" in text
        or "xapp-" in text or "ya29." in text or "glpat-" in text or "pypi-" in text or "earer " in text
        or "PRIVATE KEY" in text
        or ("_" in text and (
            "_live_" in text or "_test_" in text or "ghp_" in text or "gho_" in text or "ghu_" in text
            or "ghs_" in text or "ghr_" in text or "github_pat_" in text or "hf_" in text or "npm_" in text
        ))
    )  # fmt: skip


_SEVEN_DIGITS = re.compile(r"[0-9](?:[ ().\-/]{0,2}[0-9]){6}")
_FOUR_NUMBERS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


def may_have_number(text: str) -> bool:
    """Whether seven digits stand together, or four numbers as in an address: no rule below finds less."""
    return bool(_SEVEN_DIGITS.search(text) or (text.count(".") > 2 and _FOUR_NUMBERS.search(text)))


_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,60}PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9])(?P<it>"
    r"sk-[\w\-]{20,}"
    r"|[rsp]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{22,}|glpat-[\w\-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|xox[abeoprs]-[A-Za-z0-9\-]{10,}|xapp-[A-Za-z0-9\-]{10,}"
    r"|AIza[\w\-]{35}|ya29\.[\w\-]{20,}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}|pypi-[\w\-]{50,}"
    r"|(?<![\w\-])eyJ[\w\-]{8,}\.eyJ[\w\-]{8,}\.[\w\-]{8,})"
    r"|\b[Bb]earer {1,4}(?P<bearer>[\w\-.~+/]{20,}={0,2})",
    re.DOTALL | re.ASCII,
)
_EMAIL = re.compile(r"(?<![A-Za-z0-9_])[^\W_][\w.+\-]{0,63}@(?:[\w\-]{1,63}\.){1,8}[^\W\d_]{2,24}")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])")
_CARD = re.compile(
    r"(?<![\d.])(?:[2-6]\d{3}(?:[ \-]?\d{4}){2}(?:[ \-]?\d{1,4}){1,2}"
    r"|3[04-9]\d{2}[ \-]?\d{6}[ \-]?\d{4,5})(?!\d)",
    re.ASCII,
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = re.compile(rf"(?<![\w.])(?<![A-Za-z]/){_OCTET}(?:\.{_OCTET}){{3}}(?!\w|\.\d)", re.ASCII)
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4})?:(?:[0-9A-Fa-f]{0,4}:){1,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_INTERNATIONAL = re.compile(
    r"(?<!\w)(?:\+|00(?=[1-9]\d{0,2}[ \-/(]))[1-9](?:[ ().\-/]{0,2}\d){6,14}(?!\d)", re.ASCII
)
_NORTH_AMERICAN = re.compile(
    r"(?<![\w+.\-])(?:1[ .\-])?(?:\([2-9]\d{2}\)[ .\-]?|[2-9]\d{2}[.\-])[2-9]\d{2}[ .\-]\d{4}(?!\w|[.\-]\d)",
    re.ASCII,
)
_LEADING_ZERO = re.compile(r"(?<![\w.+\-/:])\(?0[1-9](?:[ ()/\-.]{0,2}\d){7,10}(?!\d)", re.ASCII)
_AFTER_A_WORD = re.compile(
    r"\b(?:phone|tel|telephone|mobile|cell|fax|whatsapp|sms|call|text|dial|reach)\b[^\w\n+]{0,4}"
    r"(?:(?:me|us|him|her|them|is|at|on|no|number|phone)\b[^\w\n+]{0,3}){0,3}"
    r"(?P<it>(?:(?<=\()|\(?)\d(?:[ ().\-/]{0,2}\d){6,14})(?!\d)",
    re.ASCII | re.IGNORECASE,
)
_DATE = re.compile(
    r"\D{0,1}(?:(?:19|20)\d\d[\-/. ]\d{1,2}[\-/. ]\d{1,2}|\d{1,2}[\-/. ]\d{1,2}[\-/. ](?:19|20)\d\d)(?!\d)"
)
_VERSION_BEFORE = re.compile(r"(?:version|ver\.?|release|build|section|chapter|§|[=<>~]=)\s?$", re.IGNORECASE)
_BOOK_NUMBER_BEFORE = re.compile(r"isbn(?:-?1[03])?:?\s?$", re.IGNORECASE)
_IBAN_CHARS = {
    country: size
    for size, countries in (
        (15, "NO"), (16, "BE"), (18, "DK FI NL"), (19, "SI"), (20, "AT EE KZ LT LU"), (21, "CH HR LV"),
        (22, "BG DE GB IE RS"), (23, "AE IL"), (24, "CZ ES MD PK RO SA SE SK"), (25, "PT"), (26, "IS TR"),
        (27, "FR GR IT MC SM"), (28, "AL AZ CY HU LB PL"), (29, "BR UA"), (31, "MT"),
    )
    for country in countries.split()
}  # fmt: skip
"""Length of a country's account numbers (SWIFT IBAN registry)."""
_COUNTED = frozenset({"0123456789", "01234567890"})


def _whole(match: re.Match[str]) -> Span:
    return match.span()


def _key(match: re.Match[str]) -> Span | None:
    group = match.lastgroup
    if group is None:  # a private key
        return match.span()
    # Words joined by hyphens have no digit; keys that long always do.
    return match.span(group) if any(c.isdigit() for c in match[group]) else None


def _email(match: re.Match[str]) -> Span | None:
    end = match.end()
    # git@host:owner/repository is an address of code, not of a person.
    return None if match[0].startswith("git@") and match.string[end : end + 1] == ":" else match.span()


def _shortened(match: re.Match[str], valid: Callable[[str], bool]) -> Span | None:
    """The match, or what is left of it without its last groups, whichever is valid first."""
    text = match[0]
    while text:
        if valid(re.sub(r"[ \-]", "", text)):
            return match.start(), match.start() + len(text)
        cut = max(text.rfind(" "), text.rfind("-"))
        text = text[: max(cut, 0)]
    return None


def _iban(match: re.Match[str]) -> Span | None:
    size = _IBAN_CHARS.get(match[0][:2], 0)
    return _shortened(match, lambda code: len(code) == size and _mod97(code) == 1) if size else None


def _mod97(code: str) -> int:
    return int("".join(str(int(c, 36)) for c in code[4:] + code[:4])) % 97


def _card(match: re.Match[str]) -> Span | None:
    return _shortened(match, lambda digits: _issued(digits) and _luhn(digits))


def _issued(digits: str) -> bool:
    """Whether an issuer has numbers that begin like this and are this long (ISO/IEC 7812 ranges in use)."""
    size, two, four = len(digits), int(digits[:2]), int(digits[:4] or 0)
    if size < 13:
        return False
    return (
        (digits[0] == "4" and size in (13, 16, 19))
        or ((51 <= two <= 55 or 2221 <= four <= 2720) and size == 16)
        or (two in (34, 37) and size == 15)
        or (two in (30, 36, 38, 39) and size == 14)
        or ((four == 6011 or 3528 <= four <= 3589 or two in (62, 64, 65)) and 16 <= size <= 19)
        or (two in (50, 56, 57, 58, 63, 67) and 13 <= size <= 19)
    )


def _luhn(digits: str) -> bool:
    """Luhn's formula: every second digit from the right doubled, digits summed, divisible by ten."""
    doubled = (sum(divmod(2 * int(c), 10)) for c in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _ipv4(match: re.Match[str]) -> Span | None:
    address = ipaddress.IPv4Address(".".join(str(int(part)) for part in match[0].split(".")))
    harmless = address.is_loopback or address.is_unspecified or match[0].startswith(("255.", "0."))
    before = match.string[max(0, match.start() - 12) : match.start()]
    return None if harmless or _VERSION_BEFORE.search(before) else match.span()


def _ipv6(match: re.Match[str]) -> Span | None:
    text = match[0]
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:  # a time, a MAC address
        return None
    groups = sum(1 for part in text.split(":") if part)
    # Two names joined by colons are code, `fade::add`, and so are two numbers, `rows[2::2]`.
    told = (
        groups >= 3
        or re.match(r"2[0-9A-Fa-f]{3}:", text) is not None
        or text[:2].lower() in ("fe", "fd", "fc")
    )
    return None if address.is_loopback or address.is_unspecified or not told else match.span()


def _international(match: re.Match[str]) -> Span | None:
    text = match[0]
    number = re.sub(r"\D", "", text).removeprefix("00")
    if number[0] == "1":  # North America: area code and exchange begin with 2 to 9, ten digits follow the 1
        if len(number) < 11 or number[1] in "01" or number[4] in "01":
            return None
        return match.start(), match.start() + _after_digits(text, 11 + 2 * text.startswith("00"))
    grouped = re.search(r"\d\D+\d", text) is not None
    plausible = (8 if grouped else 10) <= len(number) and not number.endswith("000000")
    return match.span() if plausible else None


def _after_digits(text: str, count: int) -> int:
    """Where the count-th digit of a text ends."""
    places = [at for at, c in enumerate(text) if c.isdigit()]
    return places[count - 1] + 1


def _leading_zero(match: re.Match[str]) -> Span | None:
    text = match[0]
    digits = re.sub(r"\D", "", text)
    pairs = re.split(r"[ .]", text)
    if text in _COUNTED or _DATE.match(text) or not 9 <= len(digits) <= 12:
        return None
    if _BOOK_NUMBER_BEFORE.search(match.string[max(0, match.start() - 10) : match.start()]):
        return None
    if len(pairs) > 2 and all(len(part) == 4 and part[0] == "0" for part in pairs):
        return None  # file modes, `0755 0644 0600`
    if len(pairs) > 3 and all(len(pair) == 2 for pair in pairs):
        # Five pairs are a French number; bytes and dates are more or fewer, or all small.
        return match.span() if len(pairs) == 5 and any(pair[0] != "0" for pair in pairs) else None
    if "." in text or (text.isdigit() and len(digits) not in (10, 11)):
        return None
    return match.span()


def _after_a_word(match: re.Match[str]) -> Span | None:
    text = match["it"]
    years = all(re.fullmatch(r"(?:19|20)\d\d", part) for part in text.split())
    amount = re.sub(r"\D", "", text).endswith("00000") or re.fullmatch(r"\d{1,2}\.\d{5,}", text)
    return None if years or amount or _DATE.match(text) else match.span("it")


RULES: Mapping[str, tuple[Rule, ...]] = {
    "key": (Rule("KEY", _KEY, _key),),
    "email": (Rule("EMAIL", _EMAIL, _email),),
    "iban": (Rule("IBAN", _IBAN, _iban),),
    "card": (Rule("CARD", _CARD, _card),),
    "ip": (Rule("IP", _IPV4, _ipv4), Rule("IP", _IPV6, _ipv6)),
    "phone": (
        Rule("PHONE", _INTERNATIONAL, _international),
        Rule("PHONE", _NORTH_AMERICAN, _whole),
        Rule("PHONE", _LEADING_ZERO, _leading_zero),
        Rule("PHONE", _AFTER_A_WORD, _after_a_word),
    ),
}
"""The rules of each sort."""
