"""What stops the loop before it trains: the share of bad arrivals, and the suites of the tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from feedback.splits import SplitConfig
from feedback.tables import FATES, PREFERENCES
from pipelines.build import build
from pipelines.ingest import IngestConfig, ingest
from pipelines.ledger import Ledger
from pipelines.quality import (
    Arrivals,
    BadData,
    FatesQuality,
    PreferencesQuality,
    QualityConfig,
    Validation,
    arrivals,
    refuse_bad,
    shown,
)
from pipelines.replay import Letters, replay
from pipelines.suites import check_fates, check_preferences
from tests.unit.pipelines.made import NOW, history, interaction, lines

STRICT = QualityConfig(max_bad_share=0.1)
AT = datetime(2026, 3, 1, tzinfo=UTC)


def row(number: int, **more: Any) -> dict[str, Any]:
    """A sound preference row."""
    return {
        "preference_id": f"{number:064x}",
        "prompt": [{"role": "user", "content": "tea?"}],
        "prompt_key": f"p{number}",
        "chosen": "yes",
        "rejected": "no",
        "label": None,
        "margin": 1.0,
        "weight": 1.0,
        "user_id": f"u{number}",
        "agent": "assistant",
        "rule": "vote",
        "evidence": ["f1", "i1"],
        "event_time": AT,
        "split": "train",
        "schema_version": 1,
        **more,
    }


def broken(report_of: Any) -> set[str]:
    return {check.name for check in report_of.checks if not check.passed}


def preferences(*rows: dict[str, Any], **thresholds: Any) -> Any:
    table = pa.Table.from_pylist(list(rows), schema=PREFERENCES)
    return check_preferences(table, PreferencesQuality(**thresholds))


def test_sound_rows_pass() -> None:
    unpaired = row(3, rejected=None, label=True)
    report = preferences(row(1), row(2, margin=0.0), unpaired)
    assert report.passed and report.rows == 3 and len(report.checks) == 12
    assert preferences().passed


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({"rejected": "yes"}, "texts_differ"),
        ({"weight": 0.0}, "weight_positive"),
        ({"margin": 1.5}, "margin_in_range"),
        ({"margin": -0.1}, "margin_in_range"),
        ({"split": "validation"}, "split_known"),
        ({"evidence": []}, "evidence_present"),
        ({"label": True}, "label_fits"),
        ({"preference_id": f"{1:064x}"}, "preference_id_unique"),
        ({"prompt_key": "p1", "split": "test"}, "prompt_in_one_split"),
        ({"user_id": "u1", "split": "test"}, "user_in_one_split"),
    ],
)
def test_each_fault_breaks_its_expectation(fault: dict[str, Any], name: str) -> None:
    report = preferences(row(1), row(2, **fault))
    assert broken(report) == {name}
    (check,) = [check for check in report.checks if not check.passed]
    assert check.examples and "rule" not in check.examples[0]


def test_what_is_not_held_out_may_be_in_several_splits() -> None:
    by_users = SplitConfig(test_prompts=0, evaluation_prompts=0)
    table = pa.Table.from_pylist([row(1), row(2, prompt_key="p1", split="test")], schema=PREFERENCES)
    assert check_preferences(table, PreferencesQuality(), split=by_users).passed
    by_prompts = SplitConfig(test_users=0, evaluation_users=0)
    assert broken(check_preferences(table, PreferencesQuality(), split=by_prompts)) == {"prompt_in_one_split"}


def test_thresholds() -> None:
    rows = [row(1), row(2, margin=0.0), row(3, rule="edit", chosen="y" * 30)]
    report = preferences(
        *rows, max_tie_share=0.2, max_text_chars=20, min_rows=4, min_rows_per_rule={"edit": 1, "vote": 5}
    )
    assert broken(report) == {"tie_share", "text_length", "rows_present", "rows_of_vote"}
    assert broken(preferences(min_rows=1)) == {"rows_present"}


def fate(number: int, name: str, reason: str | None = None, rows: int = 0) -> dict[str, Any]:
    return {
        "event_id": f"i{number}",
        "kind": "interaction",
        "fate": name,
        "reason": reason,
        "preference_ids": [str(n) for n in range(rows)],
        "digest": "d",
        "ingest_time": AT,
        "partition": "p",
        "offset": number,
    }


def ends(*rows: dict[str, Any], received: int | None = None, **thresholds: Any) -> Any:
    table = pa.Table.from_pylist(list(rows), schema=FATES)
    count = len(rows) if received is None else received
    return check_fates(table, Ledger(received=count, fates={"any": len(rows)}), FatesQuality(**thresholds))


def test_fates() -> None:
    sound = [fate(0, "ready", rows=1), fate(1, "waiting", "orphan"), fate(2, "duplicate", "same_event")]
    assert ends(*sound).passed and ends().passed
    assert broken(ends(*sound, received=4)) == {"balance"}
    assert broken(ends(*sound, fate(2, "ready", rows=1))) == {"place_unique"}
    assert broken(ends(*sound, fate(3, "ready"))) == {"ready_has_rows"}
    assert broken(ends(*sound, fate(3, "no_preference"))) == {"reason_given"}
    assert broken(ends(*sound, fate(3, "lost", "x"))) == {"fate_known"}
    assert broken(ends(*sound, max_waiting_share=0.1)) == {"waiting_share"}
    conflict = fate(3, "dead_letter", "conflicting_duplicate")
    assert broken(ends(*sound, conflict)) == {"conflict_share"}


@pytest.fixture
def fill(tmp_path: Path) -> Callable[[bytes], Path]:
    """Ingests more lines into one workspace."""
    file, workspace = tmp_path / "events.jsonl", tmp_path / "w"

    def more(content: bytes) -> Path:
        with file.open("ab") as stream:
            stream.write(content)
        ingest(file, source="palate_jsonl", workspace=workspace, now=NOW)
        return workspace

    return more


def test_only_arrivals_since_the_build_count(fill: Callable[[bytes], Path]) -> None:
    early = interaction(900) | {"event_time": (NOW + timedelta(days=9)).isoformat()}
    workspace = fill(lines(history(40)) + b"{broken\n" * 6 + lines([early]))
    found = arrivals(workspace, STRICT)
    assert (found.received, found.bad, found.passed) == (47, 7, False)
    assert list(found.reasons) == ["not_json", "future_time"] and len(found.examples) == 5
    with pytest.raises(BadData, match="not_json") as refused:
        refuse_bad(Validation(NOW, None, found))
    assert refused.value.exit_code == 4 and str(refused.value).count("{broken") == 5
    # A letter that became an event is no bad row any more.
    replay(workspace, Letters(), config=IngestConfig(), now=NOW + timedelta(days=10))
    again = arrivals(workspace, STRICT)
    assert (again.received, again.bad) == (47, 6)
    build(workspace=workspace)
    assert arrivals(workspace, STRICT).received == 0 and arrivals(workspace, STRICT).passed
    fill(lines([interaction(number) for number in range(100, 119)]) + b"[]\n")
    newest = arrivals(workspace, STRICT)
    assert (newest.received, newest.bad, newest.passed) == (20, 1, True)


def test_few_arrivals_say_nothing() -> None:
    assert Arrivals(received=19, bad=19, max_bad_share=0.0, min_rows=20).passed
    assert not Arrivals(received=20, bad=1, max_bad_share=0.0, min_rows=20).passed
    assert Arrivals().share == 0.0


def test_an_outcome_is_plain_json() -> None:
    report = preferences(row(1), row(2, weight=0.0))
    found = Validation(AT, "abc", Arrivals(10, 1, {"not_json": 1}), (report,))
    document = json.loads(json.dumps(found.document()))
    assert document["passed"] is False and document["tables"][0]["passed"] is False
    assert document["arrivals"]["share"] == 0.1
    with pytest.raises(BadData, match="weight_positive"):
        refuse_bad(found, Path("page.html"))
    refuse_bad(Validation(AT, "abc", None))


def test_text_of_users_stays_on_its_line() -> None:
    assert shown("a\nb\x1b[31m\u202e") == "a b�[31m�"
    assert len(shown("x" * 500)) == 160
