"""A reward model that fails a gate of its own may neither have trained a candidate nor have judged it.

    fail               iff  failed >= 1
    insufficient_data  iff  no reward model trained or judged it; with `must_decide` also where some gate cannot decide
    pass               otherwise; which gates could not decide is said

failed = gates of `evaluation.reward_gates` that say `fail`, counted over the reward models that the candidate rests on.
The other gates read rewards: of a reward model that is wrong, they prove nothing. The one that judged always counts;
the one for training counts where the policy learned from its scores, which with DPO it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from evaluation.verdicts import Evidence, Outcome, Verdict

NAME = "reward_models"
EXTRA = "reward_models"
"""Where `Evidence.extra` has them, each a `Used`."""


@dataclass(frozen=True)
class Used:
    """A reward model that a candidate rests on."""

    who: str
    """What readers know it by, such as `evaluation scorer`."""
    how: Literal["trained", "judged"]
    """What it did to the candidate."""
    verdicts: Sequence[Verdict]
    """Of its own gates; none where no held-out pair was there to judge it by."""


class Config(BaseModel):
    """Settings of the gate `reward_models`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    must_decide: bool = False
    """Say insufficient_data instead of pass where a gate of theirs could not decide."""


def judge(evidence: Evidence, config: Config) -> Verdict:
    """See the module's text."""
    used: Sequence[Used] = evidence.extra.get(EXTRA) or ()
    failed = [
        f"The {one.who}, which {one.how} it, fails {verdict.gate}: {verdict.why}"
        for one in used
        for verdict in one.verdicts
        if verdict.verdict == "fail"
    ]
    undecided = [said for one in used if (said := _undecided(one))]
    outcome: Outcome
    if failed:
        outcome, why = "fail", " ".join([*failed, *undecided])
    elif not used:
        outcome, why = (
            "insufficient_data",
            "No reward model is known to have trained or judged this candidate.",
        )
    elif undecided:
        outcome = "insufficient_data" if config.must_decide else "pass"
        why = " ".join(["No gate of a reward model it rests on failed.", *undecided])
    else:
        outcome = "pass"
        why = " ".join(f"The {one.who}, which {one.how} it, passed every gate of its own." for one in used)
    judged = sum(len(one.verdicts) for one in used)
    count = float(len(failed))
    formula = "failed gates of the reward models that trained or judged it = 0"
    return Verdict(NAME, outcome, count, count, count, judged, 0.0, formula, why)


def _undecided(one: Used) -> str:
    """Which of its gates could not decide, in a sentence; empty where all did."""
    if not one.verdicts:
        return f"Of the {one.who}, which {one.how} it, no gate was judged."
    names = [verdict.gate for verdict in one.verdicts if verdict.verdict == "insufficient_data"]
    return f"Of the {one.who}, which {one.how} it, could not decide: {', '.join(names)}." if names else ""
