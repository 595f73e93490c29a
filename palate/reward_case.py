"""A fitted reward model before its gates: what it predicts of held-out people, and its version in the registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palate.context import Context, now, write_json

if TYPE_CHECKING:
    import pyarrow as pa

    from evaluation.estimates import Estimate
    from evaluation.reward_case import RewardCase
    from evaluation.verdicts import Verdict
    from palate.job import Job
    from pipelines.dataset import Dataset
    from reward_models.scorer import Scorer
    from rollout.reward_registry import Role

FILE = "rewards.json"
SPLITS: dict[Role, str] = {"training": "train", "evaluation": "evaluation"}
"""Whose rows each scorer learns."""


@dataclass(frozen=True)
class JudgedReward:
    """What was found out about one scorer."""

    directory: Path
    method: str
    case: RewardCase | None
    """None without a held-out pair."""
    verdicts: tuple[Verdict, ...]
    labels: Mapping[str, Any]
    """What its rows were worth (`reward_models.labels`)."""

    def notes(self, who: str) -> list[str]:
        """What a reader of the report should know, in sentences."""
        said = [f"{who}: {note}" for note in self.labels.get("notes", ())]
        said += [
            f"{who}: the gate {verdict.gate} says {verdict.verdict.replace('_', ' ')}. {verdict.why}"
            for verdict in self.verdicts
            if verdict.verdict == "fail"
        ]
        return said

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "method": self.method,
            "labels": _counted(self.labels),
            "case": None if self.case is None else self.case.to_dict(),
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
        }


def _counted(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Labels with how many people instead of who: ids stay in the workspace."""
    counted = dict(labels)
    if labels.get("brigade") is not None:
        counted["brigade"] = len(labels["brigade"])
    if "influence" in labels:
        counted["influence"] = {**labels["influence"], "capped": len(labels["influence"]["capped"])}
    return counted


def judge(context: Context, dataset: Dataset, scorer: Scorer, role: Role, run_dir: Path) -> JudgedReward:
    """Look at a scorer through people's explicit held-out pairs, and let its gates decide."""
    from palate.learn import labels_of
    from reward_models.scorer import inner, method_in

    directory = run_dir / f"reward-{role}"
    case, verdicts = look(context, scorer, dataset.rows("test"), dataset.rows(SPLITS[role]))
    return JudgedReward(directory, method_in(inner(directory)), case, verdicts, labels_of(directory))


def look(
    context: Context, scorer: Scorer, test: pa.Table, learned: pa.Table
) -> tuple[RewardCase | None, tuple[Verdict, ...]]:
    """The case for or against a scorer and what its gates say; None and nothing without an explicit held-out pair.

    Args:
        context: whose gates, seed and clock.
        scorer: a fitted reward model.
        test: PREFERENCES rows of people and prompts that it has not seen.
        learned: PREFERENCES rows among which are those that it was fitted on.

    Raises:
        EvaluationError: held-out rows or people are among those it was fitted on.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from evaluation import reward_case, reward_gates

    project = context.project
    # What people did is no verdict to judge by: only their explicit word is.
    implicit = pa.array(project.reward.labels.implicit.rules, pa.string())
    test = test.filter(pc.and_(pc.is_valid(test["rejected"]), pc.invert(pc.is_in(test["rule"], implicit))))
    if not test.num_rows:
        return None, ()
    case = reward_case.make(
        scorer,
        test,
        train_rows=learned,
        now=now(),
        seed=project.seed,
        people_apart=project.prefer.split.test_users > 0,
    )
    return case, tuple(reward_gates.judge_all(case, project.reward_gates))


def figures(case: RewardCase, who: str) -> dict[str, Estimate]:
    """The estimates that a report shows, by the words it shows them with."""
    wording = {
        "log_loss": "log-loss over win, tie, loss",
        # What one would say knowing only how often people call it a tie.
        "gain": "gain over knowing only the share of ties (nats)",
        "accuracy": "accuracy on decided pairs",
        "worst_users": "gain of the worst tenth of people (nats)",
        "temperature": "temperature that held-out people ask for",
        "length_pearson": "correlation of reward and length",
        "length_excess": "its love of length beyond people's own",
    }
    found = case.estimates()
    return {
        f"{who}: {words}": found[name]
        for name, words in wording.items()
        if name in found and found[name].value == found[name].value
    }


def register(job: Job, judged: Mapping[Role, JudgedReward]) -> dict[Role, int]:
    """Make each scorer a version of `<name>-reward`, with its verdicts; returns the versions."""
    from rollout import reward_registry
    from rollout.versions import plain

    context = job.context
    document = plain({role: each.to_dict() for role, each in judged.items()})
    write_json(job.dir / FILE, document)
    context.registry.client.log_text(
        job.run_id, json.dumps(document, indent=1, default=str, ensure_ascii=False), FILE
    )
    found: dict[Role, int] = {}
    for role, each in judged.items():
        estimates = each.case.estimates() if each.case is not None else {}
        found[role] = reward_registry.register(
            context.registry,
            each.directory,
            role=role,
            method=each.method,
            base_id=context.base.id,
            base_revision=context.base.revision,
            dataset_version=job.dataset.version,
            run_id=job.run_id,
            run_key=job.key,
            verdicts=[verdict.to_dict() for verdict in each.verdicts],
            metrics={
                f"reward_{role}/{name}": estimate.value
                for name, estimate in estimates.items()
                if estimate.value == estimate.value
            },
            params=context.project.reward.model_dump(mode="json"),
        )
    return found
