"""From a dataset to what was learned: reward models, then the policy update. Each step's output is kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from palate.context import Context, write_json

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from evaluation.calibration import Calibration
    from evaluation.estimates import Estimate
    from evaluation.k_shot import KShot
    from palate.reward_case import JudgedReward
    from pipelines.dataset import Dataset
    from reward_models.scorer import Scorer
    from reward_models.temperature import Temperature
    from rollout.reward_registry import Role
    from training.result import TrainResult
    from training.update import Need, OnStep

_FITTED_TWICE = ("preference_lm", "ensemble")
"""Reward models whose fit is dear: for a temperature one fold of people is held out once, not each in turn."""


@dataclass(frozen=True)
class RewardOutcome:
    """The scorers and what they predict of people they never saw."""

    training: Scorer | None
    """Fitted on the split `train`; None if that has too few pairs and the update needs no scorer."""
    evaluation: Scorer | None
    """Fitted on the split `evaluation`, apart from everything training sees; None if that split is too small."""
    learned: Mapping[str, Estimate]
    """Held-out figures of both scorers on the split `test`."""
    calibration: Calibration | None
    """Of the scorer that judges the candidate; of the training scorer where there is no other."""
    judged: Mapping[Role, JudgedReward]
    """By what the scorer is for."""
    notes: tuple[str, ...] = ()

    @property
    def k_shot(self) -> dict[str, KShot]:
        """How well each scorer knows people it never met after k of their votes, by the name a report gives it."""
        names: dict[Role, str] = {"training": "Reward model", "evaluation": "Evaluation scorer"}
        return {names[role]: one.case.k_shot for role, one in self.judged.items() if one.case is not None}


def fit_rewards(context: Context, dataset: Dataset, run_dir: Path) -> RewardOutcome:
    """Fit both scorers, or load them where this run already fitted them, and judge them on held-out people.

    Raises:
        NotEnoughVotes: the train split has too few paired rows, and what is asked for needs a reward model.
    """
    from palate import reward_case
    from reward_models.scorer import NotEnoughVotes, refuse_shared_rows

    notes: list[str] = []
    training = evaluation = None
    try:
        training = _scorer(context, dataset, run_dir, "training", "train", "Reward model")
    except NotEnoughVotes as error:
        if needs_scorer(context.project.train.method):
            raise
        notes.append(
            f"No reward model: {error.got} paired rows in the split `train`, {error.allowed}. "
            f"The method {context.project.train.method} needs none."
        )
        context.out.say(notes[-1])
    if context.project.train.method != "none":
        try:
            evaluation = _scorer(context, dataset, run_dir, "evaluation", "evaluation", "Evaluation scorer")
            if training is not None:
                refuse_shared_rows(training, evaluation)
        except NotEnoughVotes as error:
            notes.append(
                f"No evaluation scorer: {error.got} paired rows in the split `evaluation`, {error.allowed}."
            )
            # Said before the update, which may take hours, and not only in the report after it.
            context.out.say(
                f"{notes[-1]} The update is trained all the same, but its replies cannot be judged. "
                "How much feedback is enough: docs/events.md, What is held out."
            )
    judged: dict[Role, JudgedReward] = {}
    learned: dict[str, Estimate] = {}
    calibration = None
    scorers: tuple[tuple[Role, Scorer | None, str], ...] = (
        ("training", training, "Reward model"), ("evaluation", evaluation, "Evaluation scorer"),
    )  # fmt: skip
    for role, scorer, who in scorers:
        if scorer is None:
            continue
        found = reward_case.judge(context, dataset, scorer, role, run_dir)
        judged[role] = found
        notes += found.notes(who)
        if found.case is not None:
            learned |= reward_case.figures(found.case, who)
            # The gates rest on the one that judges, so its calibration is the one to show.
            calibration = found.case.calibration or calibration
    if calibration is None:
        notes.append("No held-out decided pair to check the reward models with.")
    return RewardOutcome(training, evaluation, learned, calibration, judged, tuple(notes))


def needs_scorer(method: str) -> bool:
    """Whether a training method learns from a reward model; `none` asks for nothing else."""
    from training.update import method as named
    from training.update import methods

    return method == "none" or method not in methods() or "scorer" in named(method).NEEDS


def labels_file(reward_model: Path) -> Path:
    """Where it says what the rows of a reward model were worth: beside its directory."""
    return reward_model.with_name(f"{reward_model.name}-labels.json")


def labels_of(reward_model: Path) -> dict[str, Any]:
    """What the rows of a reward model were worth; nothing where it was fitted before that was kept."""
    with suppress(OSError, ValueError):
        return dict(json.loads(labels_file(reward_model).read_text(encoding="utf-8")))
    return {}


def heard(reward_model: Path, rows: pa.Table) -> pa.Table:
    """Rows without those of people who act together, as the fit of that reward model found them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    silenced = list(labels_of(reward_model).get("brigade") or ())
    return rows.filter(pc.invert(pc.is_in(rows["user_id"], pa.array(silenced, pa.string()))))


def _scorer(context: Context, dataset: Dataset, run_dir: Path, role: Role, split: str, title: str) -> Scorer:
    from palate.exposure import served
    from reward_models.labels import honest
    from reward_models.model_files import ABOUT
    from reward_models.scorer import INNER, load
    from reward_models.temperature import write as write_temperature
    from rollout.versions import plain

    cache_dir, directory = context.project.embeddings_dir, run_dir / f"reward-{role}"
    if (directory / ABOUT).is_file():
        return load(directory, context.base.path, cache_dir)
    settings = context.project.reward
    tempered = settings.temperature != "off"
    inner = directory / INNER if tempered else directory
    with context.out.stage(title, "texts") as advance:
        exposure = served(context, dataset, split) if settings.labels.who_rates else None
        labels = honest(dataset.rows(split), settings.labels, exposure=exposure, seed=context.project.seed)
        about = {**labels.to_dict(), "notes": labels.notes}
        write_json(labels_file(directory), plain(about))
        if labels.weightless:  # said before a fit that may refuse for want of rows
            for note in labels.notes:
                context.out.say(f"{title}: {note}")
        if not (inner / ABOUT).is_file():
            _fitted(context, labels.rows, advance).save(inner)
        scorer = load(inner, context.base.path, cache_dir)
        advance(1, 1, f"fitted on {len(scorer.trained_on)} pairs of the split `{split}`")
    if not tempered:
        return scorer
    del scorer  # while others are fitted, this one need not lie in memory
    found = _temperature(context, dataset, labels.rows, title)
    about |= {"notes": [*labels.notes, found.sentence], "temperature": vars(found)}
    write_json(labels_file(directory), plain(about))
    write_temperature(found, directory)
    return load(directory, context.base.path, cache_dir)


def _fitted(context: Context, rows: pa.Table, progress: Callable[[int, int], None] | None) -> Scorer:
    """The reward model of the settings, fitted on rows, less what it gives for length where that is asked."""
    from reward_models.length_bias import length_controlled
    from reward_models.scorer import method

    settings = context.project.reward
    module: Any = method(settings.method)
    scorer: Scorer = module.fit(
        getattr(settings, settings.method),
        rows,
        base=context.base.path,
        seed=context.project.seed,
        cache_dir=context.project.embeddings_dir,
        progress=progress,
    )
    if settings.length_control == "off":
        return scorer
    return length_controlled(scorer, rows, settings.length_control)


def _temperature(context: Context, dataset: Dataset, rows: pa.Table, title: str) -> Temperature:
    """What explicit votes ask for that fits without them predict; never votes of people who judge."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from reward_models import tempering

    settings, split = context.project.reward, context.project.prefer.split
    once = settings.method in _FITTED_TWICE
    implicit = pa.array(settings.labels.implicit.rules, pa.string())
    # Where prompts alone are held out, people of the split `test` vote here, too.
    judges = pc.drop_null(pc.unique(dataset.rows("test")["user_id"]))
    told = ~np.asarray(
        pc.or_(pc.is_in(rows["rule"], implicit), pc.is_in(rows["user_id"], judges)), dtype=bool
    )
    with context.out.stage(f"{title}: temperature", "fits") as advance:
        found = tempering.fit(
            lambda part: _fitted(context, part, advance if once else None),
            rows,
            settings.tempering,
            told=told,
            prompts_apart=split.test_prompts + split.evaluation_prompts > 0,
            seed=context.project.seed,
            once=once,
            progress=None if once else advance,
        )
        advance(1, 1, f"{found.tau:.2f}")
    return found


class ChampionFiles(NamedTuple):
    """The champion's adapter."""

    dir: Path
    digest: str
    """As the registry knows it, and as interactions name who served them."""
    dataset: str | None = None
    """Version of the dataset that it was trained on; None of the first."""


def _served(context: Context, dataset: Dataset, run_dir: Path, needs: frozenset[Need]) -> pa.Table:
    """What was served in the split `train`, where a method learns from that; nobody who acts together is heard."""
    from feedback.served import SERVED

    if "served" not in needs:
        return SERVED.empty_table()
    from palate.served import served

    silenced = labels_of(run_dir / "reward-training").get("brigade") or ()
    return served(context, dataset, "train", silenced=list(silenced))


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
) -> TrainResult:
    """Continue the champion's adapter on the dataset's train split, by the method of the settings.

    Raises:
        NotEnoughPreferences: too few usable rows.
        TrainingError: training diverged.
    """
    from training.update import Champion, Data, Run, method

    project = context.project
    how = method(project.train.method)
    rows: pa.Table = heard(run_dir / "reward-training", dataset.rows("train"))
    data = Data(
        rows, _served(context, dataset, run_dir, how.NEEDS), _learned_until(context, champion.dataset)
    )
    with context.out.stage(f"{project.train.method} update", "steps") as advance:

        def step(done: int, total: int, metrics: Mapping[str, float]) -> None:
            advance(done, total, _told(metrics))
            if on_step:
                on_step(done, total, dict(metrics))

        result = how.train(
            getattr(project.train, project.train.method),
            Champion(context.base.path, context.base.id, champion.dir, champion.digest),
            data,
            rewards.training,
            Run(
                run_dir / "update",
                project.seed,
                cache=project.embeddings_dir.with_name("logprobs"),
                heldout=rewards.evaluation,
                on_step=step,
            ),
        )
        steps = result.metrics["steps"]
        advance(steps, steps, _told(result.metrics))
    return result


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
