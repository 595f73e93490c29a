"""The candidate's replies must be preferred, beyond doubt.

    pass iff low > 0.5 + margin        low: lower end of the win rate's two-sided 95 % interval

A tie counts half. A candidate that is no better than the champion passes in at most about 2.5 % of runs.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from evaluation.verdicts import Evidence, Outcome, Verdict, too_few

NAME = "win_rate"


class Config(BaseModel):
    """Settings of the gate `win_rate`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    min_prompts: int = Field(default=20, ge=2)
    """Below this many compared prompts the gate says insufficient_data."""
    margin: float = Field(default=0.0, ge=0, lt=0.5)
    """How far above one half the interval must start; 0.05 asks for a proven 55 %."""


def judge(evidence: Evidence, config: Config) -> Verdict:
    """See the module's text."""
    rate, needed = evidence.metric(NAME), 0.5 + config.margin
    formula = f"lower end of the 95 % interval of the win rate (ties count half) > {needed:g}"
    few = too_few(NAME, rate, needed=config.min_prompts, threshold=needed, formula=formula)
    if few is not None:
        return few
    outcome: Outcome = "pass" if rate.low > needed else "fail"
    won, low = f"{rate.value:.1%}", f"{rate.low:.1%}"
    if outcome == "pass":
        why = f"The candidate wins {won}; even the interval's lower end, {low}, is above {needed:.1%}."
    elif rate.high < 0.5:
        why = f"The candidate loses: it wins {won}, and at most {rate.high:.1%} is plausible."
    else:
        why = (
            f"Not proven better: it wins {won}, but {low} is plausible and more than {needed:.1%} is needed."
        )
    return Verdict(NAME, outcome, rate.value, rate.low, rate.high, rate.n, needed, formula, why)
