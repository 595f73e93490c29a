"""Nobody may be served much worse than by knowing nothing of them: a good mean can hide a tenth of the people.

    pass               iff  low >= -max_loss_nats
    fail               iff  worst < -max_loss_nats
    insufficient_data  otherwise: the value is inside, its 95 % interval [low, high] reaches below

worst = mean gain, in nats per vote over a forecast that knows only how often people call a tie, of the worst tenth of
people with enough held-out votes (`min_user_votes` of `reward_case.Config`). It estimates their true gain: what noise
alone adds to the spread of people's means is taken out first, by m + sqrt(t^2 / (t^2 + s^2 / n_u)) (g_u - m); see
`evaluation.worst_users`.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from evaluation.reward_case import RewardCase
from evaluation.reward_gates import too_few
from evaluation.verdicts import Verdict, within_limit

NAME = "worst_decile_users"


class Config(BaseModel):
    """Settings of the gate `worst_decile_users`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_loss_nats: float = Field(default=0.1, ge=0)
    """How much worse than knowing nothing the worst tenth may be predicted, nats per vote."""
    min_users: int = Field(default=20, ge=2)
    """With fewer people who voted often enough the gate says insufficient_data."""


def judge(case: RewardCase, config: Config) -> Verdict:
    """See the module's text."""
    worst, least = case.worst_users, -config.max_loss_nats
    formula = f"lower end of the 95 % interval of the worst tenth's gain >= {least:g} nats per vote"
    few = too_few(NAME, worst, needed=config.min_users, threshold=least, formula=formula)
    if few is not None:
        return few
    said = f"The worst tenth of {worst.n} people gain {worst.value:+.3f} nats per vote, all {case.gain.value:+.3f}"
    return within_limit(
        NAME,
        worst,
        low=least,
        high=math.inf,
        threshold=least,
        formula=formula,
        texts={
            "pass": f"{said}; even {worst.low:+.3f} is not below {least:g}.",
            "fail": f"{said}; {least:g} is allowed.",
            "insufficient_data": f"{said}, but {worst.low:+.3f} is plausible: more votes would decide.",
        },
    )
