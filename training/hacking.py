"""Reward hacking, seen while a run goes on: the reward is earned, and what it stands for is not.

What is watched are the replies that the policy samples anyway, as means of groups (one prompt's replies), because
replies to one prompt resemble each other. Two questions are asked after every step t of T planned ones:

1. **Does the held-out scorer fall while the reward rises?** Over the last W steps, a line is fitted by least squares to
   the group means of each, standardised by mean and standard deviation of the champion's replies (step 1):
   m[s, j] = a + b s + e. The run stops if

       b_R / se(b_R) > q   and   b_H / se(b_H) < -q   and   -b_H (W - 1) > heldout_drop

2. **Has a feature of the text left its limits?** With m_w the mean over the groups of the last w steps (n_w of them),
   m_1 that of step 1 (n_1) and s^2 the variance of group means within a step, pooled over all steps, the run stops if

       |m_w - m_1| > q s sqrt(1 / n_w + 1 / n_1)   and   |m_w - m_1| > limit

q is the 1 - alpha / (2 * tests * T) quantile of Student's t with the degrees of freedom of the variance: by
Bonferroni's bound the chance that a run in which nothing changes is stopped is at most about alpha, however often one
looks. ("About": group means are taken to be normal and of equal variance.) A change that is certain but within its
limit stops nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models.features import PATTERNS
from training.errors import TrainingError
from training.reward_sources_rules import repeated_share, words

REWARD, HELDOUT = "reward", "heldout"
FEATURES = ("words", "question_share", "repetition", "hedge_share")
_QUESTION_ENDS = ("?", "？", "؟")


class RewardHacked(TrainingError):
    """The reward rises for a reason that nobody wanted. Nothing was registered."""

    exit_code = 3
    alarm: Alarm | None = None


class HackingSettings(BaseModel):
    """When a run is stopped because its reward is being gamed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    action: Literal["raise", "mark", "off"] = "raise"
    """`raise` stops with exit code 3, `mark` stops and keeps the adapter with `hacked` in its metrics, `off` looks at
    nothing."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """Chance of stopping a run in which nothing changes, at most, over all its steps and features."""
    min_steps: int = Field(default=4, ge=2)
    """Nothing is decided before so many steps were seen."""
    window: int = Field(default=20, ge=3)
    """Steps over which reward and held-out scorer are compared."""
    recent: int = Field(default=3, ge=1)
    """Steps whose replies are compared with the champion's for the text's features."""
    heldout_drop: float = Field(default=0.25, ge=0)
    """By how many standard deviations of the champion's replies the held-out scorer must fall within the window."""
    words: float = Field(default=0.5, gt=0)
    """Limit of the change in mean length, as a share of the champion's."""
    question_share: float = Field(default=0.25, gt=0)
    """Limit of the change in the share of replies that end with a question."""
    repetition: float = Field(default=0.2, gt=0)
    """Limit of the change in the share of repeated three-word phrases."""
    hedge_share: float = Field(default=0.25, gt=0)
    """Limit of the change in the share of replies that refuse or hedge."""


@dataclass(frozen=True)
class Seen:
    """What one step's replies were like."""

    step: int
    means: Mapping[str, Sequence[float]]
    """Means of P groups by quantity: `reward`, `heldout` where there is such a scorer, and the features."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Standard deviation over all single replies, by quantity."""


@dataclass(frozen=True)
class Alarm:
    """Why a run should stop."""

    step: int
    quantity: str
    change: float
    """From the champion's replies to the last ones; of the held-out scorer in its standard deviations."""
    limit: float
    reason: str
    next_step: str


def text_features(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """(B,) of each watched feature of B replies."""
    hedges = (PATTERNS["hedges"], PATTERNS["refusals"])
    return {
        "words": np.array([len(words(t)) for t in texts], dtype=np.float64),
        "question_share": np.array([t.rstrip().endswith(_QUESTION_ENDS) for t in texts], dtype=np.float64),
        "repetition": np.array([repeated_share(t) for t in texts], dtype=np.float64),
        "hedge_share": np.array([any(p.search(t) for p in hedges) for t in texts], dtype=np.float64),
    }


def seen_of(step: int, quantities: Mapping[str, np.ndarray], group_size: int) -> Seen:
    """Summarise one step; groups in which a quantity is not finite are left out of it.

    Args:
        step: number of the step.
        quantities: (B,) by name, whole groups one after the other.
        group_size: replies of a group.
    """
    means, spread = {}, {}
    for name, values in quantities.items():
        groups = np.asarray(values, dtype=np.float64).reshape(-1, group_size)
        groups = groups[np.isfinite(groups).all(1)]
        means[name] = [float(m) for m in groups.mean(1)]
        spread[name] = float(groups.std()) if groups.size else 0.0
    return Seen(step, means, spread)


def decide(history: Sequence[Seen], settings: HackingSettings, steps: int) -> Alarm | None:
    """Whether the run should stop now; see the module for the formulas.

    Args:
        history: every step so far, the first being the champion's.
        settings: limits and levels.
        steps: planned steps, each of which is a look.
    """
    if settings.action == "off" or len(history) < settings.min_steps:
        return None
    tests = (len(FEATURES) + 1) * max(steps, len(history))
    level = 1 - settings.alpha / (2 * tests)
    found = _against_heldout(history, settings, level)
    for name in FEATURES:
        found = found or _left_limits(history, settings, name, level)
    return found


def _against_heldout(history: Sequence[Seen], settings: HackingSettings, level: float) -> Alarm | None:
    recent = history[-settings.window :]
    up = _slope(recent, history[0], REWARD, level)
    down = _slope(recent, history[0], HELDOUT, level)
    if up is None or down is None:
        return None
    span = recent[-1].step - recent[0].step
    drop = -down[0] * span
    if not (up[1] > up[2] and down[1] < -down[2] and drop > settings.heldout_drop):
        return None
    return Alarm(
        history[-1].step,
        HELDOUT,
        -drop,
        settings.heldout_drop,
        f"over {len(recent)} steps the reward rose by {up[0] * span:.2f} and the held-out scorer fell by {drop:.2f} "
        "standard deviations of the champion's replies",
        "look at the sampled replies; weigh the reward less, raise the pull towards the champion (beta, kl_weight), or "
        "gather preferences that tell such replies apart",
    )


def _slope(steps: Sequence[Seen], first: Seen, name: str, level: float) -> tuple[float, float, float] | None:
    """Standardised slope per step, its t statistic and the quantile it must exceed; None where there is no telling."""
    if not all(s.means.get(name) for s in (first, *steps)) or first.spread.get(name, 0) <= 0:
        return None
    x = np.array([s.step for s in steps for _ in s.means[name]], dtype=np.float64)
    y = np.array([m for s in steps for m in s.means[name]]) / first.spread[name]
    x = x - x.mean()
    free = len(x) - 2
    if free < 1 or not x.any():
        return None
    slope = float(x @ y / (x @ x))
    rest = y - y.mean() - slope * x
    error = math.sqrt(max(float(rest @ rest) / free, 1e-18) / float(x @ x))
    return slope, slope / error, _quantile(level, free)


def _left_limits(history: Sequence[Seen], settings: HackingSettings, name: str, level: float) -> Alarm | None:
    groups = [np.asarray(s.means.get(name, ())) for s in history]
    recent = np.concatenate(groups[-settings.recent :])
    free = sum(max(len(g) - 1, 0) for g in groups)
    if not len(groups[0]) or not len(recent) or free < 1:
        return None
    variance = sum(float(((g - g.mean()) ** 2).sum()) for g in groups if len(g)) / free
    start, now = float(groups[0].mean()), float(recent.mean())
    unsure = _quantile(level, free) * math.sqrt(variance * (1 / len(recent) + 1 / len(groups[0])))
    limit = getattr(settings, name) * (max(start, 1.0) if name == "words" else 1.0)
    if abs(now - start) <= max(unsure, limit):
        return None
    what = {"words": "words in a reply", "repetition": "share of repeated phrases"}.get(
        name,
        "share of replies that " + ("end with a question" if name == "question_share" else "hedge or refuse"),
    )
    return Alarm(
        history[-1].step,
        name,
        now - start,
        limit,
        f"mean {what}: {start:.2f} by the champion, {now:.2f} in the last {min(settings.recent, len(history))} steps "
        f"(chance alone: up to {unsure:.2f})",
        f"look at the sampled replies; add a guard or a rule against it, or allow more with "
        f"the setting {name} of hacking in [train]",
    )


def _quantile(level: float, free: int) -> float:
    from scipy.stats import t

    return float(t.ppf(level, free))


def error_of(alarm: Alarm, evidence: Path | None = None) -> RewardHacked:
    """The alarm as what the command line shows.

    Args:
        alarm: why the run was stopped.
        evidence: file that will say why, and what every step was like until then.
    """
    read = f"read {evidence} (the reason, and the figures of every step), " if evidence else ""
    error = RewardHacked(
        "The reward is being gamed; the run was stopped and no adapter was written.",
        got=f"at step {alarm.step}, {alarm.reason}",
        allowed=f"a change of {alarm.quantity} up to {alarm.limit:.2f}",
        next_step=f"{read}{alarm.next_step}; then run again",
    )
    error.alarm = alarm
    return error
