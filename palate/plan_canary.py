"""How many days a canary would need: verdicts that a test needs over verdicts that come in.

Two shares of satisfied verdicts, p0 under the champion and p1 = p0 +- d under the candidate, are told apart by a
two-sided test of level alpha with power 1 - beta, where the candidate has n verdicts and the champion k n, with

    n = [z(1 - alpha/2) sqrt((1 + 1/k) p q) + z(1 - beta) sqrt(p1 q1 + p0 q0 / k)]^2 / d^2
    p = (p1 + k p0) / (1 + k),   q = 1 - p

Fleiss, Levin and Paik 2003, "Statistical Methods for Rates and Proportions", 3rd ed., chapter 4 (without the
continuity correction). Of p0 + d and p0 - d the one that needs more verdicts counts. What one person says resembles
what they say next: n is multiplied by the design effect (Kish 1965, "Survey Sampling"), the variance of the mean over
people divided by what it would be if every verdict came from somebody else, at least 1.

The sample size is that of a test that looks once. One that looks every day and may stop early needs more at worst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palate.plan_settings import Config


@dataclass(frozen=True)
class Verdicts:
    """What people said outright of single replies in the newest traffic."""

    satisfied: np.ndarray
    """(N,) bool."""
    people: Sequence[str]
    """(N,) who said it."""
    days: float
    """Of event time that they were said in."""


@dataclass(frozen=True)
class Canary:
    """Days to a verdict, or why there is no such number."""

    days: float | None
    why: str
    """In a sentence."""
    verdicts_per_day: float
    satisfied: float | None
    """Share of satisfied verdicts now; None without any."""
    design_effect: float
    needed: int | None
    """Verdicts on the candidate's replies."""


def plan(verdicts: Verdicts, config: Config) -> Canary:
    """How long a canary would take at the present traffic."""
    count = len(verdicts.satisfied)
    rate = count / verdicts.days if verdicts.days else 0.0
    if not count:
        return Canary(
            None, "Insufficient traffic: nobody gave an explicit verdict on a reply.", rate, None, 1.0, None
        )
    share = float(verdicts.satisfied.mean())
    effect = design_effect(verdicts.satisfied, verdicts.people)
    ratio = (1 - config.canary_share) / config.canary_share
    needed = math.ceil(effect * sample_size(share, config.difference, config.alpha, config.power, ratio))
    days = needed / (rate * config.canary_share)
    asked = f"{needed} verdicts on its replies, at {rate * config.canary_share:.3g} a day"
    if days > config.longest_days:
        why = f"Insufficient traffic: it would take {days:.0f} days, {asked}."
        return Canary(None, why, rate, share, effect, needed)
    return Canary(days, f"It takes {asked}.", rate, share, effect, needed)


def sample_size(share: float, difference: float, alpha: float, power: float, ratio: float) -> float:
    """Verdicts that the candidate needs; see the module's text.

    Args:
        share: p0, in [0, 1].
        difference: d, in (0, 0.5].
        alpha: level of the two-sided test.
        power: chance of seeing the difference.
        ratio: k, verdicts on the champion's replies for each on the candidate's.
    """
    from scipy.stats import norm

    at_level, at_power = norm.ppf(1 - alpha / 2), norm.ppf(power)

    def needed(other: float) -> float:
        pooled = (other + ratio * share) / (1 + ratio)
        under_none = math.sqrt((1 + 1 / ratio) * pooled * (1 - pooled))
        under_some = math.sqrt(other * (1 - other) + share * (1 - share) / ratio)
        return float((at_level * under_none + at_power * under_some) ** 2 / difference**2)

    # A share that is a multiple of the difference may miss 0 or 1 by a rounding error.
    others = [
        min(max(p, 0.0), 1.0) for p in (share - difference, share + difference) if -1e-9 <= p <= 1 + 1e-9
    ]
    return max(map(needed, others))


def design_effect(satisfied: np.ndarray, people: Sequence[str]) -> float:
    """By how much more the mean varies than if every verdict came from somebody else; at least 1.

    With residuals e of N verdicts of G people: G / (G - 1) sum over people of (sum e)^2 / N^2, over p (1 - p) / N.

    Args:
        satisfied: (N,) bool.
        people: (N,) who said it.
    """
    values = np.asarray(satisfied, dtype=float)
    names, place = np.unique(np.asarray(people, dtype=object).astype(str), return_inverse=True)
    spread = values.mean() * (1 - values.mean()) if len(values) else 0.0
    if len(names) < 2 or not spread:
        return 1.0
    sums = np.bincount(place, values - values.mean())
    over_people = len(names) / (len(names) - 1) * float((sums**2).sum()) / len(values) ** 2
    return max(1.0, over_people / (spread / len(values)))
