"""The personal reward model of a project, as of now: fitted by the newest run, and told what came in since."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from feedback.errors import PalateError
from palate import lineage

if TYPE_CHECKING:
    import pyarrow as pa

    from palate.config import Project
    from palate.context import Context
    from reward_models.personal import Personal


class NoPersonalModel(PalateError, RuntimeError):
    """No run of this project has fitted a personal reward model."""

    exit_code = 4


@dataclass(frozen=True)
class Beliefs:
    """What is believed of this project's users."""

    model: Personal
    """The personal model itself: what a run takes out for length, or divides by, is not in it, as beliefs are learned
    from votes in the model's own units."""
    run: str
    """Key of the run that fitted it."""
    dataset: str
    """Version of the newest dataset, whose rows it has learned."""
    rows: pa.Table
    """The rows that it may learn from: the split `train`."""


def newest(context: Context) -> Beliefs:
    """The newest run's training scorer, after the explicit rows that came since.

    Rows of the splits `evaluation` and `test` are never learned, whoever asks. What implicit signals are worth, and who
    acts together, is only found by a fit: rows of such rules, and of people whom it did not hear, wait for the next.

    Raises:
        NoPersonalModel: there is none.
    """
    from pipelines import dataset
    from reward_models.personal import load
    from reward_models.scorer import inner

    folder, run = _folder(context.project)
    found = dataset.load(context.project.dir, None)
    rows = found.rows("train")
    model = load(inner(folder), context.base.path, context.project.embeddings_dir)
    return Beliefs(model.learn(_heard(context, folder, rows)), run, found.version, rows)


def _heard(context: Context, folder: Path, rows: pa.Table) -> pa.Table:
    """The rows that may be learned one by one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from palate.learn import heard

    rows = heard(folder, rows)
    implicit = pa.array(context.project.reward.labels.implicit.rules, pa.string())
    return rows.filter(pc.invert(pc.is_in(rows["rule"], implicit)))


def _folder(project: Project) -> tuple[Path, str]:
    """(folder of the newest personal model, key of its run)."""
    from reward_models.scorer import RewardModelError, inner, method_in

    made = [record for _, record in lineage.records(project) if isinstance(record, dict)]
    for record in sorted(made, key=lambda each: str(each.get("created")), reverse=True):
        folder = project.dir / "updates" / str(record.get("learn_key")) / "reward-training"
        with suppress(RewardModelError):
            if method_in(inner(folder)) == "personal":
                return folder, str(record.get("run_key"))
    raise NoPersonalModel(
        "No run of this project has fitted a personal reward model.",
        got=f"[reward] method = {project.reward.method!r}",
        allowed='[reward] method = "personal"',
        next_step="palate train --set reward.method=personal",
    )
