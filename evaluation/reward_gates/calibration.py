"""Probabilities of the reward model must mean what they say: a policy trained on overconfidence is pushed too hard.

    limit              =    chance + max_ece
    pass               iff  ece <= limit
    fail               iff  low > limit
    insufficient_data  otherwise: above the limit, but its 95 % interval [low, high] reaches below

ece = expected calibration error on decided held-out pairs (`evaluation.calibration`), chance = what 95 % of perfectly
calibrated models stay under with as many votes. With `tempered` it is the error after a temperature fitted on other
people (`reward_models.temperature`): the right one to ask for where the model in use is tempered.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from evaluation.estimates import Estimate
from evaluation.reward_case import RewardCase
from evaluation.reward_gates import too_few
from evaluation.verdicts import Outcome, Verdict

NAME = "calibration"


class Config(BaseModel):
    """Settings of the gate `calibration`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_ece: float = Field(default=0.03, ge=0, lt=0.5)
    """Accepted calibration error beyond what chance alone makes."""
    tempered: bool = False
    """Judge the probabilities after the temperature."""
    min_users: int = Field(default=10, ge=2)
    """With decided votes of fewer people the gate says insufficient_data."""


def judge(case: RewardCase, config: Config) -> Verdict:
    """See the module's text."""
    found = case.calibrated if config.tempered else case.calibration
    ece = Estimate(math.nan, 0.0, 1.0, 0) if found is None else found.ece
    limit = config.max_ece + (0.0 if found is None else found.ece_if_calibrated)
    which = " after temperature" if config.tempered else ""
    formula = f"expected calibration error{which} <= {limit:.4g} (what chance makes, and {config.max_ece:g})"
    few = too_few(NAME, ece, needed=config.min_users, threshold=limit, formula=formula)
    if few is not None:
        return few
    said = f"Stated and observed shares differ by {ece.value:.3f}{which}"
    outcome: Outcome
    if ece.value <= limit:
        outcome, why = "pass", f"{said}; up to {limit:.3f} is allowed."
    elif ece.low > limit:
        outcome, why = (
            "fail",
            f"{said}, at least by {ece.low:.3f}; up to {limit:.3f} is allowed.{_remedy(case)}",
        )
    else:
        outcome = "insufficient_data"
        why = f"{said}; up to {limit:.3f} is allowed, but as little as {ece.low:.3f} is plausible.{_remedy(case)}"
    return Verdict(NAME, outcome, ece.value, ece.low, ece.high, ece.n, limit, formula, why)


def _remedy(case: RewardCase) -> str:
    """What a temperature would do about it."""
    t = case.temperature
    if t.reason or case.calibrated is None:
        return f" {t.reason}" if t.reason else ""
    bias = "overconfident" if t.tau > 1 else "too cautious"
    return f" It is {bias}: with the temperature {t.tau:.2f} they differ by {case.calibrated.ece.value:.3f}."
