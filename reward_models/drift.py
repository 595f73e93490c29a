"""Is the world still the one a reward model learned from?

Two questions about held-out votes of its training window and of the time since:

    worse     is the mean log-loss of recent votes higher?                                     (one-sided)
    inputs    did means of named features of replies, share of ties or shares of agents move?  (two-sided, each)

Votes of one person resemble each other, and a person may vote in both windows, so both questions are answered by the
test of `wild_bootstrap`, which takes people for the independent units.

Half of the level goes to each question. Among the inputs the false discovery rate is held at its half by Benjamini and
Hochberg (JRSS B 57, 1995), and only what moved far enough to matter counts: by `min_smd` pooled standard deviations
(standardised mean difference), or, for agents, where the population stability index

    psi = sum over agents of (q - p) ln(q / p)         p, q: shares before and now, half a vote added to each count

exceeds `min_psi` (its sampling properties: Yurdakul and Naranjo, Journal of Risk Model Validation 14, 2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import ties
from reward_models.features import NAMES, text_features
from reward_models.heldout import Heldout
from reward_models.representation import last_user_message
from reward_models.scorer import RewardModelError
from reward_models.wild_bootstrap import wild_p

if TYPE_CHECKING:
    import pyarrow as pa

Verdict = Literal["none", "inputs", "worse"]
NOBODY = "(no agent)"
REST = "(all others)"
_AGENTS = 20  # told apart; rarer ones are one
_DAY_S = 86_400.0


class Config(BaseModel):
    """How drift is tested."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    level: float = Field(default=0.05, gt=0, lt=1)
    """How often drift is found where there is none, at most, both questions together."""
    min_users: int = Field(default=20, ge=2)
    """With fewer people in either window nothing is tested: with few, a share of agents errs more often than told."""
    min_votes: int = Field(default=50, ge=2)
    """With fewer votes in either window nothing is tested."""
    min_worse_nats: float = Field(default=0.01, ge=0)
    """A rise of the log-loss below this is no drift, however certain."""
    min_smd: float = Field(default=0.2, ge=0)
    """A mean that moved by less than this many standard deviations is no drift, however certain."""
    min_psi: float = Field(default=0.1, ge=0)
    """Shares of agents whose stability index is below this are no drift, however certain."""
    resamples: int = Field(default=1999, ge=199)
    """Random signs drawn, at least; many inputs need more."""


@dataclass(frozen=True)
class Seen:
    """N held-out votes as far as drift is concerned, in the order of `heldout.predict`."""

    loss: np.ndarray
    """(N,) log-loss of the model, nats."""
    clusters: np.ndarray
    """(N,) who voted."""
    inputs: np.ndarray
    """(N, F) named inputs."""
    names: tuple[str, ...]
    """F names."""
    agents: np.ndarray
    """(N,) agent that answered, `NOBODY` where unknown."""

    def take(self, rows: np.ndarray) -> Seen:
        """Some of the votes, by index or mask."""
        kept = self.loss[rows], self.clusters[rows], self.inputs[rows]
        return Seen(*kept, self.names, self.agents[rows])


@dataclass(frozen=True)
class Moved:
    """One input before and now."""

    name: str
    before: float
    now: float
    smd: float
    """(now - before) / pooled standard deviation; infinite where two constants differ."""
    p: float
    drifted: bool
    """Significant among all inputs, and far enough to matter."""


@dataclass(frozen=True)
class Drift:
    """What was found."""

    verdict: Verdict
    why: str
    age_days: float
    """Since the newest row the model has learned from; NaN where no row has a time."""
    worse_nats: float
    """Mean log-loss of recent votes less that of the training window's; NaN where one has no votes."""
    worse_p: float
    """One-sided; NaN where it was not tested."""
    inputs: tuple[Moved, ...]
    """By name of input, then agents; empty where they were not tested."""
    psi: float
    """Of the agents; NaN where not tested."""
    before: tuple[int, int]
    """Held-out votes and people of the training window."""
    recent: tuple[int, int]
    """Held-out votes and people since."""

    @property
    def tested(self) -> bool:
        """Whether there was enough to test."""
        return bool(np.isfinite(self.worse_p))


def age_days(rows: pa.Table, now: datetime) -> float:
    """Days from the newest `event_time` of PREFERENCES rows to `now` (aware); NaN where none has a time.

    A time after `now` counts as now: clocks differ.

    Raises:
        RewardModelError: `now` has no time zone.
    """
    newest = newest_time(rows)
    if now.tzinfo is None:
        raise RewardModelError("An age needs a time with its zone.", got=now, next_step="pass UTC")
    return np.nan if newest is None else max(0.0, (now - newest).total_seconds() / _DAY_S)


def newest_time(rows: pa.Table) -> datetime | None:
    """Newest `event_time` of PREFERENCES rows, None where none has one."""
    import pyarrow.compute as pc

    newest: datetime | None = pc.max(rows["event_time"]).as_py()
    return newest


def seen(rows: pa.Table, predicted: Heldout) -> Seen:
    """Held-out votes for the test.

    Args:
        rows: paired PREFERENCES rows in the order of `predicted`.
        predicted: `heldout.predict` of them.
    """
    columns = rows.select(["prompt", "chosen", "rejected", "agent"]).to_pydict()
    asked = [last_user_message(prompt) for prompt in columns["prompt"]]
    first, second = (text_features(asked, columns[side]) for side in ("chosen", "rejected"))
    tie = (predicted.outcome == ties.TIE).astype(float)
    inputs = np.column_stack([(first + second) / 2, tie])
    agents = np.array([NOBODY if agent is None else agent for agent in columns["agent"]], dtype=object)
    return Seen(predicted.log_loss, predicted.clusters, inputs, (*NAMES, "tie"), agents)


def compare(
    votes: Seen, recent: np.ndarray, *, age_days: float, config: Config | None = None, seed: int
) -> Drift:
    """Compare recent votes with the training window's.

    Args:
        votes: N held-out votes of both windows.
        recent: (N,) bool, the votes since.
        age_days: of the newest row the model has learned from.
        config: defaults if None.
        seed: of the signs.

    Raises:
        RewardModelError: a log-loss or an input is not finite.
    """
    config = config or Config()
    recent = np.asarray(recent, dtype=bool)
    before, after = (_size(votes.clusters[which]) for which in (~recent, recent))
    worse = (
        float(votes.loss[recent].mean() - votes.loss[~recent].mean()) if before[0] and after[0] else np.nan
    )
    small = [
        f"{name} has {n} votes of {people} people"
        for name, (n, people) in (("the training window", before), ("the time since", after))
        if n < config.min_votes or people < config.min_users
    ]
    if small:
        why = f"Not tested: {' and '.join(small)}; {config.min_votes} of {config.min_users} are needed."
        return Drift("none", why, age_days, worse, np.nan, (), np.nan, before, after)
    labels, shares = _agents(votes.agents)
    columns = np.column_stack([votes.loss, votes.inputs, shares])
    # A single input that moved can only be found where the least possible p-value is below its share of the level.
    draws = max(config.resamples, math.ceil(2 * columns.shape[1] / (config.level / 2)))
    p_moved, p_higher = wild_p(columns, recent, votes.clusters, seed=seed, resamples=draws)
    psi = stability_index(votes.agents[~recent], votes.agents[recent])
    names = (*votes.names, *(f"agent {label}" for label in labels))
    inputs = _moved(names, columns[:, 1:], recent, p_moved[1:], psi, config)
    p = float(p_higher[0])
    is_worse = p <= config.level / 2 and worse >= config.min_worse_nats
    drifted = sorted((m for m in inputs if m.drifted), key=lambda m: -abs(m.smd))
    verdict: Verdict = "worse" if is_worse else "inputs" if drifted else "none"
    said = f"Log-loss of {after[0]} recent votes is {worse:+.3f} nats against the training window's (p = {p:.3g})"
    moved = ", ".join(f"{m.name} {m.smd:+.2f} sd" for m in drifted[:5]) or "no input"
    return Drift(
        verdict, f"{said}; moved: {moved}.", age_days, worse, p, inputs, psi, before, after
    )  # fmt: skip


def stability_index(before: np.ndarray, now: np.ndarray) -> float:
    """Population stability index of the labels of two samples; see the module's text."""
    labels = np.unique(np.concatenate([before, now]).astype(str))
    p, q = (
        (np.array([(part.astype(str) == x).sum() for x in labels]) + 0.5) / (len(part) + len(labels) / 2)
        for part in (before, now)
    )
    return float(((q - p) * np.log(q / p)).sum())


def benjamini_hochberg(p: np.ndarray, rate: float) -> np.ndarray:
    """(M,) bool: which of M p-values are found at this false discovery rate."""
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p) <= rate) if len(p) else np.zeros(0, bool)


def _moved(
    names: tuple[str, ...], columns: np.ndarray, recent: np.ndarray, p: np.ndarray, psi: float, config: Config
) -> tuple[Moved, ...]:
    old, new = columns[~recent], columns[recent]
    gap, spread = new.mean(axis=0) - old.mean(axis=0), np.sqrt((new.var(axis=0) + old.var(axis=0)) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        smd = np.where(np.abs(gap) < 1e-12, 0.0, gap / spread)
    is_agent = np.array([name.startswith("agent ") for name in names], dtype=bool)
    far = np.where(is_agent, psi >= config.min_psi, np.abs(smd) >= config.min_smd)
    drifted = far & benjamini_hochberg(p, config.level / 2)
    numbers = zip(names, old.mean(axis=0), new.mean(axis=0), smd, p, drifted, strict=True)
    return tuple(Moved(n, float(a), float(b), float(s), float(q), bool(d)) for n, a, b, s, q, d in numbers)


def _agents(agents: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Names of the commonest agents and of the rest, and (N, A) whose reply it is; none where all are one."""
    labels, counts = np.unique(agents.astype(str), return_counts=True)
    common = labels[np.argsort(-counts, kind="stable")][:_AGENTS]
    named = np.where(np.isin(agents.astype(str), common), agents.astype(str), REST)
    found = sorted(set(named.tolist()))
    if len(found) < 2:
        return [], np.zeros((len(agents), 0))
    return found, (named[:, None] == np.array(found)[None, :]).astype(float)


def _size(clusters: np.ndarray) -> tuple[int, int]:
    return len(clusters), len(set(clusters.astype(str).tolist()))
