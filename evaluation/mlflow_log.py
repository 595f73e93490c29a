"""The same case in MLflow: numbers as metrics, comparisons and verdicts as tables, the report as an artifact.

Delivery: everything is overwritten by name, so that a run killed half-way can be logged again and ends the
same. (`MlflowClient.log_table` appends to a table that is already there; two tries would show every row
twice. The tables here are written in its format instead.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evaluation.case import Case
from evaluation.estimates import Estimate

if TYPE_CHECKING:
    from mlflow import MlflowClient

REPORT = "report.html"
COMPARISONS = "comparisons.json"
GATES = "gates.json"
# The tag by which MLflow's pages know which artifacts are tables.
_TABLES_TAG = "mlflow.loggedArtifacts"
# MLflow refuses more metrics than this in one request.
_BATCH = 1000


def log_case(run_id: str, case: Case, html: str, *, client: MlflowClient) -> None:
    """Writes a case to an MLflow run; may be repeated.

    Args:
        run_id: the run, of any state.
        case: what was found.
        html: `evaluation.report.render(case)`.
        client: of the tracking server to use.
    """
    from mlflow.entities import Metric, RunTag

    stamp = int(case.created.timestamp() * 1000)
    metrics = [Metric(name, value, stamp, 0) for name, value in case_metrics(case).items()]
    tags = [
        RunTag("palate.outcome", case.outcome if case.comparison else "no_candidate"),
        RunTag("palate.simulated_users", str(case.simulated).lower()),
    ]
    tables = {}
    if case.rows is not None:
        tables[COMPARISONS] = comparison_table(case.rows)
    if case.verdicts:
        verdicts = [verdict.to_dict() for verdict in case.verdicts]
        tables[GATES] = _split(list(verdicts[0]), [list(verdict.values()) for verdict in verdicts])
    for name, table in tables.items():
        client.log_text(run_id, json.dumps(table, ensure_ascii=False, allow_nan=False), name)
    client.log_text(run_id, html, REPORT)
    known = json.loads(client.get_run(run_id).data.tags.get(_TABLES_TAG, "[]"))
    known += [entry for name in tables if (entry := {"path": name, "type": "table"}) not in known]
    if known:
        tags.append(RunTag(_TABLES_TAG, json.dumps(known)))
    for start in range(0, max(1, len(metrics)), _BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + _BATCH], tags=tags)


def case_metrics(case: Case) -> dict[str, float]:
    """Every number under the name it has in MLflow; what is not finite is left out.

    An estimate `win_rate` gives `evaluation/win_rate`, `…_low`, `…_high` and `…_n`.
    """
    found: dict[str, float] = {}
    for name, estimate in _estimates(case):
        ends = {"": estimate.value, "_low": estimate.low, "_high": estimate.high, "_n": float(estimate.n)}
        found |= {f"{name}{end}": value for end, value in ends.items() if math.isfinite(value)}
    if case.comparison is not None:
        for count in ("wins", "ties", "losses", "prompts"):
            found[f"evaluation/{count}"] = float(getattr(case.comparison, count))
    for verdict in case.verdicts:
        found[f"gate/{_plain(verdict.gate)}"] = float(verdict.verdict == "pass")
    return found


def comparison_table(rows: pa.Table) -> dict[str, Any]:
    """The compared replies with their reward difference, as MLflow's table format."""
    records = [
        {"reward_difference": row["candidate_reward"] - row["champion_reward"], **row}
        for row in rows.to_pylist()
    ]
    columns = ["reward_difference", *rows.column_names]
    return _split(columns, [[_finite(record[name]) for name in columns] for record in records])


def _estimates(case: Case) -> Iterator[tuple[str, Estimate]]:
    if case.comparison is not None:
        for name, estimate in case.comparison.metrics.items():
            yield f"evaluation/{name}", estimate
    for name, estimate in case.learned.items():
        yield f"learned/{_plain(name)}", estimate
    if case.calibration is not None:
        for name in ("accuracy", "log_loss", "ece"):
            yield f"judge/{name}", getattr(case.calibration, name)
    for name, estimate in (case.satisfaction or {}).items():
        yield f"simulated_satisfaction/{_plain(name)}", estimate


def _plain(name: str) -> str:
    """A name with only what MLflow allows in a metric's."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name.casefold())
    return "_".join(part for part in kept.split("_") if part) or "unnamed"


def _split(columns: list[str], data: list[list[Any]]) -> dict[str, Any]:
    return {"columns": columns, "data": data}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
