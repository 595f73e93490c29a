"""The table at the end of a run: what changed for people, whether the gates passed, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from palate.commands.options import given_options, near

if TYPE_CHECKING:
    from evaluation.estimates import Estimate
    from palate.context import Context
    from palate.loop import Outcome


def interval(estimate: Estimate | None, unit: str = "") -> str:
    """`0.62 [0.51, 0.72]`, or a dash where there is no value."""
    if estimate is None or estimate.n == 0 or estimate.value != estimate.value:
        return "–"
    return f"{estimate.value:.3f}{unit} [{estimate.low:.3f}, {estimate.high:.3f}]"


def print_outcome(context: Context, outcome: Outcome, seconds: float) -> None:
    """Tell a person what a turn of the loop led to."""
    out = context.out
    rows: list[tuple[str, str]] = []
    if outcome.satisfaction:
        for who in ("champion", "candidate", "difference"):
            if who in outcome.satisfaction:
                label = (
                    "what users felt: candidate − champion"
                    if who == "difference"
                    else f"what users felt: {who}"
                )
                rows.append((f"{label} (hidden, simulated)", interval(outcome.satisfaction[who])))
    if outcome.judged is not None:
        metrics = outcome.judged.comparison.metrics
        names = {
            "win_rate": "win rate of the candidate",
            "length_ratio": "reply length, candidate / champion",
            "kl_per_token": "KL to the champion, nats per token",
            "repetition_difference": "repetition, candidate − champion",
        }
        rows += [(label, interval(metrics.get(name))) for name, label in names.items()]
        rows += [(name, interval(e)) for name, e in outcome.judged.learned.items()]
    rows += [(name, interval(e)) for name, e in outcome.rewards.learned.items()]
    out.head(
        f"{context.project.name}: {'simulated users, ' if context.project.simulated else ''}held-out results"
    )
    out.table("", ["", "value [95 % interval]"], rows)
    if outcome.verdicts:
        out.table("Gates", ["gate", "verdict", "why"], [(v.gate, v.verdict, v.why) for v in outcome.verdicts])
    for line in _closing(context, outcome, seconds):
        out.say(line)


def _closing(context: Context, outcome: Outcome, seconds: float) -> list[str]:
    project = context.project
    option = f" {given_options()}" if given_options() else ""
    lines = []
    if outcome.candidate is None:
        lines.append("This project trains a reward model only; it is an artifact of the MLflow run.")
    elif outcome.exit_code == 0:
        lines.append(f"All gates passed: v{outcome.candidate} is a candidate for {context.registry.name}.")
    elif outcome.exit_code == 3:
        lines.append(
            f"v{outcome.candidate} is NOT better as far as these data show: a gate failed. The champion stays."
        )
    else:
        lines.append(
            f"v{outcome.candidate} cannot be judged yet: too little held-out data for a gate. The champion stays."
        )
    lines += outcome.rewards.notes
    if outcome.report is not None:
        lines.append(f"Report:  {near(outcome.report)}")
    uri = context.registry.tracking_uri
    where = uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}"
    lines.append(f"MLflow:  {where}   (run {outcome.run_id})")
    if outcome.candidate is not None:
        override = "" if outcome.exit_code == 0 else ' --override "reason"'
        lines.append(f"Promote: palate promote {outcome.candidate}{option}{override}")
    lines.append(f"Took {seconds:.0f} s. Workspace: {project.workspace.dir}")
    return lines


def document(context: Context, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The same for scripts."""
    judged = outcome.judged
    return {
        "ok": outcome.exit_code == 0,
        "exit_code": outcome.exit_code,
        "run_key": outcome.run_key,
        "run_id": outcome.run_id,
        "dataset_version": outcome.dataset.version,
        "champion": outcome.champion.version,
        "candidate": outcome.candidate,
        "verdicts": [v.to_dict() for v in outcome.verdicts],
        "comparison": judged.comparison.to_dict() if judged else None,
        "learned": {
            name: e.to_dict()
            for name, e in {**outcome.rewards.learned, **(judged.learned if judged else {})}.items()
        },
        "notes": list(outcome.rewards.notes),
        "satisfaction": {name: e.to_dict() for name, e in outcome.satisfaction.items()},
        "report": str(outcome.report) if outcome.report else None,
        "tracking_uri": context.registry.tracking_uri,
        "seconds": round(seconds, 1),
        "stage_s": {name: round(s, 1) for name, s in context.out.stage_s.items()},
    }
