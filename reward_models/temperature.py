"""Temperature scaling of a reward model with ties: are differences of reward as large as people's votes say?

With the model's difference d and tie parameter nu (`ties`), the calibrated model of a pair is

    P(win) ~ e^{d / (2 tau)},   P(tie) ~ nu * e^{shift},   P(loss) ~ e^{-d / (2 tau)}

tau > 1: the model is overconfident, tau < 1: too cautious. Order of replies and accuracy do not change. Both numbers
are fitted by maximum likelihood on votes of people the model has not seen; the likelihood is concave in 1 / tau and
shift. Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, section 4.2, with the
shift as their vector scaling would have it for the one class that is not symmetric.

What is reported as calibrated is cross-fitted: every person's probabilities come from a temperature fitted on others.
The interval of tau is from the sandwich variance over people (Liang and Zeger, Biometrika 73, 1986), with Student's
quantile, as votes of one person resemble each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import model_files, ties
from reward_models.scorer import INNER, Chat, RewardModelError, Rewards, Scorer, load

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
        return _scaled(*parts(probabilities), 1 / self.tau, self.shift)


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
) -> Fitted:
    """Fit on held-out votes; the temperature stays 1 where votes are few or nothing is gained by it.

    Args:
        probabilities: (N, 3) predicted win, tie, loss.
        outcome: (N,) ties.WIN, TIE or LOSS.
        users: (N,) who voted; whoever the model has learned from must not be among them.
        config: defaults if None.
        seed: of the folds.

    Raises:
        RewardModelError: a probability is NaN, or negative.
    """
    config = config or Config()
    p, outcome = np.asarray(probabilities, dtype=np.float64).reshape(-1, 3), np.asarray(outcome, dtype=int)
    difference, log_nu = parts(p)
    codes = np.unique(np.asarray(users).astype(str), return_inverse=True)[1].astype(int)
    n, n_users = len(outcome), int(codes.max() + 1) if len(codes) else 0

    def refused(reason: str, *found: float) -> Fitted:
        estimate, low, high, gain = found or (np.nan,) * 4
        return Fitted(Temperature(1.0, 0.0, estimate, low, high, gain, n, n_users, reason), p)

    if n < config.min_votes or n_users < config.min_users:
        needed = f"{config.min_votes} of {config.min_users}"
        return refused(f"{n} held-out votes of {n_users} people are too few; {needed} are needed.")
    if not difference.any():
        return refused("The model tells no two replies apart.")
    slope, shift = _maximise(difference, log_nu, outcome)
    low, high = _interval(difference, log_nu, outcome, codes, slope, shift)
    out_of_sample = _cross_fitted(difference, log_nu, outcome, codes, config.folds, seed)
    gain = float((ties.outcome_loss(p, outcome) - ties.outcome_loss(out_of_sample, outcome)).mean())
    found = (1 / slope if slope > 0 else np.inf, low, high, gain)
    if slope <= 0:
        return refused("The votes do not follow the model's differences; no temperature mends that.", *found)
    if gain <= 0:
        return refused("A temperature of other people's votes predicts no better than none.", *found)
    return Fitted(Temperature(1 / slope, shift, *found, n, n_users), out_of_sample)


def _scaled(difference: np.ndarray, log_nu: np.ndarray, slope: float, shift: float) -> np.ndarray:
    """(N, 3) probabilities with differences times `slope`."""
    from scipy.special import softmax

    half = slope * difference / 2
    return np.asarray(softmax(np.stack([half, log_nu + shift, -half], axis=1), axis=1))


def _slopes(difference: np.ndarray, p: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """(N, 2) derivatives of each vote's log-likelihood in slope and shift."""
    won = (outcome == ties.WIN).astype(float) - (outcome == ties.LOSS)
    lean = p[:, ties.WIN] - p[:, ties.LOSS]
    return np.stack([difference * (won - lean) / 2, (outcome == ties.TIE) - p[:, ties.TIE]], axis=1)


def _curvature(difference: np.ndarray, p: np.ndarray) -> np.ndarray:
    """(2, 2) negative Hessian of the log-likelihood, with the prior that keeps the shift finite."""
    lean, tie = p[:, ties.WIN] - p[:, ties.LOSS], p[:, ties.TIE]
    across = -(difference * lean * tie).sum() / 2
    by_slope = (difference**2 * (p[:, ties.WIN] + p[:, ties.LOSS] - lean**2)).sum() / 4
    return np.array([[by_slope, across], [across, (tie * (1 - tie)).sum() + ties.TIE_RIDGE]])


def _maximise(difference: np.ndarray, log_nu: np.ndarray, outcome: np.ndarray) -> tuple[float, float]:
    """Slope 1 / tau and shift of greatest likelihood."""
    from scipy.optimize import minimize

    # In units of the typical difference, so that both directions are about as curved.
    n, unit = len(outcome), float(np.sqrt((difference**2).mean())) or 1.0
    d = difference / unit

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        p = _scaled(d, log_nu, *at)
        prior = np.array([0.0, ties.TIE_RIDGE * at[1]])
        value = ties.outcome_loss(p, outcome).sum() + prior[1] * at[1] / 2
        return float(value) / n, (prior - _slopes(d, p, outcome).sum(axis=0)) / n

    found = minimize(
        loss,
        np.array([unit, 0.0]),
        jac=True,
        hess=lambda at: _curvature(d, _scaled(d, log_nu, *at)) / n,
        method="trust-exact",
        options={"gtol": 1e-9},
    )
    return float(found.x[0]) / unit, float(found.x[1])


def _interval(
    difference: np.ndarray,
    log_nu: np.ndarray,
    outcome: np.ndarray,
    codes: np.ndarray,
    slope: float,
    shift: float,
) -> tuple[float, float]:
    """95 % interval of tau over people."""
    from scipy.special import stdtrit

    p = _scaled(difference, log_nu, slope, shift)
    bread = np.linalg.pinv(_curvature(difference, p))
    g = int(codes.max()) + 1
    scores = np.stack([np.bincount(codes, weights=s, minlength=g) for s in _slopes(difference, p, outcome).T])
    half = float(stdtrit(g - 1, 0.975) * np.sqrt((bread @ scores @ scores.T @ bread)[0, 0] * g / (g - 1)))
    low = 1 / (slope + half) if slope + half > 0 else np.inf
    return low, 1 / (slope - half) if slope > half else np.inf


def _cross_fitted(
    difference: np.ndarray, log_nu: np.ndarray, outcome: np.ndarray, codes: np.ndarray, folds: int, seed: int
) -> np.ndarray:
    """(N, 3) probabilities of each person's votes under the temperature of the people in other folds."""
    people = int(codes.max()) + 1
    fold = (np.random.default_rng(seed).permutation(people) % min(folds, people))[codes]
    p = np.empty((len(outcome), 3))
    for k in np.unique(fold):
        own, others = fold == k, fold != k
        slope, shift = _maximise(difference[others], log_nu[others], outcome[others])
        p[own] = _scaled(difference[own], log_nu[own], slope, shift)
    return p


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
        """Rewards of B completions, in calibrated log-odds."""
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
            about |= {"method": "temperature", "temperature": vars(self.temperature)}


def load_tempered(directory: Path, base: Path, cache_dir: Path | None = None) -> Tempered:
    """Load what `Tempered.save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    with model_files.reading(directory) as about:
        return Tempered(load(directory / INNER, base, cache_dir), Temperature(**about["temperature"]))
