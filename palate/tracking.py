"""One MLflow run for each piece of work, found again by its key after a crash."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout.connection import retrying

if TYPE_CHECKING:
    from rollout.connection import Registry

log = logging.getLogger(__name__)
KEY_TAG = "palate.run_key"
LONGEST_PARAM = 500


def open_run(registry: Registry, key: str, name: str, tags: Mapping[str, str]) -> str:
    """The run with this key: the one a killed process left, or a new one. Returns its id."""
    client = registry.client
    wanted = f"tags.`{KEY_TAG}` = '{key}'"
    found = retrying(lambda: client.search_runs([registry.experiment_id], wanted, max_results=1))
    if found:
        run_id = str(found[0].info.run_id)
        retrying(lambda: client.update_run(run_id, status="RUNNING"))
        return run_id
    run = client.create_run(registry.experiment_id, run_name=name, tags={KEY_TAG: key, **tags})
    return str(run.info.run_id)


def log_settings(
    registry: Registry, run_id: str, record: Mapping[str, Any], manifest: Mapping[str, Any]
) -> None:
    """Parameters for the comparison page, and the whole record and manifest as artifacts."""
    from mlflow.entities import Param

    # MLflow never changes a parameter; a run that goes on after a crash keeps the ones it has.
    known = registry.client.get_run(run_id).data.params
    flat = sorted(_flat(record["config"]).items())
    params = [Param(k, v[:LONGEST_PARAM]) for k, v in flat if k not in known]
    for start in range(0, len(params), 100):
        part = params[start : start + 100]
        retrying(lambda part=part: registry.client.log_batch(run_id, params=part))  # type: ignore[misc]
    registry.client.log_text(run_id, json.dumps(record, indent=1, default=str), "record.json")
    registry.client.log_text(run_id, json.dumps(manifest, indent=1, default=str), "dataset_manifest.json")


def log_step(registry: Registry, run_id: str, step: int, metrics: Mapping[str, float]) -> None:
    """Training metrics of one optimizer step."""
    import time

    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    stamp = int(time.time() * 1000)
    entries = [
        Metric(f"train/{k.removeprefix('rewards/')}", float(v), stamp, step)
        for k, v in metrics.items()
        if isinstance(v, int | float) and v == v
    ]
    try:
        retrying(lambda: registry.client.log_batch(run_id, metrics=entries))
    except MlflowException as error:
        # A curve with a gap is better than hours of training lost; the result keeps the whole curve.
        log.warning("step %d was not logged: %s", step, str(error).splitlines()[0])


def log_samples(registry: Registry, run_id: str, rows: list[dict[str, Any]]) -> None:
    """Completions that were sampled while training, for people to read: a table of the run that grows by step."""
    from mlflow.exceptions import MlflowException

    columns = {name: [row.get(name) for row in rows] for name in rows[0]} if rows else {}
    try:
        if columns:
            registry.client.log_table(run_id, columns, "train/samples.json")
    except MlflowException as error:
        log.warning("samples of a step were not logged: %s", error)


def log_directory(registry: Registry, run_id: str, directory: Path, name: str) -> None:
    """A small directory (a reward model) as artifacts under `name`."""
    registry.client.log_artifacts(run_id, str(directory), name)


def close_run(registry: Registry, run_id: str, status: str = "FINISHED") -> None:
    """Mark the run FINISHED or FAILED."""
    retrying(lambda: registry.client.set_terminated(run_id, status))


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{prefix}{key}.").items()}
    return {prefix.removesuffix("."): str(value)}
