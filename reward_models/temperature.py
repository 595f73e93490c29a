"""Temperature scaling of a reward model with ties: are differences of reward as large as people's votes say?

With the model's difference d and tie parameter nu (`ties`), the calibrated model of a pair is

    P(win) ~ e^{d / (2 tau)},   P(tie) ~ nu * e^{shift},   P(loss) ~ e^{-d / (2 tau)}

tau > 1: the model is overconfident, tau < 1: too cautious. Order of replies and accuracy do not change. Both numbers
are fitted by maximum likelihood on votes of people the model has not seen; the likelihood is concave in 1 / tau and
shift. Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, section 4.2, with the
shift as their vector scaling would have it for the one class that is not symmetric. Where votes are so few that 1 / tau
might as well be 0, its mean over what is plausible is applied (`temperature_likelihood.positive`), so that nothing is
divided by a thousand for want of votes.

What is reported as calibrated is cross-fitted: every person's probabilities come from a temperature fitted on others.
The interval of tau is from the sandwich variance over people (Liang and Zeger, Biometrika 73, 1986), with Student's
quantile, as votes of one person resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import model_files, ties
from reward_models.scorer import INNER, Chat, RewardModelError, Rewards, Scorer, load
from reward_models.temperature_likelihood import (
    Votes,
    cross_fitted,
    interval,
    maximise,
    positive,
    scaled,
    slope_error,
)

_LEAST = 1e-300


class Config(BaseModel):
    """When a temperature is fitted."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folds: int = Field(default=5, ge=2)
    """Folds of people for the figures that are reported; nobody is in two of them."""
    min_votes: int = Field(default=100, ge=2)
    """With fewer held-out votes the temperature stays 1."""
    min_users: int = Field(default=10, ge=2)
    """With votes of fewer people the temperature stays 1."""


@dataclass(frozen=True)
class Temperature:
    """A temperature, or the reason why it stays 1."""

    tau: float
    """What differences of reward are divided by."""
    shift: float
    """What is added to the log of the tie parameter."""
    estimate: float
    """Maximum likelihood tau, also where it is not applied; NaN where none was fitted."""
    low: float
    """Lower end of the 95 % interval of `estimate`."""
    high: float
    """Upper end; infinite where the votes may not follow the differences at all."""
    gain: float
    """Cross-fitted fall of the log-loss, nats per vote; NaN where none was fitted."""
    votes: int
    users: int
    reason: str = ""
    """Why it is not applied; empty where it is."""

    def apply(self, probabilities: np.ndarray) -> np.ndarray:
        """(N, 3) calibrated win, tie, loss of (N, 3) predicted ones."""
        if self.tau == 1 and self.shift == 0:
            return np.asarray(probabilities, dtype=np.float64)
        return scaled(*parts(probabilities), 1 / self.tau, self.shift)

    @property
    def sentence(self) -> str:
        """What a reader of a report should know."""
        if self.reason:
            return f"The temperature stays 1. {self.reason}"
        upper = f"to {self.high:.2f}" if math.isfinite(self.high) else "upwards"
        return (
            f"Rewards are divided by {self.tau:.2f} (95 % interval from {self.low:.2f} {upper}), as {self.votes} votes "
            f"of {self.users} people ask whom the model had not seen; it predicts them {self.gain:.3f} nats better so."
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON that every reader knows: what is not finite is text, as JSON has no number for it."""
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, about: Mapping[str, Any]) -> Temperature:
        """What `to_dict` made.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        return cls(
            tau=float(about["tau"]),
            shift=float(about["shift"]),
            estimate=float(about["estimate"]),
            low=float(about["low"]),
            high=float(about["high"]),
            gain=float(about["gain"]),
            votes=int(about["votes"]),
            users=int(about["users"]),
            reason=str(about["reason"]),
        )


@dataclass(frozen=True)
class Fitted:
    """A temperature and what it makes of the votes it was fitted on, out of sample."""

    temperature: Temperature
    probabilities: np.ndarray
    """(N, 3) cross-fitted; the model's own where no temperature is applied."""


def parts(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) reward differences and (N,) logs of the tie parameter behind (N, 3) probabilities of win, tie, loss.

    Raises:
        RewardModelError: a probability is NaN, or negative.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.shape[1] != 3 or not (p >= 0).all():
        raise RewardModelError(
            "Predictions must be probabilities of win, tie and loss.",
            got=f"shape {p.shape}, {int((~(p >= 0)).sum())} NaN or negative",
            next_step="look at the rewards of these pairs",
        )
    log_p = np.log(np.maximum(p, _LEAST))
    log_nu = log_p[:, ties.TIE] - (log_p[:, ties.WIN] + log_p[:, ties.LOSS]) / 2
    return log_p[:, ties.WIN] - log_p[:, ties.LOSS], np.maximum(log_nu, ties.NO_TIES)


def fit(
    probabilities: np.ndarray,
    outcome: np.ndarray,
    users: np.ndarray,
    config: Config | None = None,
    *,
    seed: int,
    weight: np.ndarray | None = None,
) -> Fitted:
    """Fit on held-out votes; the temperature stays 1 where votes are few or nothing is gained by it.

    Args:
        probabilities: (N, 3) predicted win, tie, loss.
        outcome: (N,) ties.WIN, TIE or LOSS.
        users: (N,) who voted; whoever the model has learned from must not be among them.
        config: defaults if None.
        seed: of the folds.
        weight: (N,) above 0, how much each vote counts; all alike if None.

    Raises:
        RewardModelError: a probability is NaN, or negative, or a weight is not above 0.
    """
    config = config or Config()
    p = np.asarray(probabilities, dtype=np.float64).reshape(-1, 3)
    votes = _votes(p, outcome, users, weight)
    n, n_users = len(p), len(np.unique(votes.person))

    def refused(reason: str, *found: float) -> Fitted:
        estimate, low, high, gain = found or (np.nan,) * 4
        return Fitted(Temperature(1.0, 0.0, estimate, low, high, gain, n, n_users, reason), p)

    few = too_few(n, n_users, config)
    if few:
        return refused(few)
    if not votes.difference.any():
        return refused("The model tells no two replies apart.")
    slope, shift = maximise(votes)
    error = slope_error(votes, slope, shift)
    low, high = interval(slope, error, n_users)
    out_of_sample = cross_fitted(votes, config.folds, seed)
    fall = ties.outcome_loss(p, votes.outcome) - ties.outcome_loss(out_of_sample, votes.outcome)
    gain = float((votes.weight * fall).mean())
    found = (1 / slope if slope > 0 else np.inf, low, high, gain)
    if slope <= 0:
        return refused("The votes do not follow the model's differences; no temperature mends that.", *found)
    if gain <= 0:
        return refused("A temperature of other people's votes predicts no better than none.", *found)
    return Fitted(Temperature(1 / positive(slope, error), shift, *found, n, n_users), out_of_sample)


def too_few(votes: int, users: int, config: Config) -> str:
    """Why a temperature is not fitted on so many held-out votes of so many people; empty where it is."""
    if votes >= config.min_votes and users >= config.min_users:
        return ""
    needed = f"{config.min_votes} of {config.min_users}"
    return f"{votes} held-out votes of {users} people are too few; {needed} are needed."


def _votes(p: np.ndarray, outcome: np.ndarray, users: np.ndarray, weight: np.ndarray | None) -> Votes:
    """The votes, with weights that are 1 on average.

    Raises:
        RewardModelError: a probability is NaN, or negative, or a weight is not above 0.
    """
    w = np.ones(len(p)) if weight is None else np.asarray(weight, dtype=np.float64)
    if not ((w > 0) & np.isfinite(w)).all():
        raise RewardModelError(
            "Votes that tell a temperature must weigh something.",
            got=f"{int((~((w > 0) & np.isfinite(w))).sum())} weights that are 0, negative or not finite",
            next_step="leave those votes out",
        )
    person = np.unique(np.asarray(users).astype(str), return_inverse=True)[1].astype(int)
    return Votes(*parts(p), np.asarray(outcome, dtype=int), w / w.mean() if len(w) else w, person)


@dataclass(frozen=True)
class Tempered:
    """A scorer whose rewards are divided by a temperature. See `reward_models.scorer.Scorer`."""

    scorer: Scorer
    temperature: Temperature

    @property
    def trained_on(self) -> frozenset[str]:
        """`preference_id`s the scorer was fitted on."""
        return self.scorer.trained_on

    def score(
        self,
        prompts: Sequence[Chat],
        completions: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> Rewards:
        """Rewards of B completions, in calibrated log-odds; the temperature counts as known exactly."""
        raw = self.scorer.score(prompts, completions, user_ids, agents)
        return Rewards(raw.mean / self.temperature.tau, raw.std / self.temperature.tau)

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss for differences of this scorer's rewards."""
        raw = self.scorer.probabilities(np.asarray(difference) * self.temperature.tau)
        return self.temperature.apply(raw)

    def save(self, directory: Path) -> None:
        """Write the scorer into a folder of `directory`, then `reward_model.json`, which makes it loadable."""
        with model_files.writing(directory) as about:
            self.scorer.save(directory / INNER)
            about |= _about(self.temperature)


def write(temperature: Temperature, directory: Path) -> None:
    """Wrap a temperature around the scorer that lies in the folder `INNER` of `directory`."""
    with model_files.writing(directory) as about:
        about |= _about(temperature)


def _about(temperature: Temperature) -> dict[str, Any]:
    return {"method": "temperature", "temperature": temperature.to_dict()}


def load_tempered(directory: Path, base: Path, cache_dir: Path | None = None) -> Tempered:
    """Load what `Tempered.save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    with model_files.reading(directory) as about:
        temperature = Temperature.from_dict(about["temperature"])
        return Tempered(load(directory / INNER, base, cache_dir), temperature)
