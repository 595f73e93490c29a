"""Directories kept in MLflow as logged models: put once, fetched and checked against their sha256.

A plain directory (no pickle, no flavour) is all there is to a model here, so that whoever serves it reads it as
it is.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.connection import Registry
from rollout.errors import BrokenAdapter

Check = Callable[[Path, str | None], str]
"""Makes sure that a directory is complete and has this sha256 (any when None); returns the one it has.

Raises `BrokenAdapter`."""


@dataclass(frozen=True)
class Files:
    """What identifies a directory in MLflow.

    Attributes:
        registered_model: under whose versions it is.
        kind: what it is: `adapter` or `reward`.
        model_type: what MLflow's pages call it.
        run_key: the work that made it.
        sha256: of its names and contents.
    """

    registered_model: str
    kind: str
    model_type: str
    run_key: str
    sha256: str

    @property
    def digest_tag(self) -> str:
        """The tag that holds the digest."""
        return f"{self.kind}_sha256"


def put(
    registry: Registry,
    directory: Path,
    files: Files,
    check: Check,
    *,
    run_id: str | None,
    metrics: Mapping[str, float],
    params: Mapping[str, Any],
) -> str:
    """Store the files; a complete earlier attempt at the same work is taken up. Returns MLflow's model id."""
    import mlflow

    # MLflow's SQL store looks the model up through the global address, which may be another registry's.
    mlflow.set_tracking_uri(registry.tracking_uri)
    client = registry.client
    # The digest is hexadecimal, so it cannot break the filter's quotes; a run key could.
    same_files = f"tags.{files.digest_tag} = '{files.sha256}'"
    for earlier in client.search_logged_models([registry.experiment_id], filter_string=same_files):
        tags = earlier.tags or {}
        ready = str(earlier.status) in ("READY", "LoggedModelStatus.READY")
        work = (tags.get("run_key"), tags.get("registered_model"))
        same_work = work == (files.run_key, files.registered_model)
        if ready and same_work and _is_whole(registry, str(earlier.model_id), files.sha256, check):
            return str(earlier.model_id)
    model = client.create_logged_model(
        registry.experiment_id,
        name=f"{files.registered_model}-{files.kind}",
        source_run_id=run_id,
        tags={
            "registered_model": files.registered_model,
            "run_key": files.run_key,
            files.digest_tag: files.sha256,
        },
        params={str(key): str(value)[:6000] for key, value in params.items()},
        model_type=files.model_type,
    )
    client.log_model_artifacts(model.model_id, str(directory))
    if run_id and metrics:
        _log_metrics(registry, run_id, model.model_id, metrics)
    client.finalize_logged_model(model.model_id, "READY")
    return str(model.model_id)


def materialise(registry: Registry, model_id: str, sha256: str, final: Path, check: Check) -> Path:
    """The files as a read-only directory, fetched once; complete and checked, or not there at all.

    Raises:
        BrokenAdapter: the files are not the registered ones; nothing is left behind.
    """
    if not final.is_dir():
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.parent / f".{final.name}.{uuid.uuid4().hex}"
        try:
            fetch_and_check(registry, model_id, sha256, temporary, check)
            for path in temporary.rglob("*"):
                if path.is_file():
                    path.chmod(0o444)
            temporary.rename(final)
        except OSError:
            # Another process may have been faster; what it left is checked below like any other.
            if not final.is_dir():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    try:
        check(final, sha256)
    except BrokenAdapter as error:
        raise BrokenAdapter(
            f"What was materialised was changed: {error.what}",
            got=error.got,
            allowed=error.allowed,
            next_step=f"delete {final} and run the command again",
        ) from error
    return final


def fetch_and_check(registry: Registry, model_id: str, sha256: str, target: Path, check: Check) -> None:
    """Copy a model's files out of the registry into a new directory and check them.

    Raises:
        BrokenAdapter: files are missing, unreadable, or not those that were registered.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    target.mkdir(parents=True)
    try:
        download_artifacts(
            artifact_uri=f"models:/{model_id}",
            dst_path=str(target),
            tracking_uri=registry.tracking_uri,
        )
    except (MlflowException, OSError) as error:
        raise BrokenAdapter(
            f"The files of model {model_id} cannot be fetched: {str(error).splitlines()[0]}",
            next_step="palate status",
        ) from error
    check(target, sha256)


def _is_whole(registry: Registry, model_id: str, sha256: str, check: Check) -> bool:
    registry.adapters_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=registry.adapters_dir, prefix=".check-") as folder:
        try:
            fetch_and_check(registry, model_id, sha256, Path(folder) / "files", check)
        except BrokenAdapter:
            return False
    return True


def _log_metrics(registry: Registry, run_id: str, model_id: str, metrics: Mapping[str, float]) -> None:
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    rows = [
        Metric(key, float(value), now_ms, 0, model_id=model_id, run_id=run_id)
        for key, value in metrics.items()
    ]
    registry.client.log_batch(run_id, metrics=rows)
