"""Real exports through ingest and build: what went in has one fate each, and reading again adds nothing."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from feedback.sources import recognise
from pipelines.build import build
from pipelines.ingest import ingest
from pipelines.ledger import balance

NOW = datetime(2027, 1, 1, tzinfo=UTC)
FOLDERS = ("shape_langfuse", "shape_langsmith", "shape_mlflow", "shape_tensorzero")


@pytest.fixture(scope="module")
def exports(shared_data: Path) -> list[Path]:
    return [shared_data / name for name in FOLDERS]


def test_real_exports_have_one_fate_each(exports, tmp_path):
    received: Counter[str] = Counter()
    for folder in exports:
        summary = ingest(folder, source=recognise(folder), workspace=tmp_path, now=NOW)
        assert summary.received > 0
        assert not summary.dead_letters
        received["events"] += summary.received
        again = ingest(folder, source=recognise(folder), workspace=tmp_path, now=NOW)
        assert again.received == 0
    dataset = build(workspace=tmp_path)
    ledger = balance(tmp_path)
    assert ledger.balanced
    assert ledger.received == received["events"] == sum(ledger.fates.values())
    # The demonstrations, the expectation, the correction.
    assert dataset.manifest["by_rule"]["edit"] > 100


def test_a_grown_export_adds_only_what_is_new(exports, tmp_path):
    inferences = next(folder for folder in exports if folder.name == "shape_tensorzero")
    content = (inferences / "DemonstrationFeedback.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "ws").mkdir()
    export = tmp_path / "rows.jsonl"
    base = (inferences / "ChatInference.jsonl").read_bytes()
    export.write_bytes(base + b"".join(content[:100]))
    ingest(export, source="tensorzero", workspace=tmp_path / "ws", now=NOW)
    first = build(workspace=tmp_path / "ws")
    export.write_bytes(base + b"".join(content))
    ingest(export, source="tensorzero", workspace=tmp_path / "ws", now=NOW)
    second = build(workspace=tmp_path / "ws")
    ledger = balance(tmp_path / "ws")
    assert ledger.balanced
    assert ledger.fates["duplicate"] == 150 + 100
    (tmp_path / "fresh").mkdir()
    ingest(export, source="tensorzero", workspace=tmp_path / "fresh", now=NOW)
    assert build(workspace=tmp_path / "fresh").version == second.version != first.version
