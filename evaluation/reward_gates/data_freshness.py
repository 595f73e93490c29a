"""The reward model must have learned from what is still so.

    fail               iff  age_days > max_age_days, or recent held-out votes are predicted worse
    insufficient_data  iff  neither, and no row that it has learned from has a time
    pass               otherwise

age_days = days since the newest row it has learned from. Worse: `reward_models.drift` compares its log-loss on held-out
votes since then with that on held-out votes of its training window. Where there are too few since then to test, age
decides alone, and the verdict says so. Inputs that moved without a worse prediction are told, and do not fail.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from evaluation.reward_case import RewardCase
from evaluation.verdicts import Outcome, Verdict

NAME = "data_freshness"


class Config(BaseModel):
    """Settings of the gate `data_freshness`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_age_days: float = Field(default=90.0, gt=0)
    """A model whose newest row is older fails."""


def judge(case: RewardCase, config: Config) -> Verdict:
    """See the module's text."""
    drift, age, most = case.drift, case.age_days, config.max_age_days
    formula = f"newest row learned at most {most:g} days old, and recent votes not predicted worse"
    outcome: Outcome
    if age > most:
        outcome, why = "fail", f"Its newest row is {age:.1f} days old; {most:g} are allowed. {drift.why}"
    elif drift.verdict == "worse":
        outcome, why = "fail", f"Recent votes are predicted worse: fit it again. {drift.why}"
    elif math.isnan(age):
        outcome, why = "insufficient_data", f"No row it has learned from has a time. {drift.why}"
    else:
        outcome, why = "pass", f"Its newest row is {age:.1f} days old; {most:g} are allowed. {drift.why}"
    return Verdict(NAME, outcome, age, age, age, drift.recent[0], most, formula, why)
