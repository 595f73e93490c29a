"""From a dataset to what was learned: reward models, then the policy update. Each step's output is kept on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palate.context import Context

if TYPE_CHECKING:
    import pyarrow as pa

    from evaluation.calibration import Calibration
    from evaluation.estimates import Estimate
    from pipelines.dataset import Dataset
    from reward_models.scorer import Scorer
    from training.dpo import OnStep, TrainResult


@dataclass(frozen=True)
class RewardOutcome:
    """The scorers and what they predict of people they never saw."""

    training: Scorer
    """Fitted on the split `train`."""
    evaluation: Scorer | None
    """Fitted on the split `evaluation`, apart from everything training sees; None if that split is too small."""
    learned: Mapping[str, Estimate]
    """Held-out figures of both scorers on the split `test`."""
    calibration: Calibration | None
    """Of the scorer that judges the candidate; of the training scorer where there is no other."""
    notes: tuple[str, ...] = ()


def fit_rewards(context: Context, dataset: Dataset, run_dir: Path) -> RewardOutcome:
    """Fit both scorers, or load them where this run already fitted them.

    Raises:
        NotEnoughVotes: the train split has too few paired rows.
    """
    from reward_models.scorer import NotEnoughVotes, refuse_shared_rows

    training = _scorer(context, dataset, run_dir / "reward-training", "train", "Reward model")
    notes: list[str] = []
    evaluation = None
    if context.project.train.method != "none":
        try:
            evaluation = _scorer(
                context, dataset, run_dir / "reward-evaluation", "evaluation", "Evaluation scorer"
            )
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
    learned, calibration = _heldout(context, training, dataset, "Reward model")
    if evaluation is not None:
        # The gates rest on this one, so its calibration is the one to show.
        judge_learned, calibration = _heldout(context, evaluation, dataset, "Evaluation scorer")
        learned = {**learned, **judge_learned}
    if calibration is None:
        notes.append("No held-out decided pair to check the reward models with.")
    return RewardOutcome(training, evaluation, learned, calibration, tuple(notes))


def _scorer(context: Context, dataset: Dataset, directory: Path, split: str, title: str) -> Scorer:
    from reward_models.scorer import load, method

    cache_dir = context.project.embeddings_dir
    if (directory / "reward_model.json").is_file():
        return load(directory, context.base.path, cache_dir)
    settings = context.project.reward
    module: Any = method(settings.method)
    with context.out.stage(title, "texts") as advance:
        scorer: Scorer = module.fit(
            getattr(settings, settings.method),
            dataset.rows(split),
            base=context.base.path,
            seed=context.project.seed,
            cache_dir=cache_dir,
            progress=advance,
        )
        scorer.save(directory)
        advance(1, 1, f"fitted on {len(scorer.trained_on)} pairs of the split `{split}`")
    return load(directory, context.base.path, cache_dir)


def _heldout(
    context: Context, scorer: Scorer, dataset: Dataset, who: str
) -> tuple[dict[str, Estimate], Calibration | None]:
    import numpy as np
    import pyarrow.compute as pc

    from evaluation.calibration import calibrate
    from evaluation.estimates import bootstrap_mean
    from reward_models.heldout import predict
    from reward_models.ties import TIE

    test = dataset.rows("test")
    test = test.filter(pc.is_valid(test["rejected"]))
    if test.num_rows == 0:
        return {}, None
    seed = context.project.seed
    heldout = predict(scorer, test)
    decided = heldout.decided
    learned = {
        f"{who}: log-loss over win, tie, loss": bootstrap_mean(heldout.log_loss, heldout.clusters, seed=seed),
        # What one would say knowing only how often people call it a tie.
        f"{who}: gain over knowing only the share of ties (nats)": bootstrap_mean(
            _prior_log_loss(dataset, heldout.outcome == TIE) - heldout.log_loss, heldout.clusters, seed=seed
        ),
    }
    if not decided.any():
        return learned, None
    learned[f"{who}: accuracy on decided pairs"] = bootstrap_mean(
        heldout.correct[decided], heldout.clusters[decided], seed=seed, bounds=(0, 1)
    )
    calibration = calibrate(
        heldout.p_first_given_decided[decided],
        outcome=(heldout.outcome[decided] == 0).astype(np.float64),
        clusters=heldout.clusters[decided],
        seed=seed,
    )
    return learned, calibration


def _prior_log_loss(dataset: Dataset, is_tie: Any) -> Any:
    """(N,) log-loss of the forecast "ties as often as in training, otherwise a coin"."""
    import numpy as np
    import pyarrow.compute as pc

    train = dataset.rows("train")
    margins = train.filter(pc.is_valid(train["rejected"]))["margin"].to_numpy()
    tie_share = float(np.clip((margins == 0).mean() if len(margins) else 0.0, 1e-3, 1 - 1e-3))
    return np.where(is_tie, -np.log(tie_share), -np.log((1 - tie_share) / 2))


def update(
    context: Context, dataset: Dataset, run_dir: Path, champion: Path, on_step: OnStep | None
) -> TrainResult:
    """Continue the champion's adapter on the dataset's train split.

    Raises:
        NotEnoughPreferences: too few usable pairs.
        TrainingError: training diverged.
    """
    from training import dpo

    rows: pa.Table = dataset.rows("train")
    with context.out.stage("DPO update", "steps") as advance:

        def step(done: int, total: int, metrics: Mapping[str, float]) -> None:
            advance(
                done, total, f"loss {metrics['loss']:.3f}, margin {metrics.get('rewards/margins', 0.0):.2f}"
            )
            if on_step:
                on_step(done, total, dict(metrics))

        result = dpo.train(
            context.project.train.dpo,
            base=context.base.path,
            base_id=context.base.id,
            champion=champion,
            preferences=rows,
            output=run_dir / "update",
            seed=context.project.seed,
            on_step=step,
        )
        pairs, steps = result.metrics["pairs"], result.metrics["steps"]
        advance(
            steps,
            steps,
            f"{pairs:.0f} pairs, {steps:.0f} steps, margin {result.metrics.get('margin', 0.0):.2f}",
        )
    return result
