"""The reward model must rank pairs of people it has not seen better than a coin, beyond doubt.

    pass               iff  low > 0.5 + margin
    fail               iff  accuracy <= 0.5 + margin
    insufficient_data  otherwise: better, but its 95 % interval [low, high] reaches down to a coin's

accuracy = share of decided held-out pairs whose winner got the higher reward; equal rewards count half. The interval
resamples people. A model that knows nothing passes in at most about 2.5 % of runs.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from evaluation.reward_case import RewardCase
from evaluation.reward_gates import too_few
from evaluation.verdicts import Outcome, Verdict

NAME = "heldout_accuracy"


class Config(BaseModel):
    """Settings of the gate `heldout_accuracy`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    margin: float = Field(default=0.0, ge=0, lt=0.5)
    """How far above one half the interval must start; 0.05 asks for a proven 55 %."""
    min_users: int = Field(default=10, ge=2)
    """With decided votes of fewer people the gate says insufficient_data."""


def judge(case: RewardCase, config: Config) -> Verdict:
    """See the module's text."""
    right, needed = case.accuracy, 0.5 + config.margin
    formula = f"lower end of the 95 % interval of accuracy on decided held-out pairs > {needed:g}"
    few = too_few(NAME, right, needed=config.min_users, threshold=needed, formula=formula)
    if few is not None:
        return few
    said = f"It ranks {right.value:.1%} of held-out pairs right"
    outcome: Outcome
    if right.low > needed:
        outcome, why = (
            "pass",
            f"{said}; even the interval's lower end, {right.low:.1%}, is above {needed:.1%}.",
        )
    elif right.value <= needed:
        outcome, why = "fail", f"{said}; more than {needed:.1%} is needed."
    else:
        outcome = "insufficient_data"
        why = f"{said}, but {right.low:.1%} is plausible and more than {needed:.1%} is needed: more votes decide."
    return Verdict(NAME, outcome, right.value, right.low, right.high, right.n, needed, formula, why)
