"""One piece of work: named by all it depends on, so that it is found again after a crash and never done twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from feedback.errors import PalateError
from palate.context import Context, learn_key, quiet_libraries, record, run_key, write_json

if TYPE_CHECKING:
    from pipelines.dataset import Dataset
    from rollout.versions import ModelVersionInfo


class OtherBase(PalateError, ValueError):
    """The project's base model is not the champion's."""

    exit_code = 2


class NothingNew(PalateError, RuntimeError):
    """The same data, settings and champion were already worked through."""

    exit_code = 5


@dataclass(frozen=True)
class Job:
    """One piece of work: a dataset, the champion it starts from, and where its output is kept."""

    context: Context
    dataset: Dataset
    champion: ModelVersionInfo
    learned: str
    """Key of what is learned: reward models and adapter."""
    key: str
    """Key of the whole: what is learned and how it is judged."""
    run_id: str

    @property
    def learn_dir(self) -> Path:
        """Directory of reward models, checkpoints and adapter."""
        return self.context.project.dir / "updates" / self.learned

    @property
    def dir(self) -> Path:
        """Directory of the record, the compared replies and the report."""
        return self.context.project.dir / "runs" / self.key

    @property
    def champion_dir(self) -> Path:
        """The champion's adapter, checked against its digest."""
        from rollout.registry import download

        return download(self.context.registry, self.champion.version)

    @property
    def lineage(self) -> dict[str, str]:
        """What the result rests on, in words."""
        return {
            "dataset": self.dataset.version,
            "base": f"{self.context.base.id} @ {self.context.base.revision}",
            "champion": f"v{self.champion.version}, sha256 {self.champion.adapter_sha256[:16]}",
            "run": self.key,
            "MLflow run": self.run_id,
            "seed": str(self.context.project.seed),
        }


def open_job(context: Context, dataset: Dataset) -> Job:
    """Name the work, find or open its MLflow run, and write its record."""
    from palate import tracking
    from rollout.registry import version_info, versions

    quiet_libraries()
    project, registry = context.project, context.registry
    champion = version_info(registry, context.first_champion())
    if (champion.base_id, champion.base_revision) != (context.base.id, context.base.revision):
        raise OtherBase(
            "The champion belongs to another base model: its adapter would be noise on this one.",
            got=f"{context.base.id} @ {context.base.revision}",
            allowed=f"{champion.base_id} @ {champion.base_revision}",
            next_step="restore [model] base, or start with another [workspace] dir and [registry] name",
        )
    learned = learn_key(context, dataset.version, champion.adapter_sha256)
    key = run_key(context, learned)
    known = next((v for v in versions(registry) if v.run_key == key), None)
    if known is not None and known.run_id:
        # Killed between registering and closing, the run would look unfinished for ever.
        tracking.close_run(registry, known.run_id)
    if known is not None or (project.dir / "runs" / key / "finished.json").is_file():
        what = f"v{known.version}" if known else f"run {key}"
        raise NothingNew(
            "Nothing new: this data, these settings and this champion gave a result before.",
            got=f"{what}, dataset {dataset.version}",
            next_step="palate status",
        )
    tags = {
        "palate.dataset_version": dataset.version,
        "palate.champion": str(champion.version),
        "palate.simulated_users": str(project.simulated).lower(),
    }
    run_id = tracking.open_run(registry, key, f"{project.name}-{key[:6]}", tags)
    job = Job(context, dataset, champion, learned, key, run_id)
    about = record(
        context,
        run_key=key,
        run_id=run_id,
        learn_key=learned,
        dataset_version=dataset.version,
        champion=champion.version,
    )
    write_json(job.dir / "record.json", about)
    tracking.log_settings(registry, run_id, about, dataset.manifest)
    return job


@contextmanager
def run_status(job: Job) -> Iterator[None]:
    """Close the MLflow run as what it became."""
    from palate import tracking

    try:
        yield
    except PalateError:
        tracking.close_run(job.context.registry, job.run_id, "FAILED")
        raise
    tracking.close_run(job.context.registry, job.run_id)
