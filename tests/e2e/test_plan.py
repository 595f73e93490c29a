"""`palate plan`: what an update would take and give, and no trace of having asked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Palate, Result, run_palate, settings
from tests.e2e.test_update_methods import QUARTER, SMALL, logged

DEMO = Path(__file__).parents[2] / "palate" / "demo.toml"


def files(folder: Path) -> dict[str, str]:
    """Every file below, with a digest of its content."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's commands put temporary files."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.timeout(300)
def test_after_a_build_alone_a_plan_says_all_and_leaves_no_trace(
    palate: Palate, tiny_base: Path, tmp_path: Path, temporary: Path
) -> None:
    options = settings(tiny_base, *QUARTER, *SMALL, "train.kto.min_rows=8", 'prefer.rules=["unpaired"]')
    events = logged(tmp_path / "events.jsonl", 160)
    assert palate("ingest", str(events), *options).code == 0
    assert palate("build", *options).code == 0
    before = files(tmp_path)
    done = palate("plan", "--method", "kto", "--json", *options)
    assert done.code == 0, done.err
    assert "Three steps of the real loop" in done.err
    found = done.json
    assert files(tmp_path) == before
    assert not [file for file in temporary.rglob("*") if file.is_file()]
    kto = found["rows"]["kto"]
    assert kto["usable"] > 8 and kto["refused"] is None
    assert (
        found["rows"]["dpo"]["usable"] == 0 and "Too few preference pairs" in found["rows"]["dpo"]["refused"]
    )
    assert found["rows"]["online"]["usable"] > 0 and found["rows"]["words"]["unit"] == "row"
    assert found["champion"] is None
    cost = found["cost"]
    assert cost["size"]["steps"] == -(-kto["usable"] // 4)
    assert 0 < cost["duration_s"]["low"] <= cost["duration_s"]["seconds"] <= cost["duration_s"]["high"] < 120
    assert cost["fits"] is True
    assert found["lift"]["win_rate"]["estimate"] is None
    assert found["lift"]["win_rate"]["why"].startswith("not known before training: no earlier update")
    assert found["lift"]["ceiling"]["estimate"] is None
    assert (
        found["users"]["agents"] == ["assistant"]
        and found["users"]["affected"] == found["users"]["all"] == 40
    )
    # 160 replies within a day, of five four are liked or disliked; half of these, in turn, are liked.
    assert found["canary"]["verdicts_per_day"] == pytest.approx(128)
    assert found["canary"]["satisfied"] == pytest.approx(0.5)
    sampled = palate("plan", "--method", "grpo", "--json", *options)
    assert sampled.code == 0, sampled.err
    assert sampled.json["cost"]["why"].startswith("not measured: replies are paid by a reward model")
    assert sampled.json["rows"]["grpo"]["usable"] > 8 and sampled.json["cost"]["fits"] is None
    trained = palate("train", "--json", *options, "--set", "train.method=kto")
    assert trained.code == 0, trained.err
    assert trained.json["metrics"]["rows"] == kto["usable"]
    assert trained.json["metrics"]["steps"] == cost["size"]["steps"]


@pytest.mark.timeout(300)
def test_what_cannot_be_trained_is_refused_in_the_same_words(
    palate: Palate, tiny_base: Path, tmp_path: Path
) -> None:
    options = settings(tiny_base, *QUARTER, *SMALL, 'prefer.rules=["unpaired"]')
    assert palate("ingest", str(logged(tmp_path / "events.jsonl", 60)), *options).code == 0
    unbuilt = palate("plan", "--no-probe", *options)
    assert unbuilt.code == 1 and "palate build" in unbuilt.err
    assert palate("build", *options).code == 0
    planned, trained = (palate(command, "--json", *options) for command in ("plan", "train"))
    assert planned.code == trained.code == 4
    assert planned.json["error"] == trained.json["error"]
    assert "Enough for: " in planned.err and "kto (" in planned.err
    none = palate("plan", *options, "--set", "train.method=none")
    assert none.code == 2 and "no update to plan" in none.err
    unknown = palate("plan", "--method", "sorcery", *options)
    assert unknown.code == 2 and "sorcery" in unknown.err


@pytest.mark.timeout(300)
def test_after_a_run_it_starts_from_the_champion_and_knows_the_ceiling(
    demo_workspace: tuple[Path, Result], tiny_base: Path
) -> None:
    cwd, demo = demo_workspace
    before = files(cwd)
    done = run_palate(cwd, "plan", "--json", "--config", str(DEMO), *settings(tiny_base))
    assert done.code == 0, done.err
    assert files(cwd) == before
    found: dict[str, Any] = done.json
    assert found["champion"] == demo.json["champion"] == 1
    assert found["dataset_version"] == demo.json["dataset_version"]
    assert found["rows"]["dpo"]["usable"] == 32 == found["cost"]["size"]["rows"]
    ceiling = found["lift"]["ceiling"]["estimate"]
    assert 0 <= ceiling["low"] <= ceiling["value"] <= ceiling["high"] <= 1
    ranked = found["lift"]["champion"]["estimate"]
    assert 0 <= ranked["low"] <= ranked["value"] <= ranked["high"] <= 1
    assert "1 of at least 3 updates by dpo" in found["lift"]["win_rate"]["why"]
    small = ["--set", "train.grpo.max_new_tokens=12", "--set", "train.grpo.steps=6"]
    paid = run_palate(
        cwd, "plan", "--method", "grpo", "--json", "--config", str(DEMO), *settings(tiny_base), *small
    )
    assert paid.code == 0, paid.err
    assert paid.json["cost"]["size"]["steps"] == 6 and paid.json["cost"]["fits"] is True
    assert files(cwd) == before
    shown = run_palate(cwd, "plan", "--no-probe", "--config", str(DEMO), *settings(tiny_base))
    assert shown.code == 0, shown.err
    assert "An update by dpo from champion v1" in shown.out
    assert "not measured: --no-probe" in shown.out
    assert "dpo (planned)" in shown.out
