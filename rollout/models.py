"""Models in MLflow: a logged model that holds a plain PEFT directory, and a version that names it.

A plain directory (no pickle, no flavour) is what vLLM, TGI and PEFT load as it is. What a version is stands
in its tags, written in the transaction that creates it: base model and revision, sha256 of the adapter,
dataset version, gate verdicts.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout import adapters
from rollout.connection import Registry, retrying
from rollout.errors import BrokenAdapter, UnknownVersion
from rollout.log import all_versions, read_state
from rollout.versions import ModelVersionInfo, distinct, info, newest_candidate, version_tags


def versions(registry: Registry) -> list[ModelVersionInfo]:
    """Every version that palate registered, oldest first, repetitions of one work left out."""
    return distinct(read for read in map(info, all_versions(registry, registry.name)) if read)


def register(
    registry: Registry,
    *,
    adapter_dir: Path,
    run_key: str,
    metrics: Mapping[str, float] | None = None,
    params: Mapping[str, Any] | None = None,
    **fields: Any,
) -> int:
    """Create the version named by `run_key`, or find it. `fields` are those of `versions.version_tags`."""
    sha256 = adapters.check(adapter_dir)
    known = _by_run_key(registry, run_key)
    if known is not None:
        if known.adapter_sha256 != sha256:
            raise BrokenAdapter(
                f"v{known.version} was registered for this work with another adapter.",
                got=f"{sha256} in {adapter_dir}",
                allowed=known.adapter_sha256,
                next_step="register the changed adapter under another run key",
            )
        return known.version
    import mlflow

    # MLflow's SQL store looks the model up through the global address, which may be another registry's.
    mlflow.set_tracking_uri(registry.tracking_uri)
    model_id = _logged_model(registry, adapter_dir, run_key, sha256, fields, metrics or {}, params or {})
    tags = version_tags(adapter_sha256=sha256, model_id=model_id, run_key=run_key, **fields)
    retrying(
        lambda: registry.client.create_model_version(
            registry.name,
            f"models:/{model_id}",
            run_id=fields.get("run_id") or None,
            tags=tags,
            model_id=model_id,
        )
    )
    created = _by_run_key(registry, run_key)
    assert created is not None
    return created.version


def read_aliases(registry: Registry) -> dict[str, int]:
    """The aliases as they are. (Searching versions does not return them.)"""
    model = retrying(lambda: registry.client.get_registered_model(registry.name))
    return {alias: int(version) for alias, version in dict(model.aliases or {}).items()}


def version_info(registry: Registry, alias_or_version: str | int) -> ModelVersionInfo:
    """Look a version up by number or by role.

    `champion`, `previous` and `candidate` are answered from the decision log, not from MLflow's aliases,
    which anybody may set.

    Raises:
        UnknownVersion: names what there is.
    """
    known = {version.version: version for version in versions(registry)}
    wanted = str(alias_or_version)
    number: int | None
    if wanted.isascii() and wanted.isdigit():
        number = int(wanted)
    elif wanted in ("champion", "previous", "candidate"):
        state = read_state(registry)
        waiting = newest_candidate(known.values(), state)
        number = {
            "champion": state.champion,
            "previous": state.previous,
            "candidate": waiting.version if waiting else None,
        }[wanted]
    else:
        number = read_aliases(registry).get(wanted)
    if number is None or number not in known:
        numbers = ", ".join(map(str, sorted(known))) or "none yet"
        by_number = wanted.isascii() and wanted.isdigit()
        raise UnknownVersion(
            f"{registry.name} has no version {wanted!r}.",
            allowed=numbers
            if by_number
            else f"{numbers}; champion, previous, candidate (where there is one)",
            next_step="palate status",
        )
    return known[number]


def download(registry: Registry, version: int, cache_dir: Path | None = None) -> Path:
    """Materialise an adapter for serving, once, under a name that never means anything else.

    A server that caches by name (or by path) can therefore not answer from an older adapter.

    Args:
        registry: where from.
        version: which one.
        cache_dir: holds `<name>-v<N>/`; None is the registry's own.

    Returns:
        The directory, complete and verified against the version's sha256.

    Raises:
        BrokenAdapter: the files are not the registered ones; nothing is left in the cache.
    """
    wanted = version_info(registry, version)
    cache = cache_dir or registry.adapters_dir
    final = cache / f"{registry.name}-v{wanted.version}"
    if not final.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        temporary = cache / f".{final.name}.{uuid.uuid4().hex}"
        try:
            fetch_and_check(registry, wanted.model_id, wanted.adapter_sha256, temporary)
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
        adapters.check(final, wanted.adapter_sha256)
    except BrokenAdapter as error:
        raise BrokenAdapter(
            f"The materialised adapter was changed: {error.what}",
            got=error.got,
            allowed=error.allowed,
            next_step=f"delete {final} and run the command again",
        ) from error
    return final


def fetch_and_check(registry: Registry, model_id: str, sha256: str, target: Path) -> None:
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
    adapters.check(target, sha256)


def _is_stored(registry: Registry, model_id: str, sha256: str) -> bool:
    registry.adapters_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=registry.adapters_dir, prefix=".check-") as folder:
        try:
            fetch_and_check(registry, model_id, sha256, Path(folder) / "adapter")
        except BrokenAdapter:
            return False
    return True


def _by_run_key(registry: Registry, run_key: str) -> ModelVersionInfo | None:
    return next((version for version in versions(registry) if version.run_key == run_key), None)


def _logged_model(
    registry: Registry,
    adapter_dir: Path,
    run_key: str,
    sha256: str,
    fields: Mapping[str, Any],
    metrics: Mapping[str, float],
    params: Mapping[str, Any],
) -> str:
    """Store the files; a complete earlier attempt at the same work is taken up. Returns MLflow's model id."""
    client = registry.client
    # The digest is hexadecimal, so it cannot break the filter's quotes; a run key could.
    same_files = f"tags.adapter_sha256 = '{sha256}'"
    for earlier in client.search_logged_models([registry.experiment_id], filter_string=same_files):
        tags = earlier.tags or {}
        ready = str(earlier.status) in ("READY", "LoggedModelStatus.READY")
        same_work = (tags.get("run_key"), tags.get("registered_model")) == (run_key, registry.name)
        if ready and same_work and _is_stored(registry, earlier.model_id, sha256):
            return str(earlier.model_id)
    run_id = fields.get("run_id") or None
    model = client.create_logged_model(
        registry.experiment_id,
        name=f"{registry.name}-adapter",
        source_run_id=run_id,
        tags={"registered_model": registry.name, "run_key": run_key, "adapter_sha256": sha256},
        params={str(key): str(value)[:6000] for key, value in params.items()},
        model_type="peft-adapter",
    )
    client.log_model_artifacts(model.model_id, str(adapter_dir))
    if run_id and metrics:
        _log_metrics(registry, run_id, model.model_id, metrics)
    client.finalize_logged_model(model.model_id, "READY")
    return str(model.model_id)


def _log_metrics(registry: Registry, run_id: str, model_id: str, metrics: Mapping[str, float]) -> None:
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    rows = [
        Metric(key, float(value), now_ms, 0, model_id=model_id, run_id=run_id)
        for key, value in metrics.items()
    ]
    registry.client.log_batch(run_id, metrics=rows)
