"""The handle on MLflow: where it is, under which names, and how to ask it twice."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from rollout.errors import RegistryUnavailable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

T = TypeVar("T")

_TRIES = 10
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_EXISTS = "RESOURCE_ALREADY_EXISTS"
_BUSY_SIGNS = (
    "database is locked",
    "deadlock",
    "TEMPORARILY_UNAVAILABLE",
    "Giving up after",
    "IntegrityError",
    "rows were matched",
    "0 were matched",
)


class RegistryConfig(BaseModel):
    """Where models are registered."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(default="assistant", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """Registered model. Its decisions are beside it, under `<name>-decisions`."""
    tracking_uri: str | None = None
    """MLflow server (`http://…`) or database; None keeps an SQLite file and artifacts in the workspace."""
    experiment: str = Field(default="palate", min_length=1, max_length=250)
    """MLflow experiment that holds the runs and the adapters."""


@dataclass(frozen=True)
class Registry:
    """An open registry: a client and the names that belong together."""

    client: MlflowClient
    name: str
    tracking_uri: str
    experiment_id: str
    adapters_dir: Path
    """Where adapters are materialised for serving, one immutable directory a version."""

    @property
    def decisions_name(self) -> str:
        """The registered model whose versions are the decisions about `name`."""
        return f"{self.name}-decisions"


def connect(workspace: Path, config: RegistryConfig) -> Registry:
    """Open the registry and create what it needs (idempotent, safe when several processes come first).

    Also makes the URI MLflow's global one: its SQL store looks logged models up through that.

    Args:
        workspace: directory that palate owns; without `tracking_uri` the database is made inside.
        config: names and place.

    Raises:
        RegistryUnavailable: MLflow does not answer there.
    """
    _quieten()
    import mlflow
    from mlflow.exceptions import MlflowException

    workspace = workspace.resolve()
    home = workspace / "mlflow"
    uri = config.tracking_uri
    artifacts: str | None = None
    if uri is None:
        home.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{home / 'mlflow.db'}"
        artifacts = (home / "artifacts").as_uri()
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    try:
        with _one_at_a_time(home) if artifacts else contextlib.nullcontext():
            if artifacts:
                _new_database(home / "mlflow.db")
            experiment_id = _experiment(client, config.experiment, artifacts)
            for name in (config.name, f"{config.name}-decisions"):
                ensure_registered_model(client, name)
    except (MlflowException, OSError) as error:
        raise RegistryUnavailable(
            f"MLflow cannot be used: {str(error).splitlines()[0]}",
            got=uri,
            next_step="start the server or correct `[registry] tracking_uri`, then `palate doctor`",
        ) from error
    return Registry(client, config.name, uri, experiment_id, workspace / "adapters")


def retrying(call: Callable[[], T]) -> T:
    """Run a registry call again while the database is busy.

    Only for calls that may be made twice: reading, setting an alias or tag, and creating a version whose
    nonce or run key tells a repetition apart.
    """
    from mlflow.exceptions import MlflowException

    pause_s = _FIRST_PAUSE_S
    for attempt in range(_TRIES):
        try:
            return call()
        except MlflowException as error:
            if attempt + 1 == _TRIES or not _is_busy(error):
                raise
        # Jitter keeps several waiting processes from colliding again in step; it decides nothing recorded.
        time.sleep(pause_s * (0.5 + random.random()))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError("unreachable")


def _is_busy(error: MlflowException) -> bool:
    # MLflow passes the database's complaint on as text only. An alias set by two at once breaks a unique key,
    # one moved while another removes it matches no row: both work the second time.
    if error.error_code == _EXISTS:
        return False
    return any(sign in str(error) for sign in _BUSY_SIGNS)


def _quieten() -> None:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # MLflow's seven tries with doubling pauses keep a person waiting minutes for a server that is not there.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.store.model_registry", "mlflow.store.artifact"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _new_database(final: Path) -> None:
    """Let MLflow make its tables beside, and rename: killed in one of its migrations it could never go on."""
    if final.exists():
        return
    import sqlite3

    from mlflow import MlflowClient

    fresh = final.with_name(f".{final.name}.new")
    for left in final.parent.glob(f"{fresh.name}*"):
        left.unlink()
    MlflowClient(tracking_uri=f"sqlite:///{fresh}").search_experiments(max_results=1)
    with contextlib.closing(sqlite3.connect(fresh)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # nothing may stay in a file that is not renamed
    fresh.rename(final)


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = retrying(lambda: client.get_experiment_by_name(name))
    if found is None:
        try:
            return retrying(lambda: client.create_experiment(name, artifact_location=artifacts))
        except MlflowException as error:
            if error.error_code != _EXISTS:
                raise
            found = client.get_experiment_by_name(name)
    assert found is not None
    return str(found.experiment_id)


def ensure_registered_model(client: MlflowClient, name: str) -> None:
    """Make the registered model unless it is there."""
    from mlflow.exceptions import MlflowException

    try:
        retrying(lambda: client.get_registered_model(name))
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        try:
            retrying(lambda: client.create_registered_model(name))
        except MlflowException as second:
            if second.error_code != _EXISTS:
                raise


@contextlib.contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    """Let one process create the database; a second one migrating the same empty file breaks it.

    The operating system frees the lock when its holder dies.
    """
    import fcntl

    with (home / ".first-use.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
