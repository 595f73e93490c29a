"""One self-contained HTML page that makes the case for or against a candidate.

No script, no network, no links: it opens from a disk, a mail, or the sandboxed frame of MLflow's artifact
view. A content security policy in the page forbids everything but its own styles, on top of the escaping.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation import findings, plots
from evaluation.case import Case
from evaluation.compare import check_rows
from evaluation.estimates import Estimate
from evaluation.k_shot import KShot
from evaluation.untrusted import clipped, visible

__all__ = ["Case", "render"]

SHOWN_REPLIES = 20
PROMPT_LIMIT = 1_500
REPLY_LIMIT = 3_000
# Manifest parts that are shown as they are instead of as counts.
NOT_COUNTS = ("config", "dependencies", "files", "code", "versions")


@dataclass(frozen=True)
class Side:
    """One model's reply, ready to be shown."""

    name: str
    text: str
    left_out: int
    reward: float
    tokens: int
    preferred: bool


@dataclass(frozen=True)
class Pair:
    """Two replies to one prompt."""

    prompt: str
    prompt_left_out: int
    agent: str | None
    user_id: str | None
    difference: float
    kl: float | None
    sides: tuple[Side, Side]


def render(case: Case) -> str:
    """The report as HTML; the same case gives the same bytes.

    Raises:
        EvaluationError: the case's rows are not as `evaluation.compare.ROWS`.
    """
    rows = check_rows(case.rows) if case.rows is not None else None
    environment = _environment()
    verdict, why = findings.headline(case)
    return str(
        environment.get_template("report.html.j2").render(
            case=case,
            tone={"pass": "good", "fail": "bad"}.get(case.outcome, "open") if case.comparison else "plain",
            verdict=verdict,
            why=why,
            doubts=findings.doubts(case),
            metrics=case.comparison.metrics if case.comparison else {},
            drawings=list(_drawings(case, rows)),
            pairs=most_different(rows) if rows is not None else [],
            counts=list(count_tables(case.dataset)),
            facts=dict(_facts(case.dataset)),
            manifest=json.dumps(case.dataset, indent=2, sort_keys=True, default=str, ensure_ascii=False),
        )
    )


def most_different(rows: pa.Table, limit: int = SHOWN_REPLIES) -> list[Pair]:
    """The pairs with the largest |reward difference|, then the largest KL, then in the order given."""
    difference = np.asarray(rows["candidate_reward"].to_numpy()) - np.asarray(
        rows["champion_reward"].to_numpy()
    )
    kl = np.nan_to_num(np.asarray(rows["kl"].to_numpy(), dtype=float), nan=-math.inf)
    order = np.lexsort((np.arange(len(difference)), -kl, -np.abs(difference)))[:limit]
    return [_pair(row) for row in rows.take(pa.array(order, pa.int64())).to_pylist()]


def count_tables(
    manifest: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """(title, [(name, count)]) for every mapping of names to whole numbers in the manifest, largest first."""
    for key, value in manifest.items():
        if not isinstance(value, Mapping) or key in NOT_COUNTS:
            continue
        numbers = [(str(k), v) for k, v in value.items() if isinstance(v, int) and not isinstance(v, bool)]
        here = (*path, str(key))
        if numbers and len(numbers) == len(value):
            title = " · ".join(part.replace("_", " ") for part in here if part != "counts")
            yield title or "counts", sorted(numbers, key=lambda pair: (-pair[1], pair[0]))
        else:
            if numbers:
                yield " · ".join(part.replace("_", " ") for part in here), numbers
            yield from count_tables(value, here)


def _facts(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in manifest.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield str(key).replace("_", " "), str(value)
        elif isinstance(value, list | tuple) and 0 < len(value) <= 2:
            yield str(key).replace("_", " "), " to ".join(map(str, value))
        elif key == "time_range" and isinstance(value, Mapping):
            yield "time range", " to ".join(str(end) for end in value.values())


def _pair(row: Mapping[str, Any]) -> Pair:
    difference = row["candidate_reward"] - row["champion_reward"]
    prompt, left_out = clipped(row["prompt"], PROMPT_LIMIT)
    sides = []
    for name, won in (("champion", difference < 0), ("candidate", difference > 0)):
        text, more = clipped(row[name], REPLY_LIMIT)
        sides.append(Side(name, text, more, row[f"{name}_reward"], row[f"{name}_tokens"], won))
    return Pair(prompt, left_out, row["agent"], row["user_id"], difference, row["kl"], (sides[0], sides[1]))


def _drawings(case: Case, rows: pa.Table | None) -> Iterator[tuple[str, str, str]]:
    """(heading, SVG, what to see in it) of each plot there is data for."""
    if case.comparison is not None and case.comparison.rows:
        margin = case.comparison.tie_margin
        tie = f"Rewards at most {margin:g} apart are ties." if margin else "Equal rewards are ties."
        yield "Who was preferred", plots.outcome_bar(case.comparison), f"The dashed line is one half. {tie}"
    if rows is not None and rows.num_rows:
        yield (
            "By how much",
            plots.reward_histogram(rows),
            "A better model moves the whole hill to the right. A few far bars alone are a few odd replies.",
        )
        correlation = findings.length_correlation(rows)
        said = (
            f"Change of length and of reward correlate by {correlation:+.2f}."
            if correlation == correlation
            else ""
        )
        yield (
            "Length",
            plots.length_scatter(rows),
            f"Wins that lie only above (or below) the line were won by length. {said}".strip(),
        )
    curve = plots.training_curve(case.training_curve)
    if curve is not None:
        yield "Training", curve, "As logged by the trainer, on the data it learns from."
    if case.calibration is not None:
        off, chance = case.calibration.ece.value, case.calibration.ece_if_calibrated
        yield (
            "Is the judge's confidence right?",
            plots.calibration_curve(case.calibration),
            f"On held-out pairs. Below the line it is too sure of itself. Off by {off:.1%} on average; a "
            f"perfect model would be off by up to {chance:.1%} by chance.",
        )
    if case.k_shot:
        yield (
            "How well it knows people it never met",
            plots.k_shot_curves(case.k_shot) or "",
            k_shot_caption(case),
        )


def k_shot_caption(case: Case) -> str:
    """What the curves rest on and what votes told, or why there are none; what several share is said once."""
    said: dict[str, list[str]] = {}
    for who, curve in case.k_shot.items():
        for sentence in [*_of_curve(curve), *curve.notes]:
            said.setdefault(sentence, []).append(who)
    return " ".join(f"{' and '.join(who)}: {sentence}" for sentence, who in said.items())


def _of_curve(curve: KShot) -> Iterator[str]:
    if not curve.points or curve.shared is None:
        return
    last = curve.points[-1]
    told = f"; {_signed_span(last.votes_tell)} come from the votes" if last.k else ""
    yield (
        f"After {last.k} votes a person's later ones are predicted {_signed_span(last.gain)} nats per vote better than "
        f"by the shared taste alone, whose log-loss is {curve.shared.value:.3f}{told}. Every point is about the same "
        f"{curve.votes} votes of {curve.people} people."
    )


def _signed_span(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} ({interval(estimate)})"


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Before escaping; SVG made here is Markup and passes.
        finalize=lambda x: visible(x) if isinstance(x, str) and not isinstance(x, Markup) else x,
    )
    environment.filters.update(
        svg=Markup,
        percent=lambda x, digits=1: f"{x:.{digits}%}" if math.isfinite(x) else "–",
        signed_percent=lambda x: f"{x:+.1%}" if math.isfinite(x) else "–",
        signed=lambda x, digits=2: f"{x:+.{digits}f}" if math.isfinite(x) else "–",
        number=number,
        clamp=lambda x: min(100.0, max(0.0, 100 * x)),
        words=lambda name: str(name).replace("_", " "),
    )
    environment.globals.update(interval=interval, is_share=is_share)
    return environment


def number(x: float) -> str:
    """A number with three significant digits, a dash if there is none."""
    if not math.isfinite(x):
        return "–"
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:#.3g}" if abs(x) >= 0.001 or x == 0 else f"{x:.1e}"


def is_share(name: str) -> bool:
    """Whether a metric of this name is a share, shown in percent."""
    return any(part in name.casefold() for part in ("rate", "accuracy", "repetition", "unfinished"))


def interval(estimate: Estimate, *, share: bool = False) -> str:
    """`0.41 to 0.62`, or that there is none."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return "no interval"
    if share:
        return f"{estimate.low:.1%} to {estimate.high:.1%}"
    return f"{number(estimate.low)} to {number(estimate.high)}"
