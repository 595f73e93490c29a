"""What a gate sees and what it says. A gate decides nothing else: promotion reads its verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evaluation.compare import Comparison
from evaluation.estimates import Estimate

Outcome = Literal["pass", "fail", "insufficient_data"]


@dataclass(frozen=True)
class Evidence:
    """Everything a gate may look at: the comparison, and whatever else the caller measured."""

    comparison: Comparison
    extra: Mapping[str, Any] = field(default_factory=dict)

    def metric(self, name: str) -> Estimate:
        """The metric, or one of n = 0 that no gate can pass on."""
        nothing = Estimate(math.nan, -math.inf, math.inf, 0)
        return self.comparison.metrics.get(name, nothing)


@dataclass(frozen=True)
class Verdict:
    """A gate's answer with the numbers it rests on, so that it can be checked by hand."""

    gate: str
    verdict: Outcome
    value: float
    low: float
    high: float
    n: int
    threshold: float
    formula: str
    why: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON: what is not finite becomes null."""
        numbers = {key: getattr(self, key) for key in ("value", "low", "high", "threshold")}
        finite = {key: (float(x) if math.isfinite(x) else None) for key, x in numbers.items()}
        texts = {"gate": self.gate, "verdict": self.verdict}
        return {**texts, **finite, "n": int(self.n), "formula": self.formula, "why": self.why}


def overall(verdicts: Sequence[Verdict]) -> Outcome:
    """`pass` iff every gate passed, `fail` if any failed, else (and without gates) `insufficient_data`."""
    found = {verdict.verdict for verdict in verdicts}
    if "fail" in found:
        return "fail"
    return "pass" if found == {"pass"} else "insufficient_data"


def within_limit(
    gate: str,
    estimate: Estimate,
    *,
    low: float,
    high: float,
    threshold: float,
    formula: str,
    texts: dict[str, str],
    surely: bool = False,
) -> Verdict:
    """Verdict of a limit: inside with the whole interval, outside with the value, or cannot tell.

    Args:
        gate: its name.
        estimate: what was measured.
        low: the least allowed value.
        high: the greatest allowed value.
        threshold: the limit as configured, for the record.
        formula: the rule in words and symbols.
        texts: why, for each of the three verdicts.
        surely: fail only what is outside with the whole interval.
    """
    outcome: Outcome
    least, most = (estimate.low, estimate.high) if surely else (estimate.value, estimate.value)
    if most < low or least > high:
        outcome = "fail"
    elif low <= estimate.low and estimate.high <= high:
        outcome = "pass"
    else:
        outcome = "insufficient_data"
    numbers = (estimate.value, estimate.low, estimate.high, estimate.n)
    return Verdict(gate, outcome, *numbers, threshold, formula, texts[outcome])


def too_few(gate: str, estimate: Estimate, *, needed: int, threshold: float, formula: str) -> Verdict | None:
    """`insufficient_data` if the estimate rests on under `needed` prompts or on no number; else None."""
    numbers = (estimate.value, estimate.low, estimate.high, estimate.n)
    if estimate.n == 0 or not math.isfinite(estimate.value):
        why = "It was not measured in this comparison."
    elif estimate.n < needed:
        why = f"Only {estimate.n} prompts were compared; this gate decides from {needed} on."
    else:
        return None
    return Verdict(gate, "insufficient_data", *numbers, threshold, formula, why)
