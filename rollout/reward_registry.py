"""Reward models in MLflow: versions of `<name>-reward`, each with its files, its gates and what it learned from.

A reward model serves nobody by itself, so no decision is recorded: two aliases say which to use. `newest` is the
version that was registered last; `passed` is the newest whose gates all passed. Both are for people: palate reads the
versions' tags, which are written in the transaction that creates them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rollout import adapters, stored
from rollout.connection import Registry, ensure_registered_model, retrying
from rollout.errors import BrokenAdapter, UnknownVersion
from rollout.log import all_versions
from rollout.versions import GATES_TAG, Overall, gate_tags, overall

Role = Literal["training", "evaluation"]
ABOUT = "reward_model.json"
"""The file that makes a reward model's directory loadable (`reward_models.model_files`)."""


class RewardVersion(BaseModel):
    """One registered reward model."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    version: int
    role: Role
    """`training`: what policies learn from; `evaluation`: kept apart to judge them."""
    method: str
    """Name of the reward model, such as `personal`."""
    base_id: str
    """The language model that reads the replies."""
    base_revision: str
    dataset_version: str
    reward_sha256: str
    model_id: str
    """MLflow logged model that holds the files."""
    run_id: str
    run_key: str
    """Names the work that made it; registering the same files of it again gives the same version."""
    gates: tuple[dict[str, Any], ...]
    overall: Overall
    created_ms: int
    """When it was registered, milliseconds since 1970, UTC."""


def name(registry: Registry) -> str:
    """The registered model whose versions are reward models."""
    return f"{registry.name}-reward"


def versions(registry: Registry) -> list[RewardVersion]:
    """Every reward model that palate registered, oldest first; of the same files of one work only the first."""
    ensure_registered_model(registry.client, name(registry))
    found: dict[tuple[str, str, str], RewardVersion] = {}
    for version in all_versions(registry, name(registry)):
        read = _info(version)
        if read is not None:
            found.setdefault((read.run_key, read.role, read.reward_sha256), read)
    return sorted(found.values(), key=lambda each: each.version)


def register(
    registry: Registry,
    directory: Path,
    *,
    role: Role,
    method: str,
    base_id: str,
    base_revision: str,
    dataset_version: str,
    run_id: str,
    run_key: str,
    verdicts: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, float] | None = None,
    params: Mapping[str, Any] | None = None,
) -> int:
    """Register what a reward model's `save` wrote. Killed anywhere and called again, there is one version.

    A fit of the same work elsewhere may differ in its last bits: other files are another version.

    Args:
        registry: where to.
        directory: of the reward model.
        role: what it is for.
        method: name of the reward model.
        base_id: the language model that reads the replies, as the project names it.
        base_revision: its revision.
        dataset_version: whose rows it learned.
        run_id: MLflow run that fitted it.
        run_key: names the work; with the role and the files it names the version.
        verdicts: of its gates.
        metrics: numbers to show beside it.
        params: settings to show beside it.

    Returns:
        The version's number; the alias `newest` names it, and `passed` if it passed every gate.

    Raises:
        BrokenAdapter: the directory holds no reward model.
    """
    ensure_registered_model(registry.client, name(registry))
    sha256 = check(directory)
    known = _of_work(registry, run_key, role, sha256)
    if known is None:
        files = stored.Files(name(registry), "reward", "palate-reward-model", f"{run_key}:{role}", sha256)
        model_id = stored.put(
            registry,
            directory,
            files,
            check,
            run_id=run_id or None,
            metrics=metrics or {},
            params=params or {},
        )
        tags = {
            "role": role,
            "method": method,
            "base_id": base_id,
            "base_revision": base_revision,
            "dataset_version": dataset_version,
            "reward_sha256": sha256,
            "model_id": model_id,
            "run_id": run_id,
            "run_key": run_key,
            **gate_tags(verdicts),
        }
        retrying(
            lambda: registry.client.create_model_version(
                name(registry), f"models:/{model_id}", run_id=run_id or None, tags=tags, model_id=model_id
            )
        )
        known = _of_work(registry, run_key, role, sha256)
        assert known is not None
    _follow(registry)
    return known.version


def version_info(registry: Registry, wanted: str | int) -> RewardVersion:
    """Look a reward model up by its number, or as `newest` or `passed` (of those for training).

    Raises:
        UnknownVersion: names what there is.
    """
    known = versions(registry)
    text = str(wanted)
    if text.isascii() and text.isdigit():
        fitting = [each for each in known if each.version == int(text)]
    elif text in ("newest", "passed"):
        fitting = _candidates(known, text)
    else:
        fitting = []
    if not fitting:
        numbers = ", ".join(str(each.version) for each in known) or "none yet"
        raise UnknownVersion(
            f"{name(registry)} has no version {text!r}.",
            allowed=f"{numbers}; newest, passed (where there is one)",
            next_step="palate rewards",
        )
    return fitting[-1]


def download(registry: Registry, wanted: str | int) -> Path:
    """The files of a reward model as a directory that `reward_models.scorer.load` reads.

    Raises:
        UnknownVersion: there is no such version.
        BrokenAdapter: the files are not the registered ones.
    """
    found = version_info(registry, wanted)
    final = registry.adapters_dir / f"{name(registry)}-v{found.version}"
    return stored.materialise(registry, found.model_id, found.reward_sha256, final, check)


def check(directory: Path, expected_sha256: str | None = None) -> str:
    """Make sure that a directory holds a complete reward model; returns its digest.

    Raises:
        BrokenAdapter: says what is wrong.
    """
    if not (directory / ABOUT).is_file():
        raise BrokenAdapter("The directory holds no reward model.", got=directory, next_step="palate train")
    found = adapters.digest(directory)
    if expected_sha256 is not None and found != expected_sha256:
        raise BrokenAdapter(
            "The reward model is not the one that was registered: its sha256 differs.",
            got=f"{found} in {directory}",
            allowed=expected_sha256,
            next_step="palate train",
        )
    return found


def _follow(registry: Registry) -> None:
    """Let both aliases name what they should."""
    known = versions(registry)
    for alias in ("newest", "passed"):
        if fitting := _candidates(known, alias):
            version = str(fitting[-1].version)
            retrying(
                lambda alias=alias, version=version: registry.client.set_registered_model_alias(  # type: ignore[misc]
                    name(registry), alias, version
                )
            )


def _candidates(known: Sequence[RewardVersion], alias: str) -> list[RewardVersion]:
    return [
        each for each in known if each.role == "training" and (alias == "newest" or each.overall == "pass")
    ]


def _of_work(registry: Registry, run_key: str, role: Role, sha256: str) -> RewardVersion | None:
    wanted = (run_key, role, sha256)
    known = (each for each in versions(registry) if (each.run_key, each.role, each.reward_sha256) == wanted)
    return next(known, None)


def _info(version: Any) -> RewardVersion | None:
    """A version from its tags; None where somebody else registered it, or its tags were changed."""
    tags = dict(version.tags or {})
    try:
        gates = tuple(json.loads(tags[GATES_TAG]))
        return RewardVersion.model_validate(
            {
                **tags,
                "version": int(version.version),
                "gates": gates,
                "overall": overall(gates),
                "created_ms": int(version.creation_timestamp),
            }
        )
    except (KeyError, ValueError, TypeError, AttributeError, ValidationError):
        return None
