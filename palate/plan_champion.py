"""The champion an update would start from, looked up without changing anything.

Training makes the untouched base model the first champion, opens the registry, and keeps what it downloads. A plan does
none of this: where there is no registry yet it makes the first champion's adapter in a folder that is thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from palate.context import Context
from palate.job import OtherBase

if TYPE_CHECKING:
    from rollout.connection import Registry
    from training.update import Champion


@dataclass(frozen=True)
class Start:
    """Where an update would start."""

    champion: Champion
    version: int | None
    """In the registry; None of the untouched base model, which nobody has registered yet."""
    dataset: str | None
    """Version of the dataset that it was trained on."""


def registry_of(context: Context) -> Registry | None:
    """The registry, if it was ever used."""
    project = context.project
    if project.registry.tracking_uri is None and not (project.dir / "mlflow" / "mlflow.db").is_file():
        return None
    return context.registry


def start(context: Context, registry: Registry | None, folder: Path) -> Start:
    """The champion's files.

    Args:
        context: the project.
        registry: from `registry_of`.
        folder: where files may be put; thrown away afterwards.

    Raises:
        OtherBase: the champion belongs to another base model.
    """
    from rollout.log import read_state
    from rollout.models import download, version_info
    from training.adapter import new_adapter
    from training.update import Champion

    base = context.base
    number = None if registry is None else read_state(registry).champion
    if registry is None or number is None:
        lora, seed = context.project.model.lora, context.project.seed
        adapter = new_adapter(base.path, base.id, folder / "first", lora, seed)
        return Start(Champion(base.path, base.id, adapter), None, None)
    found = version_info(registry, number)
    if (found.base_id, found.base_revision) != (base.id, base.revision):
        raise OtherBase(
            "The champion belongs to another base model: its adapter would be noise on this one.",
            got=f"{base.id} @ {base.revision}",
            allowed=f"{found.base_id} @ {found.base_revision}",
            next_step="restore [model] base, or start with another [workspace] dir and [registry] name",
        )
    kept = (registry.adapters_dir / f"{registry.name}-v{number}").is_dir()
    adapter = download(registry, number, None if kept else folder)
    return Start(
        Champion(base.path, base.id, adapter, found.adapter_sha256), number, found.dataset_version or None
    )
