"""From a dataset to reward models and what they predict of people they never saw. Each is kept on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from palate.context import Context, write_json

if TYPE_CHECKING:
    import pyarrow as pa

    from evaluation.calibration import Calibration
    from evaluation.estimates import Estimate
    from evaluation.k_shot import KShot
    from palate.reward_case import JudgedReward
    from pipelines.dataset import Dataset
    from reward_models.scorer import Scorer
    from reward_models.temperature import Temperature
    from rollout.reward_registry import Role

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
    from reward_models.scorer import INNER, load
    from reward_models.temperature import write as write_temperature
    from rollout.versions import plain

    cache_dir, directory = context.project.embeddings_dir, run_dir / f"reward-{role}"
    if (kept := _kept(context, directory, title)) is not None:
        return kept
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
        scorer = _kept(context, inner, title)
        if scorer is None:
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


def _kept(context: Context, directory: Path, title: str) -> Scorer | None:
    """The reward model that this run fitted before; None where there is none, or none that can be read."""
    from reward_models.model_files import ABOUT
    from reward_models.scorer import RewardModelError, load

    if not (directory / ABOUT).is_file():
        return None
    try:
        return load(directory, context.base.path, context.project.embeddings_dir)
    except (RewardModelError, OSError, ValueError, KeyError, BadZipFile) as error:
        # Everything here was fitted from the dataset, so what cannot be read is fitted again.
        context.out.say(f"{title}: {directory} cannot be read ({type(error).__name__}) and is fitted again.")
        shutil.rmtree(directory)
        return None


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
