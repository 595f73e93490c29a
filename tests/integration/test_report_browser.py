"""The report in a real browser: its numbers are on the page, and nothing that users wrote runs."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evaluation.calibration import calibrate
from evaluation.case import Case
from evaluation.compare import ROWS, compare
from evaluation.gates import judge_all
from evaluation.report import render

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium (chromium or google-chrome) on the PATH")

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    "--virtual-time-budget=2000",
]
OWNED = "document.title='owned';document.documentElement.setAttribute('data-owned','1')"
HOSTILE = (
    f"<script>{OWNED}</script></style></title></main><script>{OWNED}</script>"
    f'<img src=x onerror="{OWNED}"><svg onload="{OWNED}"></svg>"><body onload="{OWNED}">'
    f'<a href="javascript:{OWNED}">x</a><iframe srcdoc="<script>parent.{OWNED}</script>"></iframe>'
    "{{ 7*7 }}{% include 'x' %}\u202eesrever\u0351\u0351\u0351\u0351\u0351\u0351"
)


def browse(page: Path, profile: Path, *more: str) -> str:
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *more, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def make_case(**first: object) -> Case:
    rng = np.random.default_rng(2)
    rows = [
        {
            "prompt_id": f"p{i}",
            "prompt": f"Question {i}?",
            "user_id": f"u{i % 5}",
            "agent": "assistant",
            "champion": f"The champion answers {i}.",
            "candidate": f"The candidate answers {i}.",
            "champion_reward": 0.0,
            "candidate_reward": float(rng.normal(0.8)),
            "champion_tokens": int(rng.integers(20, 60)),
            "candidate_tokens": int(rng.integers(20, 60)),
            "kl": 0.1,
        }
        for i in range(60)
    ]
    rows[0] |= first
    table = pa.Table.from_pylist(rows, schema=ROWS)
    comparison = compare(table, seed=1)
    title = str(first.get("prompt", "A run"))
    return Case(
        title=title,
        simulated=False,
        created=datetime(2026, 12, 2, tzinfo=UTC),
        comparison=comparison,
        rows=table,
        verdicts=judge_all(comparison, {"win_rate": {}, "length_drift": {}, "kl_budget": {}}),
        calibration=calibrate(np.linspace(0.3, 0.95, 120), seed=1),
        training_curve=[{"step": i, "loss": 0.7 - i / 100} for i in range(9)],
        dataset={"counts": {title: {title: 3}}},
        lineage={title: title},
        notes=[title],
        next_command=title,
    )


def test_the_numbers_are_on_the_page(tmp_path):
    page, case = tmp_path / "report.html", make_case()
    page.write_text(render(case), encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", " ", browse(page, tmp_path / "profile", "--dump-dom")))
    for name in ("win_rate", "length_ratio", "kl_per_token"):
        estimate = case.comparison.metrics[name]
        shown = f"{estimate.value:.1%}" if name == "win_rate" else f"{estimate.value:#.3g}"
        assert shown in text, name
    for verdict in case.verdicts:
        assert verdict.why in text


def test_nothing_that_users_wrote_runs_with_or_without_the_content_policy(tmp_path):
    """The policy in the page stops scripts; escaping must stop them alone as well."""
    case = make_case(
        prompt=HOSTILE,
        champion=HOSTILE,
        candidate=HOSTILE + "x" * 100_000,
        agent=HOSTILE,
        user_id=HOSTILE,
        candidate_reward=50.0,
    )
    guarded = render(case)
    bare = re.sub(r"<meta http-equiv=[^>]*>", "", guarded)
    assert bare != guarded
    for name, content in (("guarded", guarded), ("bare", bare)):
        page = tmp_path / f"{name}.html"
        page.write_text(content, encoding="utf-8")
        dom = browse(page, tmp_path / f"{name}-profile", "--dump-dom")
        assert "<title>owned" not in dom
        assert 'data-owned="1"' not in dom.split("<body", 1)[0]
        assert not re.search(r"<(script|img|iframe|a)\b", dom)
        assert "49" not in re.sub(r"<[^>]+>", " ", dom[dom.index('id="replies"') :])[:3000]
        assert "more characters are not shown" in dom and "⟨U+202E⟩" in dom


def test_this_test_would_notice_a_script_that_runs(tmp_path):
    """The same page with one unescaped script: the two checks above must see it."""
    page = tmp_path / "report.html"
    unsafe = re.sub(r"<meta http-equiv=[^>]*>", "", render(make_case()))
    page.write_text(unsafe.replace("</main>", f"<script>{OWNED}</script></main>"), encoding="utf-8")
    dom = browse(page, tmp_path / "profile", "--dump-dom")
    assert "<title>owned" in dom and 'data-owned="1"' in dom.split("<body", 1)[0]


@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_fits_a_narrow_and_a_wide_window(tmp_path, width):
    """A script of the test writes the page's width into it; nothing may stick out sideways."""
    page = tmp_path / "report.html"
    case = make_case(candidate="w" * 5_000, prompt="p" * 5_000, candidate_reward=50.0)
    content = re.sub(r"<meta http-equiv=[^>]*>", "", render(case))
    probe = "document.title=`${document.documentElement.scrollWidth}/${window.innerWidth}`"
    page.write_text(content.replace("</main>", f"</main><script>{probe}</script>"), encoding="utf-8")
    dom = browse(page, tmp_path / "profile", "--dump-dom", f"--window-size={width},900")
    found = re.search(r"<title>(\d+)/(\d+)</title>", dom)
    assert found is not None
    assert int(found[1]) <= int(found[2]) == width
