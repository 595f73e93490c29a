"""The policy update of a run: what its method learns from is gathered, and its steps are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from palate.context import Context
from palate.learn import RewardOutcome, heard, labels_of

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from palate.served import Look
    from pipelines.dataset import Dataset
    from training.result import TrainResult
    from training.update import Need, OnStep


class ChampionFiles(NamedTuple):
    """The champion's adapter."""

    dir: Path
    digest: str
    """As the registry knows it, and as interactions name who served them."""
    dataset: str | None = None
    """Version of the dataset that it was trained on; None of the first."""


def _served(context: Context, dataset: Dataset, run_dir: Path, needs: frozenset[Need]) -> Look:
    """What was served in the split `train`, where a method learns from that; nobody who acts together is heard."""
    from feedback.served import SERVED
    from palate.served import Look, look

    if "served" not in needs:
        return Look(SERVED.empty_table(), {})
    silenced = labels_of(run_dir / "reward-training").get("brigade") or ()
    return look(context, dataset, "train", silenced=list(silenced))


def _learned_until(context: Context, version: str | None) -> datetime | None:
    """Time of the newest signal that a model trained on that dataset has seen; None where the dataset is gone."""
    import pyarrow.compute as pc

    from pipelines.dataset import load as load_dataset
    from pipelines.errors import DatasetError

    if not version:
        return None
    try:
        rows = load_dataset(context.project.dir, version).rows("train")
    except DatasetError:
        return None
    newest: datetime | None = pc.max(rows["event_time"]).as_py()
    return newest


def update(
    context: Context,
    dataset: Dataset,
    run_dir: Path,
    champion: ChampionFiles,
    rewards: RewardOutcome,
    on_step: OnStep | None,
    on_samples: Callable[[int, list[dict[str, Any]]], None] | None = None,
) -> TrainResult:
    """Continue the champion's adapter on the dataset's train split, by the method of the settings.

    Raises:
        NotEnoughPreferences: too few usable rows.
        TrainingError: training diverged.
    """
    from training import launch
    from training.update import Champion, Data, Run, method

    project = context.project
    how = method(project.train.method)
    rows: pa.Table = heard(run_dir / "reward-training", dataset.rows("train"))
    served = _served(context, dataset, run_dir, how.NEEDS)
    data = Data(rows, served.table, _learned_until(context, champion.dataset))
    with context.out.stage(f"{project.train.method} update", "steps") as advance:

        def step(done: int, total: int, metrics: Mapping[str, float]) -> None:
            advance(done, total, _told(metrics))
            if on_step:
                on_step(done, total, dict(metrics))

        config = getattr(project.train, project.train.method)
        start = Champion(context.base.path, context.base.id, champion.dir, champion.digest)
        run = Run(
            run_dir / "update",
            project.seed,
            cache=project.embeddings_dir.with_name("logprobs"),
            heldout=rewards.evaluation,
            on_step=step,
            on_samples=on_samples,
            hardware=project.train.hardware,
        )
        if run.hardware.processes > 1:
            result = launch.train(project.train.method, config, start, data, run)
        else:
            result = how.train(config, start, data, rewards.training, run)
        steps = result.metrics["steps"]
        advance(steps, steps, _told(result.metrics))
    if "preferences" in how.NEEDS:
        return result  # there, what was served only completes the rows
    unread = {f"not_read_{reason}": count for reason, count in served.left_out.items()}
    return replace(result, left_out={**result.left_out, **unread})


_TOLD = {
    "pairs": ".0f",
    "rows": ".0f",
    "loss": ".3f",
    "margin": ".2f",
    "reward": ".2f",
    "kl": ".3f",
    "tokens_per_s": ".0f",
}
"""Figures of a step that are shown while it runs, where the method has them."""


def _told(metrics: Mapping[str, float]) -> str:
    names = {"tokens_per_s": "tokens/s"}
    return ", ".join(
        f"{names.get(name, name)} {metrics[name]:{form}}" for name, form in _TOLD.items() if name in metrics
    )
