from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from feedback.hygiene.pii import PiiConfig, scrub
from feedback.hygiene.pii_presidio import scrub_entities

RULES = PiiConfig()
# Put together here, so that scanners of repositories do not take them for real ones.
_BODY = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC2dE3f"
TOKEN = f"eyJ{_BODY}.eyJ{_BODY}.{_BODY}"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("mail jo.doe+x@mail.example.co.uk now", "mail <EMAIL> now"),
        ("Jo <jo@example.org>, -ann@example.com", "Jo <<EMAIL>>, -<EMAIL>"),
        ("grüße an jürgen@bücher.example.", "grüße an <EMAIL>."),
        ("call +44 20 7946 0958 today", "call <PHONE> today"),
        ("+1 (415) 555-2671 is mine", "<PHONE> is mine"),
        ("+14155552671", "<PHONE>"),
        ("(415) 555-2671 or 415-555-2671 or 415.555.2671", "<PHONE> or <PHONE> or <PHONE>"),
        ("0049 30 1234567", "<PHONE>"),
        ("030/12345678, 0171 1234567, 07700 900123", "<PHONE>, <PHONE>, <PHONE>"),
        ("01 42 68 53 00 et 01.42.68.53.00", "<PHONE> et <PHONE>"),
        ("call me at 5551234567 please", "call me at <PHONE> please"),
        ("my phone number is 555-1234.", "my phone number is <PHONE>."),
        ("card 4111 1111 1111 1111 12 times", "card <CARD> 12 times"),
        ("5500005555555559 and 3782-822463-10005", "<CARD> and <CARD>"),
        ("from 203.0.113.7:8080, [2001:db8::1]", "from <IP>:8080, [<IP>]"),
        ("2001:0db8:85a3:0000:0000:8a2e:0370:7334", "<IP>"),
        (f"key sk-{_BODY} and ghp_{_BODY[:36]}", "key <KEY> and <KEY>"),
        (f"AKIA{'Q' * 15}7 xoxb-{_BODY} AIza{_BODY[:35]}", "<KEY> <KEY> <KEY>"),
        (f"Authorization: Bearer {_BODY}", "Authorization: Bearer <KEY>"),
        (f"token {TOKEN}.", "token <KEY>."),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nafter", "<KEY>\nafter"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE and cut off", "<KEY>"),
        ("pay DE89 3704 0044 0532 0130 00 THIS week", "pay <IBAN> THIS week"),
        ("GB29NWBK60161331926819", "<IBAN>"),
    ],
)
def test_what_is_personal_is_replaced(text: str, clean: str):
    assert scrub(text, RULES)[0] == clean


@pytest.mark.parametrize(
    "text",
    [
        "In 1999 and 2000-2001, from 2019 to 2023.",
        "2024-01-15 10:30:00 and 15.01.2024 10:30 and 01/02/2024 09:15:22",
        "01-02-2024 10:30",
        "call on 2024-01-15 at noon",
        "version 1.2.3.4, v1.2.3.4, Chrome/120.0.0.0, pip install x==1.2.3.4",
        "10.0.19041.1, 1.2.3, 3.11.4",
        "127.0.0.1 and 0.0.0.0 with mask 255.255.255.0 and ::1",
        "std::vector, fade::add, 12:30:45, aa:bb:cc:dd:ee:ff",
        "550e8400-e29b-41d4-a716-446655440000",
        "order 702-1234567-1234567, order number 1234567890, ISBN 0306406152",
        "1700000000000 ms, 1234567890 s, 4111111111111112 is no card",
        "2 500 000 000 people, +100 000 000, +50 000 000 users, 3.14159265358979",
        "digits 0123456789 and bytes 01 02 03 04 05 06 07",
        "sk-learn-and-other-packages-with-long-names, task-management",
        "git@host.example:owner/repo.git and @mention and lodash@4.17.21 and a @ b",
        "bearer of bad news and other long words",
        "sizes 250 500 1000, 3 eggs, 12 spoons, 400 g",
    ],
)
def test_what_only_looks_like_it_stays(text: str):
    assert scrub(text, RULES) == (text, Counter())


def test_it_counts_by_sort_and_takes_only_the_sorts_asked_for():
    text = "a@b.org, c@d.org, +14155552671"
    assert scrub(text, RULES)[1] == {"EMAIL": 2, "PHONE": 1}
    assert scrub(text, PiiConfig(kinds=("phone",))) == ("a@b.org, c@d.org, <PHONE>", Counter(PHONE=1))
    assert scrub(text, PiiConfig(enabled=False)) == (text, Counter())


_PIECES = st.sampled_from(
    [
        "a@b.org", "+14155552671", "+44 20 7946 0958", "4111 1111 1111 1111", "203.0.113.7", "2001:db8::1:2",
        "0171 1234567", "GB29NWBK60161331926819", f"sk-{_BODY}", f"Bearer {_BODY}", "01 42 68 53 00",
        "call me at ", "isbn ", "<EMAIL>", "<", ">", ".", "-", "+", " ", ",", "1", "0", "x", "@", ":", "/", "(",
        ")", "-----BEGIN PRIVATE KEY-----",
    ]
)  # fmt: skip


@given(st.lists(_PIECES | st.text(max_size=4), max_size=14).map("".join))
@settings(derandomize=True, deadline=None, max_examples=300, database=None)
def test_scrubbing_twice_is_scrubbing_once(text: str):
    once, _ = scrub(text, RULES)
    assert scrub(once, RULES) == (once, Counter())


@pytest.mark.parametrize(
    "piece",
    ["a", "a.", "a@", "1", "1 ", "1.", "+1", "+1415", "4111 ", ":", "1:", "0 ", "sk-", "eyJ", "eyJa.", "Bearer ",
     "@a.", "-----BEGIN PRIVATE KEY-----", "call ", "call me at 1", "AB12 ", "GB29NWBK6016 ", "a@b.org+14155552671",
     "(0", "01.", "+14155552671", "call call 1"],
)  # fmt: skip
def test_long_text_of_anything_is_read_in_linear_time(piece: str):
    text = piece * (300_000 // len(piece)) + "@ 1234567 ::"
    started = time.process_time()
    scrub(text, RULES)
    assert time.process_time() - started < 1.0  # a quadratic pattern takes minutes


def test_presidio_is_refused_where_it_is_absent():

    with pytest.raises(ValidationError, match="pip install presidio-analyzer"):
        PiiConfig(engine="presidio")
    with pytest.raises(RuntimeError, match="pip install presidio-analyzer"):
        scrub_entities("Ann", "en", Counter())


@pytest.mark.parametrize(
    "text",
    [
        "rows[2::2] and xs[2::3]",
        "Call 2000000 times",
        "text is 3.14159265",
        "call 2015 2016 2017",
        "chmod with 0755 0644 0600",
    ],
)
def test_code_and_numbers_stay(text: str) -> None:
    assert scrub(text, PiiConfig()) == (text, Counter())


def test_half_a_token_again_and_again_takes_linear_time() -> None:
    started = time.process_time()
    scrub("-eyJaaaaaaaa" * 25_000, PiiConfig())
    assert time.process_time() - started < 2
