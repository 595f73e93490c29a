"""The candidate must stay near the champion: far away, a reward model's scores mean little.

    pass               iff  high <= budget_nats
    fail               iff  kl_per_token > budget_nats
    insufficient_data  otherwise: the value is inside, its 95 % interval reaches beyond

kl_per_token = KL(candidate || champion) in nats per token, estimated on the candidate's own replies, of the tokens as
they were sampled in service, by the estimator of `evaluation.logprobs.kl_per_token`. Half a
nat per token is some 25 nats on a reply of 50 tokens; that the true quality falls behind the reward as this
distance grows is measured by Gao, Schulman and Hilton, "Scaling Laws for Reward Model Overoptimization", ICML
2023.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from evaluation.verdicts import Evidence, Verdict, too_few, within_limit

NAME = "kl_budget"


class Config(BaseModel):
    """Settings of the gate `kl_budget`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    budget_nats: float = Field(default=0.5, gt=0)
    """Largest accepted KL divergence from the champion, nats per token of the candidate's replies."""
    min_prompts: int = Field(default=20, ge=2)
    """Below this many compared prompts the gate says insufficient_data."""


def judge(evidence: Evidence, config: Config) -> Verdict:
    """See the module's text."""
    kl, budget = evidence.metric("kl_per_token"), config.budget_nats
    formula = f"upper end of the 95 % interval of KL(candidate || champion) per token <= {budget:g} nats"
    few = too_few(NAME, kl, needed=config.min_prompts, threshold=budget, formula=formula)
    if few is not None:
        return few
    moved = f"The candidate is {kl.value:.3f} nats per token away from the champion"
    return within_limit(
        NAME,
        kl,
        # An estimate of a small divergence may come out below zero, which is no fault.
        low=float("-inf"),
        high=budget,
        threshold=budget,
        formula=formula,
        texts={
            "pass": f"{moved}; up to {kl.high:.3f} is plausible, {budget:g} is allowed.",
            "fail": f"{moved}; {budget:g} is allowed.",
            "insufficient_data": f"{moved}, but up to {kl.high:.3f} is plausible: more prompts would decide.",
        },
    )
