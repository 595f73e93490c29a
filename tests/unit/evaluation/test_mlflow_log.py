"""Logging to a real MLflow store (SQLite and files in a temporary folder)."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evaluation.calibration import calibrate
from evaluation.case import Case
from evaluation.compare import ROWS, compare
from evaluation.estimates import Estimate, wilson
from evaluation.gates import judge_all
from evaluation.mlflow_log import case_metrics, log_case


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    found = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    found.create_experiment("cases", artifact_location=(folder / "artifacts").as_uri())
    return found


@pytest.fixture
def run_id(client):
    return client.create_run(client.get_experiment_by_name("cases").experiment_id).info.run_id


def make_case(count=500):
    rng = np.random.default_rng(1)
    rows = [
        {
            "prompt_id": f"p{i}",
            "prompt": "Why? <b>" + "x" * 300,
            "user_id": None,
            "agent": "assistant",
            "champion": "Because. " * 40,
            "candidate": 'Well, "so" it is. ' * 40,
            "champion_reward": 0.0,
            "candidate_reward": float(rng.normal(0.7)),
            "champion_tokens": 80,
            "candidate_tokens": 84,
            "kl": None if i == 0 else 0.1,
        }
        for i in range(count)
    ]
    table = pa.Table.from_pylist(rows, schema=ROWS)
    comparison = compare(table, seed=1)
    return Case(
        title="A run",
        simulated=True,
        created=datetime(2026, 12, 2, tzinfo=UTC),
        comparison=comparison,
        rows=table,
        verdicts=judge_all(comparison, {"win_rate": {}, "kl_budget": {"min_prompts": 10_000}}),
        learned={"Reward model: accuracy (%)": wilson(70, 100), "nothing": Estimate(0.5, -np.inf, np.inf, 1)},
        calibration=calibrate(np.linspace(0.3, 0.95, 120), seed=1),
    )


def test_numbers_tables_and_report_are_there_within_five_seconds_and_once(client, run_id, tmp_path):
    case = make_case()
    log_case(run_id, case, "<!doctype html>é", client=client)
    started = time.perf_counter()
    log_case(run_id, case, "<!doctype html>é", client=client)  # as after a kill
    assert time.perf_counter() - started < 5

    run = client.get_run(run_id)
    rate = case.comparison.metrics["win_rate"]
    assert run.data.metrics["evaluation/win_rate"] == pytest.approx(rate.value)
    assert run.data.metrics["evaluation/win_rate_low"] == pytest.approx(rate.low)
    assert run.data.metrics["evaluation/win_rate_high"] == pytest.approx(rate.high)
    assert run.data.metrics["evaluation/win_rate_n"] == 500
    assert run.data.metrics["learned/reward_model_accuracy"] == pytest.approx(0.7)
    assert run.data.metrics["gate/win_rate"] == 1 and run.data.metrics["gate/kl_budget"] == 0
    assert "learned/nothing_low" not in run.data.metrics
    assert run.data.tags["palate.outcome"] == "insufficient_data"
    assert run.data.tags["palate.simulated_users"] == "true"

    names = {item.path for item in client.list_artifacts(run_id)}
    assert names == {"comparisons.json", "gates.json", "report.html"}
    page = Path(client.download_artifacts(run_id, "report.html", str(tmp_path)))
    assert page.read_text(encoding="utf-8") == "<!doctype html>é"


def test_the_tables_are_what_mlflow_itself_reads_as_tables(client, run_id, request):
    import mlflow

    # load_table searches where the process points, which other tests may have moved.
    before = mlflow.get_tracking_uri()
    request.addfinalizer(lambda: mlflow.set_tracking_uri(before))
    mlflow.set_tracking_uri(client.tracking_uri)
    case = make_case(30)
    log_case(run_id, case, "", client=client)
    log_case(run_id, case, "", client=client)
    listed = json.loads(client.get_run(run_id).data.tags["mlflow.loggedArtifacts"])
    assert [entry["path"] for entry in listed] == ["comparisons.json", "gates.json"]
    found = client.load_table(client.get_run(run_id).info.experiment_id, "comparisons.json", [run_id])
    assert len(found) == 30
    assert found["candidate"][0] == 'Well, "so" it is. ' * 40
    assert found["reward_difference"][3] == pytest.approx(case.rows["candidate_reward"][3].as_py())
    gates = client.load_table(client.get_run(run_id).info.experiment_id, "gates.json", [run_id])
    assert list(gates["verdict"]) == ["pass", "insufficient_data"]


def test_what_is_not_finite_is_no_metric():
    case = Case(
        "None", False, datetime(2026, 1, 1, tzinfo=UTC), comparison=compare(ROWS.empty_table(), seed=1)
    )
    found = case_metrics(case)
    assert found["evaluation/win_rate_n"] == 0 and "evaluation/win_rate" not in found
    assert all(np.isfinite(value) for value in found.values())


def test_a_run_without_a_candidate(client, run_id):
    log_case(run_id, Case("Votes", False, datetime(2026, 1, 1, tzinfo=UTC)), "<p>", client=client)
    assert client.get_run(run_id).data.tags["palate.outcome"] == "no_candidate"
    assert {item.path for item in client.list_artifacts(run_id)} == {"report.html"}
