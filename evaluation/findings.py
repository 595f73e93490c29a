"""What the numbers mean in words: the verdict's headline, and what could be wrong about it."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from evaluation.case import Case
from evaluation.compare import Comparison
from evaluation.estimates import Estimate

# From here on a side effect is worth a sentence; each is a judgement, stated with the number it rests on.
NOTABLE_CORRELATION = 0.3
NOTABLE_LENGTH_CHANGE = 0.1
NOTABLE_SHARE = 0.1
COMFORTABLE_PROMPTS = 100
# A figure with such a word in its name is there to be compared with, and may well be at chance.
YARDSTICKS = ("untrained", "base", "before", "champion")


def headline(case: Case) -> tuple[str, str]:
    """(verdict in a few words, why in one or two sentences)."""
    if case.comparison is None:
        return "No candidate", "This run trained no policy. What the reward model learned is below."
    if not case.verdicts:
        return "Not judged", "No gate was configured, so nothing was proven."
    if case.outcome == "pass":
        number = len(case.verdicts)
        passed = "its only gate" if number == 1 else f"all {number} gates"
        reasons = " ".join(verdict.why for verdict in case.verdicts if verdict.gate == "win_rate")
        return "Better", f"The candidate passed {passed}. {reasons}".strip()
    reasons = " ".join(verdict.why for verdict in case.verdicts if verdict.verdict == case.outcome)
    if case.outcome == "fail":
        return "Not better" if _failed(case, "win_rate") else "Not safe", reasons
    return "Not enough data", reasons


def doubts(case: Case) -> list[str]:
    """What could be wrong, the gravest first; never empty when there is a comparison."""
    found = []
    if case.simulated:
        found.append(
            "The users are simulated: the loop works, but no person said that they like the replies."
        )
    if case.comparison is not None:
        found += _disagreement(case, case.comparison)
        found += _judge(case)
        if case.rows is not None:
            found += _shortcuts(case.rows, case.comparison)
        found += _side_effects(case.comparison)
        prompts = case.comparison.prompts
        if prompts < COMFORTABLE_PROMPTS:
            found.append(f"It rests on {prompts} prompts; rare failures would not show among so few.")
        if "kl_per_token" not in case.comparison.metrics:
            found.append("How far the candidate moved from the champion (KL) was not measured.")
    for name, estimate in case.learned.items():
        yardstick = any(word in name.casefold() for word in YARDSTICKS)
        if "accuracy" in name.casefold() and not yardstick and estimate.n and estimate.low <= 0.5:
            found.append(f"{name} is not proven above chance: {estimate.low:.0%} is plausible.")
    return found


def length_correlation(rows: pa.Table) -> float:
    """Pearson correlation of the log ratio of lengths with the reward difference; nan if undefined."""
    champion, candidate = (
        np.asarray(rows[f"{side}_tokens"].to_numpy()) for side in ("champion", "candidate")
    )
    change = np.log((candidate + 1) / (champion + 1))
    reward = np.asarray(rows["candidate_reward"].to_numpy()) - np.asarray(rows["champion_reward"].to_numpy())
    if len(reward) < 3 or np.ptp(change) == 0 or np.ptp(reward) == 0:
        return math.nan
    return float(np.corrcoef(change, reward)[0, 1])


def _failed(case: Case, gate: str) -> bool:
    return any(verdict.gate == gate and verdict.verdict == "fail" for verdict in case.verdicts)


def _disagreement(case: Case, comparison: Comparison) -> list[str]:
    """The judge likes it and the (simulated) people do not: the reward was gamed."""
    difference = (case.satisfaction or {}).get("difference")
    rate = comparison.metrics["win_rate"]
    if difference is not None and difference.low <= 0 and rate.low > 0.5:
        return [
            f"The reward model prefers the candidate, but satisfaction is not proven higher "
            f"(change {difference.value:+.3f}, {difference.low:+.3f} is plausible): a sign of a gamed reward."
        ]
    return []


def _judge(case: Case) -> list[str]:
    if case.calibration is None:
        return [
            "Replies were judged by a reward model, not by people; its accuracy is not part of this report."
        ]
    accuracy, ece = case.calibration.accuracy, case.calibration.ece
    if accuracy.low <= 0.5:
        return [f"The judge, a reward model, is not proven better than a coin ({_span(accuracy)})."]
    people = "choices of simulated users" if case.simulated else "choices of people"
    agrees = f"{accuracy.value:.0%} of held-out {people} ({_span(accuracy)})"
    found = [f"Replies were judged by a reward model, which agrees with {agrees}."]
    if ece.low > case.calibration.ece_if_calibrated:
        found.append(
            f"That reward model is miscalibrated: its confidence is off by {ece.value:.0%} on average, "
            f"chance explains {case.calibration.ece_if_calibrated:.0%}."
        )
    return found


def _shortcuts(rows: pa.Table, comparison: Comparison) -> list[str]:
    found = []
    correlation = length_correlation(rows)
    if abs(correlation) >= NOTABLE_CORRELATION:
        kind = "longer" if correlation > 0 else "shorter"
        found.append(
            f"Replies that became {kind} gained more reward (correlation {correlation:+.2f}): part of the "
            f"result may be length, not quality."
        )
    same = sum(
        a == b for a, b in zip(rows["champion"].to_pylist(), rows["candidate"].to_pylist(), strict=True)
    )
    if rows.num_rows and same / rows.num_rows >= NOTABLE_SHARE:
        found.append(f"{same / rows.num_rows:.0%} of the replies are word for word the champion's.")
    if comparison.rows and comparison.ties / comparison.rows >= 0.5:
        found.append(f"{comparison.ties / comparison.rows:.0%} of the comparisons are ties.")
    return found


def _side_effects(comparison: Comparison) -> list[str]:
    found, metrics = [], comparison.metrics
    length, repeats = metrics["length_ratio"], metrics["repetition_difference"]
    if math.isfinite(length.value) and abs(length.value - 1) >= NOTABLE_LENGTH_CHANGE:
        found.append(
            f"Replies became {abs(length.value - 1):.0%} {'longer' if length.value > 1 else 'shorter'}."
        )
    if repeats.n > 1 and repeats.low > 0:
        found.append(f"The candidate repeats itself more ({repeats.value:+.1%} of word 4-grams).")
    cut = metrics.get("candidate_unfinished")
    if cut is not None and cut.n and cut.value >= NOTABLE_SHARE:
        found.append(f"{cut.value:.0%} of the candidate's replies were cut off at the length limit.")
    return found


def _span(estimate: Estimate) -> str:
    return f"{estimate.low:.0%} to {estimate.high:.0%}"
