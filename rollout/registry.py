"""The registry's front: open it, give it a first champion, register candidates, look versions up.

Nothing here but the first champion makes a model serve; that takes a recorded decision (`rollout.promote`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rollout.aliases import reconcile, set_candidate_alias, settle
from rollout.connection import Registry, RegistryConfig, connect
from rollout.decide import decide
from rollout.errors import PromotionConflict
from rollout.log import read_state
from rollout.models import download, register, version_info, versions
from rollout.versions import ModelVersionInfo

__all__ = [
    "ModelVersionInfo",
    "Registry",
    "RegistryConfig",
    "connect",
    "download",
    "ensure_base_champion",
    "register_candidate",
    "version_info",
    "versions",
]


def ensure_base_champion(
    registry: Registry,
    adapter_dir: Path,
    base_id: str,
    base_revision: str,
    run_id: str | None = None,
    *,
    actor: str = "palate",
    now: datetime | None = None,
) -> int:
    """Make the untouched base model the first champion, if nothing serves yet.

    Idempotent, and safe when several processes do it at once: all return the same version.

    Args:
        registry: where to.
        adapter_dir: an adapter that changes nothing, so that the base is served like every later version.
        base_id: the base model, as the project names it.
        base_revision: its revision.
        run_id: MLflow run that prepared it, if any.
        actor: who did.
        now: time of the decision; None is the clock's.

    Returns:
        The champion's version, new or old.
    """
    state = reconcile(registry).state
    if state.champion is not None:
        return state.champion
    version = register(
        registry,
        adapter_dir=adapter_dir,
        role="base",
        base_id=base_id,
        base_revision=base_revision,
        run_id=run_id or "",
        run_key=f"base:{base_id}@{base_revision}",
    )
    try:
        decide(
            registry,
            state,
            action="found",
            target=version_info(registry, version),
            actor=actor,
            reason="the base model is the first champion",
            now=now,
        )
    except PromotionConflict:
        champion = settle(registry, read_state(registry))[0].champion
        if champion is None:
            raise
        return champion
    return version


def register_candidate(
    registry: Registry,
    *,
    adapter_dir: Path,
    base_id: str,
    base_revision: str,
    run_id: str,
    dataset_version: str,
    metrics: Mapping[str, float],
    params: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, Any]],
    tags: Mapping[str, str],
    run_key: str,
    compared_with: int | None = None,
) -> int:
    """Register a trained adapter as the candidate.

    Idempotent: killed anywhere and called again, there is one version.

    Args:
        registry: where to.
        adapter_dir: PEFT directory.
        base_id: model the adapter belongs to, as the project names it.
        base_revision: revision of that model.
        run_id: MLflow run that trained and evaluated it.
        dataset_version: version of the preference data.
        metrics: numbers to show beside the model.
        params: settings to show beside the model.
        verdicts: one mapping a gate, with at least `gate` and `verdict` (pass, fail, insufficient_data).
        tags: anything else worth noting.
        run_key: names this piece of work; the same key gives the same version.
        compared_with: version of the champion that the gates compared with; promotion is refused once
            another one serves.

    Returns:
        The version's number. The alias `candidate` names it, unless a newer one was registered or decided.

    Raises:
        BrokenAdapter: the directory cannot be loaded.
    """
    version = register(
        registry,
        adapter_dir=adapter_dir,
        role="candidate",
        base_id=base_id,
        base_revision=base_revision,
        run_id=run_id,
        run_key=run_key,
        dataset_version=dataset_version,
        compared_with=compared_with,
        verdicts=verdicts,
        extra=tags,
        metrics=metrics,
        params=params,
    )
    set_candidate_alias(registry)
    return version
