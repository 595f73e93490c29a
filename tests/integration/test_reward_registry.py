"""Reward models in MLflow's real SQLite store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout import reward_registry
from rollout.connection import Registry, RegistryConfig, connect
from rollout.errors import BrokenAdapter, UnknownVersion

PASSED = [{"gate": "heldout_accuracy", "verdict": "pass", "value": 0.61}]
FAILED = [{"gate": "heldout_accuracy", "verdict": "fail", "value": 0.49}]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return connect(tmp_path / "workspace", RegistryConfig())


def model(folder: Path, weight: float) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights.json").write_text(json.dumps([weight]))
    (folder / "reward_model.json").write_text(json.dumps({"method": "bradley_terry"}))
    return folder


def register(registry: Registry, directory: Path, run_key: str, **changes) -> int:
    fields = {
        "role": "training", "method": "bradley_terry", "base_id": "pip:x", "base_revision": "1",
        "dataset_version": "d" * 16, "run_id": "", "run_key": run_key, "verdicts": PASSED,
    }  # fmt: skip
    return reward_registry.register(registry, directory, **{**fields, **changes})


def test_a_reward_model_comes_back_as_it_was(registry, tmp_path):
    version = register(registry, model(tmp_path / "a", 1.5), "one")
    found = reward_registry.version_info(registry, version)
    assert (found.role, found.method, found.overall, found.dataset_version) == (
        "training", "bradley_terry", "pass", "d" * 16,
    )  # fmt: skip
    folder = reward_registry.download(registry, version)
    assert json.loads((folder / "weights.json").read_text()) == [1.5]
    assert reward_registry.download(registry, "newest") == folder
    (folder / "weights.json").chmod(0o644)
    (folder / "weights.json").write_text("[2.5]")
    with pytest.raises(BrokenAdapter, match="changed"):
        reward_registry.download(registry, version)


def test_the_same_work_is_registered_once(registry, tmp_path):
    folder = model(tmp_path / "a", 1.0)
    assert register(registry, folder, "one") == register(registry, folder, "one") == 1
    # The scorer that judges comes of the same work and is another model.
    assert register(registry, model(tmp_path / "b", 2.0), "one", role="evaluation") == 2
    assert [each.role for each in reward_registry.versions(registry)] == ["training", "evaluation"]
    # A fit elsewhere that differs in its last bits must not stop anybody.
    assert register(registry, model(tmp_path / "c", 1.0 + 1e-15), "one") == 3
    assert register(registry, folder, "one") == 1


def test_aliases_name_the_newest_and_the_newest_that_passed(registry, tmp_path):
    register(registry, model(tmp_path / "a", 1.0), "one")
    register(registry, model(tmp_path / "b", 2.0), "two", verdicts=FAILED)
    register(registry, model(tmp_path / "c", 3.0), "two", role="evaluation")
    aliases = registry.client.get_registered_model(reward_registry.name(registry)).aliases
    assert {alias: int(version) for alias, version in aliases.items()} == {"newest": 2, "passed": 1}
    assert reward_registry.version_info(registry, "newest").overall == "fail"
    assert reward_registry.version_info(registry, "passed").version == 1


@pytest.mark.parametrize("wanted", ["passed", "newest", "7", 7, "champion", ""])
def test_what_is_not_there_is_named(registry, wanted):
    with pytest.raises(UnknownVersion, match="none yet"):
        reward_registry.version_info(registry, wanted)


def test_a_folder_without_a_reward_model_is_refused(registry, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BrokenAdapter, match="holds no reward model"):
        register(registry, tmp_path / "empty", "one")
    assert reward_registry.versions(registry) == []


def test_versions_of_somebody_else_are_passed_over(registry, tmp_path):
    register(registry, model(tmp_path / "a", 1.0), "one")
    registry.client.create_model_version(
        reward_registry.name(registry), f"file://{tmp_path}", tags={"gates": "nonsense"}
    )
    assert [each.version for each in reward_registry.versions(registry)] == [1]


def test_a_database_half_made_by_a_killed_process_is_made_anew(tmp_path: Path) -> None:
    home = tmp_path / "workspace" / "mlflow"
    home.mkdir(parents=True)
    (home / ".mlflow.db.new").write_bytes(b"half of a database")
    registry = connect(tmp_path / "workspace", RegistryConfig())
    assert reward_registry.versions(registry) == []
    assert (home / "mlflow.db").stat().st_size > 10_000
