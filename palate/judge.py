"""Candidate against champion: replies, rewards, KL, held-out human pairs, gates, report, registration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palate.context import Context, now, write_json
from palate.heldout_prompts import HeldoutPrompt, from_file, from_rows, pick

if TYPE_CHECKING:
    import pyarrow as pa

    from evaluation.case import Case
    from evaluation.compare import Comparison
    from evaluation.estimates import Estimate
    from evaluation.gates.reward_models import Used
    from evaluation.replies import Policy, Reply
    from evaluation.verdicts import Verdict
    from palate.learn import RewardOutcome
    from palate.reward_case import JudgedReward
    from pipelines.dataset import Dataset
    from reward_models.scorer import Scorer
    from rollout.reward_registry import Role

ROWS_FILE = "replies.parquet"


@dataclass(frozen=True)
class Judged:
    """What the comparison found."""

    rows: pa.Table
    comparison: Comparison
    verdicts: list[Verdict]
    learned: Mapping[str, Estimate]
    """Held-out human pairs under both policies."""
    notes: tuple[str, ...] = field(default=())


def used_scorers(judged: Mapping[Role, JudgedReward], method: str) -> tuple[Used, ...]:
    """The reward models that a candidate rests on.

    Args:
        judged: every scorer of the run with the verdicts of its gates.
        method: of training. One that is not known to learn from people's pairs alone rests on the training scorer.
    """
    from evaluation.gates.reward_models import Used
    from palate.learn import needs_scorer

    found = []
    if "training" in judged and needs_scorer(method):
        found.append(Used("training scorer", "trained", judged["training"].verdicts))
    if "evaluation" in judged:
        found.append(Used("evaluation scorer", "judged", judged["evaluation"].verdicts))
    return tuple(found)


def judge(
    context: Context, dataset: Dataset, rewards: RewardOutcome, champion: Path, candidate: Path, run_dir: Path
) -> Judged:
    """Compare two adapters on held-out prompts; replies already sampled by this run are reused."""
    import pyarrow.parquet as pq

    from evaluation.compare import compare
    from evaluation.gates import judge_all
    from evaluation.gates.reward_models import EXTRA

    scorer = rewards.evaluation
    rows_file = run_dir / "evaluation" / ROWS_FILE
    notes: list[str] = []
    if rows_file.is_file():
        rows = pq.read_table(rows_file)
        learned: dict[str, Estimate] = _read_learned(run_dir)
    else:
        # Nobody could judge the replies without a scorer, so none are sampled.
        prompts = _prompts(context, dataset, notes) if scorer is not None else []
        rows, learned = _answer(context, dataset, scorer, champion, candidate, prompts)
        rows_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(run_dir / "evaluation" / "learned.json", {k: v.to_dict() for k, v in learned.items()})
        partial = rows_file.with_suffix(".partial")
        pq.write_table(rows, partial)
        partial.replace(rows_file)
    project = context.project
    comparison = compare(rows, seed=project.seed, tie_margin=project.evaluation.tie_margin)
    if scorer is None:
        notes.append(
            "Without an evaluation scorer no reply can be judged: every comparison counts as missing."
        )
    extra = {EXTRA: used_scorers(rewards.judged, project.train.method)}
    return Judged(rows, comparison, judge_all(comparison, project.gates, extra), learned, tuple(notes))


def _prompts(context: Context, dataset: Dataset, notes: list[str]) -> list[HeldoutPrompt]:
    settings = context.project.evaluation
    prompts = from_rows(dataset.rows("test"))
    if settings.prompts is not None:
        own, refused = from_file(settings.prompts, context.project.prefer.split)
        prompts += own
        if refused:
            notes.append(f"{refused} evaluation prompts were refused: they or their users may be trained on.")
    return pick(prompts, settings.max_prompts)


def _answer(
    context: Context,
    dataset: Dataset,
    scorer: Scorer | None,
    champion: Path,
    candidate: Path,
    prompts: list[HeldoutPrompt],
) -> tuple[pa.Table, dict[str, Estimate]]:
    """Both policies, loaded one after the other, answer and are scored; memory never holds both."""
    from evaluation.logprobs import reply_logprobs
    from evaluation.replies import load_policy

    chats = [p.prompt for p in prompts]
    pairs = _human_pairs(context, dataset)
    replies: dict[str, list[Reply]] = {}
    logprobs: dict[str, Any] = {}
    pair_scores: dict[str, Any] = {}
    # The candidate goes first: the champion then scores the candidate's replies, which the KL needs.
    for name, adapter in (("candidate", candidate), ("champion", champion)):
        policy = load_policy(context.base.path, adapter)
        replies[name] = _sample(context, policy, chats, name)
        with context.out.stage(f"Log-probabilities under the {name}"):
            texts, ids = [r.text for r in replies["candidate"]], [r.token_ids for r in replies["candidate"]]
            logprobs[name] = reply_logprobs(policy, chats, texts, token_ids=ids)
            pair_scores[name] = _score_pairs(context, policy, pairs)
        del policy
    rows = _rows(prompts, replies, logprobs, scorer if prompts else None)
    return rows, _pair_estimates(context, pairs, pair_scores)


def _sample(context: Context, policy: Policy, chats: list[Any], name: str) -> list[Reply]:
    from evaluation.replies import sample

    with context.out.stage(f"Held-out prompts, {name} answers", "replies") as advance:
        done = 0

        def progress(n: int) -> None:
            nonlocal done
            done += n
            advance(done, len(chats))

        # Both models get the same seed, so that luck of the draw is shared as far as their answers agree.
        return sample(policy, chats, context.project.model.sampling, context.project.seed + 1, progress)


def _rows(
    prompts: list[HeldoutPrompt],
    replies: dict[str, list[Reply]],
    logprobs: dict[str, Any],
    scorer: Scorer | None,
) -> pa.Table:
    import pyarrow as pa

    from evaluation.compare import ROWS
    from evaluation.logprobs import kl_per_token
    from reward_models.representation import last_user_message

    schema = ROWS.append(pa.field("champion_finished", pa.bool_())).append(
        pa.field("candidate_finished", pa.bool_())
    )
    if scorer is None:
        return schema.empty_table()
    chats = [p.prompt for p in prompts]
    users, agents = [p.user_id for p in prompts], [p.agent for p in prompts]
    reward = {
        name: scorer.score(chats, [r.text for r in given], users, agents).mean
        for name, given in replies.items()
    }
    kl = kl_per_token(logprobs["candidate"], logprobs["champion"])
    columns = {
        "prompt_id": [p.id for p in prompts],
        "prompt": [last_user_message(c) for c in chats],
        "user_id": [p.user_id for p in prompts],
        "agent": [p.agent for p in prompts],
        "kl": kl.tolist(),
    }
    for name in ("champion", "candidate"):
        columns[name] = [r.text for r in replies[name]]
        columns[f"{name}_reward"] = reward[name].tolist()
        columns[f"{name}_tokens"] = [r.tokens for r in replies[name]]
        columns[f"{name}_finished"] = [r.finished for r in replies[name]]
    return pa.table({field.name: columns[field.name] for field in schema}, schema=schema)


def _human_pairs(context: Context, dataset: Dataset) -> pa.Table:
    """Decided pairs of people and prompts never trained on."""
    import pyarrow.compute as pc

    test = dataset.rows("test")
    decided = test.filter(pc.and_(pc.is_valid(test["rejected"]), pc.greater(test["margin"], 0)))
    return decided.sort_by("preference_id").slice(0, context.project.evaluation.max_pairs)


def _score_pairs(context: Context, policy: Policy, pairs: pa.Table) -> Any:
    """(N, 2, 2) of the chosen and the rejected reply: log-probability per token, and in all."""
    import numpy as np

    from evaluation.logprobs import reply_logprobs

    if pairs.num_rows == 0:
        return np.zeros((0, 2, 2))
    limit = context.project.evaluation.max_pair_tokens
    columns = pairs.select(["prompt", "chosen", "rejected"]).to_pydict()
    sides = [
        reply_logprobs(policy, columns["prompt"], columns[side], max_tokens=limit)
        for side in ("chosen", "rejected")
    ]
    return np.stack([np.stack([s.per_token, s.total], axis=1) for s in sides], axis=1)


def _pair_estimates(context: Context, pairs: pa.Table, scores: dict[str, Any]) -> dict[str, Estimate]:
    """Accuracy on held-out human pairs: how often a policy finds the chosen reply likelier, per token."""
    import numpy as np

    from evaluation.estimates import bootstrap_mean

    if pairs.num_rows == 0:
        return {}
    users, keys = pairs["user_id"].to_pylist(), pairs["prompt_key"].to_pylist()
    clusters = np.array([u or k for u, k in zip(users, keys, strict=True)], dtype=object)
    right = {}
    for name, pair in scores.items():
        lead = pair[:, 0, 0] - pair[:, 1, 0]
        right[name] = np.where(lead == 0, 0.5, lead > 0).astype(float)
    # DPO's implicit reward is beta times the summed log-ratio, not its mean over tokens.
    ratio = scores["candidate"][:, :, 1] - scores["champion"][:, :, 1]
    moved = ratio[:, 0] - ratio[:, 1]
    implicit = np.where(moved == 0, 0.5, moved > 0).astype(float)
    seed = context.project.seed
    return {
        "Candidate: human pairs ranked right (likelihood accuracy)": bootstrap_mean(
            right["candidate"], clusters, seed=seed, bounds=(0, 1)
        ),
        "Champion (before the update): human pairs ranked right": bootstrap_mean(
            right["champion"], clusters, seed=seed, bounds=(0, 1)
        ),
        "Candidate less champion: human pairs ranked right": bootstrap_mean(
            right["candidate"] - right["champion"], clusters, seed=seed
        ),
        "Update moves towards the chosen reply (implicit reward accuracy)": bootstrap_mean(
            implicit, clusters, seed=seed, bounds=(0, 1)
        ),
    }


def _read_learned(run_dir: Path) -> dict[str, Estimate]:
    import json
    import math

    from evaluation.estimates import Estimate

    stored = json.loads((run_dir / "evaluation" / "learned.json").read_text())

    def number(x: float | None, missing: float) -> float:
        return missing if x is None else x

    return {
        name: Estimate(
            number(e["value"], math.nan),
            number(e["low"], -math.inf),
            number(e["high"], math.inf),
            e["n"],
            e["confidence"],
        )
        for name, e in stored.items()
    }


def write_report(context: Context, case: Case, run_id: str, run_dir: Path) -> Path:
    """Render the case to one HTML file in the run's directory and log it to MLflow."""
    from evaluation.mlflow_log import log_case
    from evaluation.report import render

    with context.out.stage("Report"):
        html = render(case)
        path = run_dir / "evaluation" / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(html, encoding="utf-8")
        partial.replace(path)
        log_case(run_id, case, html, client=context.registry.client)
    return path


def make_case(context: Context, dataset: Dataset, lineage: Mapping[str, str], **parts: Any) -> Case:
    """The case with what every one has."""
    from evaluation.case import Case

    return Case(
        title=context.project.name,
        simulated=context.project.simulated,
        created=now(),
        dataset=dataset.manifest,
        lineage=dict(lineage),
        **parts,
    )
