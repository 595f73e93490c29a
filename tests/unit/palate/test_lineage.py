"""Runs that used a dataset, and where a row stands in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palate import lineage, whereabouts
from palate.config import Project, load
from pipelines.sources import partitions


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return load(None, [f"workspace.dir={tmp_path / 'w'}", f"source.path={tmp_path / 'events.jsonl'}"])


def record(project: Project, key: str, dataset: str, **more: str) -> Path:
    folder = project.dir / "runs" / key
    folder.mkdir(parents=True)
    about = {
        "run_key": key,
        "run_id": f"m{key}",
        "dataset_version": dataset,
        "created": f"2026-0{key}",
        **more,
    }
    (folder / "record.json").write_text(json.dumps(about))
    return folder


def test_runs_and_whether_they_trained(project: Project) -> None:
    assert lineage.runs(project) == []
    record(project, "1", "a")
    record(project, "2", "b", learn_key="l2")
    record(project, "3", "a", learn_key="l3")
    (project.dir / "updates/l3/update").mkdir(parents=True)
    (project.dir / "updates/l3/update/result.json").write_text("{}")
    (record(project, "4", "c") / "finished.json").write_text("{}")
    (record(project, "5", "c") / "record.json").write_text("{half")
    found = {run.key: run.trained for run in lineage.runs(project)}
    assert found == {"1": False, "2": False, "3": True, "4": True}
    assert [run.key for run in lineage.runs(project, {"a"})] == ["1", "3"]


def test_where_a_row_stands(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    assert whereabouts.in_file(project, "palate_jsonl", "x", 0) is None
    file.write_bytes(b"{}\n\n{}\n{}")
    (part,) = partitions(file, "palate_jsonl", {})
    assert whereabouts.in_file(project, "palate_jsonl", part.id, 0) == f"{file}:1"
    assert whereabouts.in_file(project, "palate_jsonl", part.id, 4) == f"{file}:3"
    assert whereabouts.in_file(project, "palate_jsonl", "another", 4) is None
    assert whereabouts.in_file(project, "no_such_source", part.id, 4) is None
