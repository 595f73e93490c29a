"""Models in MLflow: a logged model that holds a plain PEFT directory, and a version that names it.

A plain directory (no pickle, no flavour) is what vLLM, TGI and PEFT load as it is. What a version is stands
in its tags, written in the transaction that creates it: base model and revision, sha256 of the adapter,
dataset version, gate verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout import adapters, stored
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
    model_id = stored.put(
        registry,
        adapter_dir,
        stored.Files(registry.name, "adapter", "peft-adapter", run_key, sha256),
        adapters.check,
        run_id=fields.get("run_id") or None,
        metrics=metrics or {},
        params=params or {},
    )
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
    return stored.materialise(registry, wanted.model_id, wanted.adapter_sha256, final, adapters.check)


def _by_run_key(registry: Registry, run_key: str) -> ModelVersionInfo | None:
    return next((version for version in versions(registry) if version.run_key == run_key), None)
