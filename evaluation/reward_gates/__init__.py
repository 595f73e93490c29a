"""Gates of reward models: each file here is one, found by its name; `module:object` names one of your own.

A gate has a frozen pydantic `Config` and `judge(case: RewardCase, config: Config) -> Verdict`, with the same verdicts
as the gates of policies. To add one, add a file; there is no list to extend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from evaluation import gates, verdicts
from evaluation.estimates import Estimate
from evaluation.gates import Gate
from evaluation.reward_case import RewardCase
from evaluation.verdicts import Verdict


def names() -> list[str]:
    """The gates of reward models that come with palate, sorted."""
    return gates.names(__name__)


def configure(settings: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Gate, BaseModel]]:
    """Gates with their checked settings, in the order given. Cheap: call it before anything expensive.

    Raises:
        GateError: an unknown gate, or settings it does not have.
    """
    return gates.configure(settings, __name__)


def judge_all(case: RewardCase, settings: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """One verdict for each configured gate, in the order given.

    Args:
        case: what was found out about the reward model.
        settings: gate name to its settings, `{"heldout_accuracy": {"margin": 0.02}, "calibration": {}}`.

    Raises:
        GateError: an unknown gate, or settings it does not have.
    """
    return [gate.judge(case, config) for _, gate, config in configure(settings)]


def too_few(gate: str, estimate: Estimate, *, needed: int, threshold: float, formula: str) -> Verdict | None:
    """`insufficient_data` if the estimate rests on under `needed` people or on no number; else None."""
    few = verdicts.too_few(gate, estimate, needed=needed, threshold=threshold, formula=formula)
    if few is None or not 0 < estimate.n < needed:
        return few and replace(few, why="It was not measured: there are no held-out votes that tell.")
    return replace(
        few, why=f"Held-out votes of only {estimate.n} people; this gate decides from {needed} on."
    )
