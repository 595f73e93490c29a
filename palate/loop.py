"""The loop: ingest, build, learn, judge, register. Every step keeps its output, so a killed run goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedback.errors import PalateError
from palate import config as config_module
from palate import validation
from palate.commands.options import with_options
from palate.context import Context, write_json
from palate.job import Job, open_job, run_status
from palate.wording import counted

if TYPE_CHECKING:
    from evaluation.estimates import Estimate
    from evaluation.verdicts import Verdict
    from palate.judge import Judged
    from palate.learn import RewardOutcome
    from pipelines.dataset import Dataset
    from pipelines.ingest import IngestSummary
    from pipelines.quality import Arrivals
    from rollout.versions import ModelVersionInfo
    from training.result import TrainResult

DONE, GATE_FAILED, INSUFFICIENT, NOTHING_NEW = 0, 3, 4, 5
# Given the compared replies, the true satisfaction of simulated users with each model.
Satisfaction = Callable[[Any], "Mapping[str, Estimate]"]


class NothingTrained(PalateError, RuntimeError):
    """`evaluate` was called before `train`."""


class NoInput(PalateError, ValueError):
    """The project names no data to read."""

    exit_code = 2


@dataclass(frozen=True)
class Outcome:
    """What one turn of the loop led to."""

    exit_code: int
    run_key: str
    run_id: str
    dataset: Dataset
    champion: ModelVersionInfo
    candidate: int | None
    verdicts: list[Verdict]
    judged: Judged | None
    rewards: RewardOutcome
    trained: TrainResult | None
    satisfaction: Mapping[str, Estimate] = field(default_factory=dict)
    report: Path | None = None


def ingest_if_named(context: Context, given: Path | None) -> None:
    """Read what is new, where the project names a source; a workspace may also have been filled by `ingest`.

    Raises:
        NoInput: no source is named and nothing was ever ingested.
    """
    from pipelines import events_table
    from pipelines.workspace import Layout

    if config_module.source_path(context.project, given) is None and events_table.exists(
        Layout(context.project.dir)
    ):
        return
    if not ingest(context, given).partitions:
        context.out.say("The folder has no *.jsonl file yet.")


def ingest(context: Context, given: Path | None, source: str | None = None) -> IngestSummary:
    """Read what is new in the project's source.

    Raises:
        NoInput: neither `--input` nor `[source] path` names data.
    """
    from pipelines.ingest import ingest as run

    project = context.project
    path = config_module.source_place(project, given)
    if path is None:
        raise NoInput(
            "There is nothing to ingest.",
            next_step="name a file: palate ingest events.jsonl, or set [source] path",
        )
    with context.out.stage("Ingest and validate", "partitions") as advance:
        summary = run(
            path,
            source=source or project.source.name,
            source_config=project.source.options,
            workspace=project.dir,
            config=project.ingest,
            runner=project.pipeline,
            progress=lambda _what, done, total: advance(done, total),
        )
        bad = sum(summary.dead_letters.values())
        advance(1, 1, f"{counted(summary.received, 'event')}, {counted(bad, 'dead letter')}")
    return summary


def build(context: Context) -> Dataset:
    """Make the dataset of everything ingested so far."""
    from pipelines.build import BuildConfig
    from pipelines.build import build as run

    with context.out.stage("Build preferences", "steps") as advance:
        dataset = run(
            workspace=context.project.dir,
            config=BuildConfig(prefer=context.project.prefer),
            runner=context.project.pipeline,
            progress=lambda _what, done, total: advance(done, total),
        )
        rows = dataset.manifest["rows"]
        advance(
            1,
            1,
            f"{counted(rows, 'row')}, version {dataset.version}{' (unchanged)' if dataset.reused else ''}",
        )
    return dataset


def work(
    context: Context,
    dataset: Dataset,
    satisfaction: Satisfaction | None = None,
    arrived: Arrivals | None = None,
) -> Outcome:
    """Check a dataset, learn from it, judge the candidate and register it.

    Args:
        context: the project.
        dataset: what to learn from.
        satisfaction: tells the true satisfaction of simulated users.
        arrived: what `validation.check_arrivals` found, to be shown beside what is found here.

    Raises:
        BadData: the dataset breaks an expectation; nothing was trained (exit code 4).
        NothingNew: this exact piece of work is already registered.
        NotEnoughPreferences, NotEnoughVotes: too little data (exit code 4).
    """
    page = validation.check_dataset(context, dataset, arrived)
    job = open_job(context, dataset)
    with run_status(job):
        validation.log(context, job.run_id, page)
        rewards, trained = _learn(job)
        if trained is None:
            return _report_without_candidate(job, rewards)
        return _judge_and_register(job, rewards, trained, satisfaction)


def train(context: Context, version: str | None) -> Outcome:
    """Fit the reward models and update the policy; nothing is judged yet."""
    dataset = _dataset(context, version)
    page = validation.check_dataset(context, dataset)
    job = open_job(context, dataset)
    with run_status(job):
        validation.log(context, job.run_id, page)
        rewards, trained = _learn(job)
    return Outcome(DONE, job.key, job.run_id, job.dataset, job.champion, None, [], None, rewards, trained)


def evaluate(context: Context, version: str | None) -> Outcome:
    """Judge and register what `train` made of this dataset.

    Raises:
        NothingTrained: there is no finished update for this dataset, settings and champion.
    """
    job = open_job(context, _dataset(context, version))
    with run_status(job):
        if not (job.learn_dir / "update" / "result.json").is_file():
            raise NothingTrained(
                "No trained adapter for this dataset, these settings and this champion.",
                got=f"dataset {job.dataset.version}, champion v{job.champion.version}",
                next_step="palate train",
            )
        rewards, trained = _learn(job)
        assert trained is not None
        return _judge_and_register(job, rewards, trained, None)


def _dataset(context: Context, version: str | None) -> Dataset:
    from pipelines.dataset import load

    return load(context.project.dir, version)


def _learn(job: Job) -> tuple[RewardOutcome, TrainResult | None]:
    from palate import learn, policy_update, reward_case, tracking

    registry = job.context.registry
    rewards = learn.fit_rewards(job.context, job.dataset, job.learn_dir)
    reward_case.register(job, rewards.judged)
    if rewards.training is not None:
        tracking.log_directory(registry, job.run_id, job.learn_dir / "reward-training", "reward_model")
    if job.context.project.train.method == "none":
        return rewards, None

    def log(step: int, _total: int, metrics: Mapping[str, float]) -> None:
        tracking.log_step(registry, job.run_id, step, metrics)

    champion = policy_update.ChampionFiles(
        job.champion_dir, job.champion.adapter_sha256, job.champion.dataset_version
    )

    def samples(_step: int, rows: list[dict[str, Any]]) -> None:
        tracking.log_samples(registry, job.run_id, rows)

    return rewards, policy_update.update(
        job.context, job.dataset, job.learn_dir, champion, rewards, log, samples
    )


def _judge_and_register(
    job: Job, rewards: RewardOutcome, trained: TrainResult, satisfaction: Satisfaction | None
) -> Outcome:
    from evaluation.mlflow_log import case_metrics
    from evaluation.verdicts import overall
    from palate import judge
    from rollout.adapters import digest
    from rollout.registry import register_candidate

    context = job.context
    judged = judge.judge(context, job.dataset, rewards, job.champion_dir, trained.adapter, job.dir)
    felt = satisfaction(judged.rows) if satisfaction and judged.rows.num_rows else {}
    case = judge.make_case(
        context,
        job.dataset,
        {**job.lineage, "candidate sha256": digest(trained.adapter)},
        comparison=judged.comparison,
        rows=judged.rows,
        verdicts=judged.verdicts,
        learned={**rewards.learned, **judged.learned},
        calibration=rewards.calibration,
        k_shot=rewards.k_shot,
        training_curve=trained.curve,
        satisfaction=felt or None,
        notes=[*rewards.notes, *judged.notes, *_left_out(trained)],
        next_command=with_options(_NEXT_COMMAND[overall(judged.verdicts)]),
    )
    report = judge.write_report(context, case, job.run_id, job.dir)
    with context.out.stage("Register candidate") as advance:
        version = register_candidate(
            context.registry,
            adapter_dir=trained.adapter,
            base_id=context.base.id,
            base_revision=context.base.revision,
            run_id=job.run_id,
            dataset_version=job.dataset.version,
            metrics=case_metrics(case),
            params=getattr(context.project.train, context.project.train.method).model_dump(mode="json"),
            verdicts=[v.to_dict() for v in judged.verdicts],
            tags={
                "simulated_users": str(context.project.simulated).lower(),
                "seed": str(context.project.seed),
            },
            run_key=job.key,
            compared_with=job.champion.version,
        )
        advance(1, 1, f"{context.registry.name} v{version}, alias candidate")
    return Outcome(
        {"pass": DONE, "fail": GATE_FAILED, "insufficient_data": INSUFFICIENT}[overall(judged.verdicts)],
        job.key,
        job.run_id,
        job.dataset,
        job.champion,
        version,
        judged.verdicts,
        judged,
        rewards,
        trained,
        felt,
        report,
    )


def _report_without_candidate(job: Job, rewards: RewardOutcome) -> Outcome:
    from palate import judge

    case = judge.make_case(
        job.context,
        job.dataset,
        job.lineage,
        learned=rewards.learned,
        calibration=rewards.calibration,
        k_shot=rewards.k_shot,
        notes=list(rewards.notes),
        next_command=with_options("palate status"),
    )
    report = judge.write_report(job.context, case, job.run_id, job.dir)
    write_json(job.dir / "finished.json", {"run_id": job.run_id})
    return Outcome(
        DONE, job.key, job.run_id, job.dataset, job.champion, None, [], None, rewards, None, report=report
    )


def _left_out(trained: TrainResult) -> list[str]:
    if not trained.left_out:
        return []
    parts = ", ".join(f"{reason.replace('_', ' ')}: {n}" for reason, n in sorted(trained.left_out.items()))
    return [f"Train-split rows that the update did not use: {parts}."]


_NEXT_COMMAND = {
    "pass": "palate promote",
    "fail": 'palate promote --override "reason"',
    "insufficient_data": "palate run (after more feedback)",
}
