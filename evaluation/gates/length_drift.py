"""Replies must keep about the length they had: a reward model is easily won by longer (or shorter) text.

    pass               iff  1 - max_drift <= low  and  high <= 1 + max_drift
    fail               iff  |length_ratio - 1| > max_drift
    insufficient_data  otherwise: the value is inside, its 95 % interval [low, high] is not

length_ratio = all tokens of the candidate / all tokens of the champion, on the same prompts.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from evaluation.verdicts import Evidence, Verdict, too_few, within_limit

NAME = "length_drift"


class Config(BaseModel):
    """Settings of the gate `length_drift`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_drift: float = Field(default=0.25, gt=0)
    """Largest accepted change of length: 0.25 allows 25 % shorter to 25 % longer."""
    min_prompts: int = Field(default=20, ge=2)
    """Below this many compared prompts the gate says insufficient_data."""


def judge(evidence: Evidence, config: Config) -> Verdict:
    """See the module's text."""
    ratio, drift = evidence.metric("length_ratio"), config.max_drift
    formula = (
        f"whole 95 % interval of candidate tokens / champion tokens within {1 - drift:g} to {1 + drift:g}"
    )
    few = too_few(NAME, ratio, needed=config.min_prompts, threshold=drift, formula=formula)
    if few is not None:
        return few
    change = f"{abs(ratio.value - 1):.1%} {'longer' if ratio.value >= 1 else 'shorter'}"
    span = f"{ratio.low:.2f} to {ratio.high:.2f} times the champion's"
    return within_limit(
        NAME,
        ratio,
        low=1 - drift,
        high=1 + drift,
        threshold=drift,
        formula=formula,
        texts={
            "pass": f"Replies are {change}; {span} is within the {drift:.0%} allowed.",
            "fail": f"Replies are {change}; at most {drift:.0%} is allowed.",
            "insufficient_data": f"Replies are {change}, but {span} is plausible: more prompts would decide.",
        },
    )
