"""What became of datasets: the runs that used them, and the models that came of those."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palate.config import Project
from palate.context import Context


@dataclass(frozen=True)
class RunUse:
    """A run of the loop on a dataset."""

    key: str
    run_id: str
    """MLflow run."""
    dataset_version: str
    created: str
    trained: bool
    """Whether it finished learning from the train split."""


@dataclass(frozen=True)
class ModelUse:
    """A registered model that learned from a dataset."""

    name: str
    version: int
    dataset_version: str
    run_key: str
    run_id: str
    gates: str
    aliases: tuple[str, ...]
    """Aliases that name it now, such as `champion`."""


def records(project: Project) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder of each run and its record, by the run's key. An unreadable record is left out."""
    for file in sorted((project.dir / "runs").glob("*/record.json")):
        with suppress(OSError, ValueError):
            yield file.parent, json.loads(file.read_text(encoding="utf-8"))


def runs(project: Project, versions: Collection[str] | None = None) -> list[RunUse]:
    """Runs that used these dataset versions (all when None), oldest first. An unreadable record is left out."""
    found = []
    for folder, record in records(project):
        try:
            run = RunUse(
                str(record["run_key"]),
                str(record["run_id"]),
                str(record["dataset_version"]),
                str(record["created"]),
                _trained(project, folder, record),
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if versions is None or run.dataset_version in versions:
            found.append(run)
    return sorted(found, key=lambda run: (run.created, run.key))


def _trained(project: Project, folder: Path, record: dict[str, Any]) -> bool:
    """Whether what the run learns is there whole: an updated policy or, where there is none, the reward model."""
    if (folder / "finished.json").is_file():
        return True
    learned = record.get("learn_key")
    return bool(learned) and (project.dir / "updates" / str(learned) / "update" / "result.json").is_file()


def models(context: Context, versions: Collection[str]) -> list[ModelUse]:
    """Registered models that learned from these dataset versions, oldest first.

    The registry is opened only where there may be one: connecting to it makes it.
    """
    project = context.project
    if not versions or (project.registry.tracking_uri is None and not (project.dir / "mlflow").is_dir()):
        return []
    from rollout.models import read_aliases
    from rollout.registry import versions as registered

    aliases: dict[int, list[str]] = {}
    for alias, number in sorted(read_aliases(context.registry).items()):
        aliases.setdefault(number, []).append(alias)
    return [
        ModelUse(
            model.name,
            model.version,
            model.dataset_version,
            model.run_key,
            model.run_id,
            model.overall,
            tuple(aliases.get(model.version, ())),
        )
        for model in registered(context.registry)
        if model.dataset_version in versions
    ]
