"""A demo empties only what a demo filled."""

from __future__ import annotations

from pathlib import Path

import pytest

from palate.config import ConfigError
from palate.console import Out
from palate.context import Context, open_project
from palate.demo import prepare_workspace


def context(where: Path, seed: int = 0) -> Context:
    return open_project(None, [f"workspace.dir={where}", f"seed={seed}"], Out(as_json=True))


def test_a_foreign_directory_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="not emptied"):
        prepare_workspace(context(tmp_path), keep=False, shuffled_labels=False)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_demo_s_own_is_emptied_but_for_lock_and_cache(tmp_path: Path) -> None:
    prepare_workspace(context(tmp_path), keep=False, shuffled_labels=False)
    for name in ("tables", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "run.lock").touch()
    prepare_workspace(context(tmp_path), keep=False, shuffled_labels=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "run.lock", "simulated"]


def test_keep_goes_on_with_the_same_demo_only(tmp_path: Path) -> None:
    prepare_workspace(context(tmp_path), keep=True, shuffled_labels=False)
    (tmp_path / "simulated" / "events.jsonl").write_text("kept")
    prepare_workspace(context(tmp_path), keep=True, shuffled_labels=False)
    assert (tmp_path / "simulated" / "events.jsonl").read_text() == "kept"
    with pytest.raises(ConfigError, match="another demo"):
        prepare_workspace(context(tmp_path, seed=1), keep=True, shuffled_labels=False)
    with pytest.raises(ConfigError, match="another demo"):
        prepare_workspace(context(tmp_path), keep=True, shuffled_labels=True)
