"""The loop, closed, as one command; and that labels that say nothing do not pass."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.conftest import Palate, Result

CONFIG = ("--config", "demo.toml")


def write_config(cwd: Path) -> None:
    (cwd / "demo.toml").write_text('[workspace]\ndir = ".palate/demo"\n[registry]\nname = "demo-assistant"\n')


def test_shuffled_labels_fail_the_gate_and_say_so(demo_workspace: tuple[Path, Result]) -> None:
    _, result = demo_workspace
    assert result.code == 3, result.err
    found = result.json
    verdicts = {v["gate"]: v["verdict"] for v in found["verdicts"]}
    assert verdicts["win_rate"] == "fail"
    assert "NOT better" in result.err and "a gate failed" in result.err
    assert found["comparison"]["metrics"]["win_rate"]["low"] <= 0.5


def test_every_stage_ran_and_left_its_output(demo_workspace: tuple[Path, Result]) -> None:
    cwd, result = demo_workspace
    found = result.json
    run = cwd / ".palate/demo/runs" / found["run_key"]
    (update,) = (cwd / ".palate/demo/updates").iterdir()
    for file in (
        "reward-training/reward_model.json",
        "reward-evaluation/reward_model.json",
        "update/result.json",
    ):
        assert (update / file).is_file()
    assert (update / "update/adapter/adapter_config.json").is_file()
    for file in ("record.json", "evaluation/replies.parquet"):
        assert (run / file).is_file()
    html = Path(found["report"]).read_text()
    assert "simulated users" in html
    assert not re.search(r"""(src|href)=["']?https?:""", html)
    assert set(found["satisfaction"]) == {"champion", "candidate", "difference"}
    assert found["comparison"]["prompts"] >= 20
    assert not (cwd / "mlruns").exists() and not (cwd / "mlflow.db").exists()
    assert sorted(p.name for p in cwd.iterdir()) in ([".palate"], [".palate", "demo.toml"])


def test_a_failed_candidate_needs_an_override_which_is_recorded(
    demo_workspace: tuple[Path, Result], palate: Palate
) -> None:
    cwd, result = demo_workspace
    write_config(cwd)
    version = str(result.json["candidate"])
    refused = palate("promote", version, *CONFIG, "--json", cwd=cwd)
    assert refused.code == 3 and "--override" in refused.err
    assert refused.json["error"]["type"] == "GateFailed"
    status = palate("status", *CONFIG, "--json", cwd=cwd).json["status"]
    assert status["champion"]["version"] == 1 and status["candidate"]["version"] == int(version)
    assert palate("promote", version, *CONFIG, "--override", "a test of the override", cwd=cwd).code == 0
    status = palate("status", *CONFIG, "--json", cwd=cwd).json["status"]
    assert status["champion"]["version"] == int(version) and status["previous"]["version"] == 1
    assert palate("rollback", *CONFIG, "--reason", "undo", cwd=cwd).code == 0
    history = palate("history", *CONFIG, "--verify", "--json", cwd=cwd)
    assert history.code == 0 and history.json["verification"]["ok"]
    entries = history.json["decisions"]
    assert [e["action"] for e in entries] == ["found", "promote", "rollback"]
    assert entries[1]["override"] and entries[1]["reason"] == "a test of the override"


def test_looking_at_things(demo_workspace: tuple[Path, Result], palate: Palate) -> None:
    cwd, result = demo_workspace
    write_config(cwd)
    dataset = palate("show", "dataset", *CONFIG, "--json", cwd=cwd)
    assert dataset.json["version"] == result.json["dataset_version"]
    fates = palate("show", "fates", *CONFIG, "--json", cwd=cwd)
    assert fates.json["balanced"] and fates.json["received"] == sum(fates.json["fates"].values())
    # A random model now and then writes a NUL character: refused, with that reason, and counted.
    letters = palate("show", "dead-letters", *CONFIG, "--json", cwd=cwd).json["dead_letters"]
    assert len(letters) == fates.json["fates"].get("dead_letter", 0)
    assert {letter["reason"] for letter in letters} <= {"nul_byte"}
    model = palate("show", str(result.json["candidate"]), *CONFIG, "--json", cwd=cwd)
    assert model.json["model"]["dataset_version"] == result.json["dataset_version"]
    record = palate("show", "run", *CONFIG, "--json", cwd=cwd).json["record"]
    assert record["seed"] == 0 and record["dependencies"]["trl"] and record["config"]["model"]["base"]
