"""Simulated users: hidden tastes, and how satisfied each truly is with a reply.

Nothing here is estimated from data. It is a made-up population that lets the demo check whether the loop found
out what people wanted; reports that use it say "simulated users".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from palate.simulation.text import notice

TASTES = ("warmth", "question", "structure", "contractions", "finished", "on_topic", "repetition")
# Mean and spread of each taste over the population, in units of log-odds of satisfaction.
MEAN = np.array([2.2, 0.5, 0.0, 0.3, 0.8, 1.0, -3.0])
SPREAD = np.array([0.8, 0.5, 0.8, 0.6, 0.3, 0.3, 0.5])


class PopulationConfig(BaseModel):
    """Who the simulated users are."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    users: int = Field(default=60, ge=6)
    """Number of users."""
    asks: dict[str, int] = Field(default_factory=lambda: {"train": 56, "evaluation": 26, "test": 14})
    """Questions asked of the champion, by split of the asking user."""
    judged_prompts: int = Field(default=36, ge=1)
    """Further held-out prompts that both models answer in the end."""
    noise: float = Field(default=0.5, ge=0)
    """Standard deviation of the mood added to a reaction, in log-odds."""
    median_words: float = Field(default=35.0, gt=0)
    """Median over users of the reply length they like best, in words."""


@dataclass(frozen=True)
class User:
    """One simulated user."""

    id: str
    tastes: tuple[float, ...]
    """One weight per name in `TASTES`."""
    target_words: float
    """The reply length this user likes best, in words."""
    eagerness: float
    """Probability of giving any explicit feedback on a reply."""
    edits: float
    """Probability of correcting a reply that disappoints, given that feedback is given."""

    def satisfaction(self, prompt: str, reply: str) -> float:
        """True satisfaction in (0, 1): a logistic function of what the user notices. Training never sees it."""
        seen = notice(prompt, reply)
        features = [getattr(seen, name) for name in TASTES]
        length = abs(math.log(max(seen.words, 1) / self.target_words))
        score = -1.6 - 0.8 * length + sum(w * f for w, f in zip(self.tastes, features, strict=True))
        return 1 / (1 + math.exp(-score))


def population(config: PopulationConfig, seed: int) -> list[User]:
    """Draw the users. The same config and seed give the same people."""
    rng = np.random.default_rng([seed, 1])
    tastes = rng.normal(MEAN, SPREAD, size=(config.users, len(TASTES)))
    targets = config.median_words * np.exp(rng.normal(0, 0.35, size=config.users))
    eagerness = rng.beta(6, 2, size=config.users)
    edits = rng.beta(5, 2, size=config.users)
    return [
        User(
            f"sim-{seed}-{i:03d}",
            tuple(map(float, tastes[i])),
            float(targets[i]),
            float(eagerness[i]),
            float(edits[i]),
        )
        for i in range(config.users)
    ]
