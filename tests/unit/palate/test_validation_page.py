"""The page of what was checked: whole in itself, and users' text in it is only text."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser

from palate.validation_page import render
from pipelines.quality import Arrivals, Check, Example, TableReport, Validation

AT = datetime(2026, 3, 1, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script><img src=x onerror=y>\u202e\x1b[31m{{ 7*7 }}"


class Tags(HTMLParser):
    """Names of elements and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def page(passed: bool) -> str:
    checks = (
        Check("texts_differ", "chosen and rejected differ", passed, HOSTILE, "every row", (HOSTILE,)),
        Check("margin_in_range", "a margin lies in [0, 1]", True, "holds in every row", "0 to 1"),
    )
    examples = (Example("p@3", "not_json", HOSTILE, HOSTILE),)
    arrived = Arrivals(100, 10, {"not_json": 9, HOSTILE: 1}, examples, 1.0 if passed else 0.05, 20)
    found = Validation(AT, "0123456789abcdef", arrived, (TableReport("preferences", 7, checks),))
    return render(found, title=HOSTILE, simulated=True)


def test_it_is_whole_and_harmless() -> None:
    html = page(passed=False)
    parser = Tags()
    parser.feed(html)
    assert parser.tags.isdisjoint({"script", "img", "link", "iframe", "a"})
    assert parser.attributes.isdisjoint({"src", "href", "onerror", "style"})
    assert "default-src 'none'" in html and "prefers-color-scheme: dark" in html
    assert "{{ 7*7 }}" in html and "49" not in html.split("</style>")[1].replace("0123456789", "")
    assert "\u202e" not in html and "\x1b" not in html
    assert page(passed=False) == html


def test_the_verdict_is_in_words() -> None:
    assert "Stopped before training" in page(passed=False) and "Too many arrivals" in page(passed=False)
    good = page(passed=True)
    assert "Good enough to train on" in good and "Every expectation holds" in good
    broken = TableReport("fates", 1, (Check("balance", "in = out", False, "1, 2", "as many"),))
    assert "fates: balance" in render(Validation(AT, None, None, (broken,)), title="x")
