"""Rewards must not love length more, or less, than people do.

    pass               iff  -max_excess <= low  and  high <= max_excess
    fail               iff  high < -max_excess  or  low > max_excess
    insufficient_data  otherwise: the 95 % interval [low, high] holds values inside and values outside

A correlation of a dozen votes is far off by chance, and this gate can stop a candidate through `reward_models`: so it
fails what is surely beyond the limit, and nothing else.

excess = expected - people (`reward_models.length_bias`): the correlation of choices with length that the model's own
probabilities predict on held-out pairs, less the one that people's choices have. An honest preference for longer
replies costs nothing.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from evaluation.reward_case import RewardCase
from evaluation.reward_gates import too_few
from evaluation.verdicts import Verdict, within_limit

NAME = "length_correlation"


class Config(BaseModel):
    """Settings of the gate `length_correlation`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_excess: float = Field(default=0.15, gt=0, le=2)
    """Largest accepted correlation with length beyond people's own, either way."""
    min_users: int = Field(default=10, ge=2)
    """With held-out votes of fewer people the gate says insufficient_data."""


def judge(case: RewardCase, config: Config) -> Verdict:
    """See the module's text."""
    excess, most = case.length["excess"], config.max_excess
    formula = (
        f"whole 95 % interval of expected less people's correlation with length within -{most:g} to {most:g}"
    )
    few = too_few(NAME, excess, needed=config.min_users, threshold=most, formula=formula)
    if few is not None:
        return few
    expected, people, rewards = (case.length[name].value for name in ("expected", "people", "pearson"))
    said = (
        f"Choices are expected to correlate {expected:+.2f} with length and do {people:+.2f} "
        f"(rewards themselves {rewards:+.2f})"
    )
    span = f"an excess of {excess.low:+.2f} to {excess.high:+.2f}"
    return within_limit(
        NAME,
        excess,
        low=-most,
        high=most,
        threshold=most,
        formula=formula,
        surely=True,
        texts={
            "pass": f"{said}; {span} is within the {most:g} allowed.",
            "fail": f"{said}; an excess of {most:g} is allowed. See `reward_models.length_bias` for a cure.",
            "insufficient_data": f"{said}; {span} is plausible, {most:g} is allowed: more votes would decide.",
        },
    )
