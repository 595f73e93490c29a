"""Everything a gate may ask about a reward model: what it predicts of people it has not seen.

    accuracy     on decided pairs: 1 (the winner got the higher reward), 0.5 (equal), 0
    log_loss     over win, tie, loss, nats
    gain         log-loss of "ties as often as in training, else a coin" less the model's, nats per vote
    worst_users  mean gain of the worst tenth of people with at least `min_user_votes` votes (`worst_users`)
    length       `reward_models.length_bias`: correlations of rewards and of choices with length, and the excess
    k_shot       log-loss of the shared taste alone less the model's after k votes of a person it never met (`k_shot`)

Correlations that the model expects are those after the temperature, so that overconfidence is not taken for a love of
length.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from evaluation.calibration import Calibration, calibrate
from evaluation.errors import EvaluationError
from evaluation.estimates import Estimate, bootstrap_mean, cluster_codes, of_sums
from evaluation.k_shot import Config as KShotConfig
from evaluation.k_shot import KShot, measure
from evaluation.worst_users import worst_users
from reward_models import drift, length_bias, temperature, ties
from reward_models.drift import Config as DriftConfig
from reward_models.drift import Drift
from reward_models.heldout import Heldout, loser_first, predict
from reward_models.scorer import Scorer
from reward_models.temperature import Config as TemperatureConfig
from reward_models.temperature import Temperature

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]


class Config(BaseModel):
    """How a reward model is looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    min_user_votes: int = Field(default=5, ge=2)
    """People with fewer held-out votes are not among those whose worst tenth is looked for."""
    temperature: TemperatureConfig = TemperatureConfig()
    """When a temperature is fitted."""
    drift: DriftConfig = DriftConfig()
    """How drift is tested."""
    k_shot: KShotConfig = KShotConfig()
    """How it is measured what votes of a person tell of their later ones."""


@dataclass(frozen=True)
class RewardCase:
    """The case for or against a reward model."""

    accuracy: Estimate
    log_loss: Estimate
    gain: Estimate
    worst_users: Estimate
    """`n` counts the people with enough votes, of whom the worst tenth is meant."""
    calibration: Calibration | None
    """Of decided pairs, as the model says; None without any."""
    temperature: Temperature
    calibrated: Calibration | None
    """Of decided pairs after the temperature of other people's votes."""
    length: dict[str, Estimate]
    """By `length_bias.NAMES`."""
    drift: Drift
    votes: int
    """Held-out pairs."""
    users: int
    """Whose they are; a vote of nobody known counts as its prompt's."""
    k_shot: KShot = field(default_factory=KShot)
    """How well it knows people after k of their votes."""

    @property
    def age_days(self) -> float:
        """Since the newest row the model has learned from; NaN where no row has a time."""
        return self.drift.age_days

    def estimates(self) -> dict[str, Estimate]:
        """Every figure with an interval, by a name that MLflow accepts."""
        plain = {name: getattr(self, name) for name in ("accuracy", "log_loss", "gain", "worst_users")}
        found = {**plain, **{f"length_{name}": estimate for name, estimate in self.length.items()}}
        for name, calibration in (("", self.calibration), ("calibrated_", self.calibrated)):
            if calibration is not None:
                found[f"{name}ece"] = calibration.ece
        t = self.temperature
        if math.isfinite(t.estimate):
            found["temperature"] = Estimate(t.estimate, t.low, t.high, t.users)
        return found | self.k_shot.estimates()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON: what is not finite becomes null."""
        return {
            "estimates": {name: estimate.to_dict() for name, estimate in self.estimates().items()},
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
            "calibrated": None if self.calibrated is None else self.calibrated.to_dict(),
            "temperature": _plain(asdict(self.temperature)),
            "drift": _plain(asdict(self.drift)),
            "k_shot": self.k_shot.to_dict(),
            "votes": self.votes,
            "users": self.users,
        }


@dataclass(frozen=True)
class Pairs:
    """N held-out pairs with all that a case is made of."""

    predicted: Heldout
    longer: Array
    """(N,) log words of the first reply less the second's."""
    drift: Drift
    tie_share: float
    """Of the rows the model has learned from."""
    k_shot: KShot = field(default_factory=KShot)
    """Of the scorer that predicted them."""


def make(
    scorer: Scorer,
    rows: pa.Table,
    *,
    train_rows: pa.Table,
    now: datetime,
    seed: int,
    people_apart: bool = True,
    config: Config | None = None,
) -> RewardCase:
    """Look at a scorer through held-out rows. Those newer than all it has learned from are what drift is tested on.

    Args:
        scorer: a fitted reward model.
        rows: held-out PREFERENCES rows, of people and prompts it has not seen; unpaired ones are passed over.
        train_rows: PREFERENCES rows among which are those it was fitted on; others are passed over.
        now: aware.
        seed: of every resampling.
        people_apart: whether people were held out, so that none of them may be among those it was fitted on.
        config: defaults if None.

    Raises:
        EvaluationError: held-out rows or people are among those it was fitted on, or there is no held-out pair.
        RewardModelError: rewards are not finite.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    config = config or Config()
    learned = train_rows.filter(
        pc.is_in(train_rows["preference_id"], pa.array(sorted(scorer.trained_on), pa.string()))
    )
    paired = rows.filter(pc.is_valid(rows["rejected"])).sort_by("preference_id")
    _refuse_seen(scorer, paired, learned, people_apart)
    predicted = predict(scorer, paired)
    newest, timed = drift.newest_time(learned), np.asarray(pc.is_valid(paired["event_time"]), dtype=bool)
    recent = np.zeros(paired.num_rows, dtype=bool)
    if newest is not None:
        recent = np.asarray(pc.fill_null(pc.greater(paired["event_time"], newest), False), dtype=bool)
    found = drift.compare(
        drift.seen(paired, predicted).take(timed),
        recent[timed],
        age_days=drift.age_days(learned, now),
        config=config.drift,
        seed=seed,
    )
    margins = learned.filter(pc.is_valid(learned["rejected"]))["margin"].to_numpy()
    share = float((margins == 0).mean()) if len(margins) else 0.0
    curve = measure(scorer, paired, seed=seed, config=config.k_shot)
    pairs = Pairs(predicted, _longer(paired, predicted), found, share, curve)
    return judge(pairs, seed=seed, config=config)


def judge(pairs: Pairs, *, seed: int, config: Config | None = None) -> RewardCase:
    """The case from predictions; a pure function.

    Raises:
        EvaluationError: there is no pair.
    """
    config, heldout = config or Config(), pairs.predicted
    if len(heldout.outcome) == 0:
        raise EvaluationError(
            "A reward model is judged by held-out pairs.", got="none", next_step="collect more feedback"
        )
    decided, users = heldout.decided, heldout.clusters
    fitted = temperature.fit(heldout.probabilities, heldout.outcome, users, config.temperature, seed=seed)
    calibrated = Heldout(fitted.probabilities, heldout.outcome, users)
    gain = _prior_loss(pairs.tie_share, heldout.outcome) - heldout.log_loss
    accuracy = bootstrap_mean(heldout.correct[decided], users[decided], seed=seed, bounds=(0, 1))
    return RewardCase(
        accuracy=accuracy,
        log_loss=bootstrap_mean(heldout.log_loss, users, seed=seed),
        gain=bootstrap_mean(gain, users, seed=seed),
        worst_users=worst_users(gain, users, config.min_user_votes, seed=seed),
        calibration=_calibration(heldout, seed),
        temperature=fitted.temperature,
        calibrated=_calibration(calibrated, seed),
        length=_length(heldout, calibrated, pairs.longer, seed),
        drift=pairs.drift,
        votes=len(gain),
        users=cluster_codes(users, len(gain))[1],
        k_shot=pairs.k_shot,
    )


def _refuse_seen(scorer: Scorer, paired: pa.Table, learned: pa.Table, people_apart: bool) -> None:
    shared = scorer.trained_on.intersection(paired["preference_id"].to_pylist())
    people: set[str] = set()
    if people_apart:
        people = set(learned["user_id"].to_pylist()) & set(paired["user_id"].to_pylist()) - {None}
    if shared or people:
        raise EvaluationError(
            "A reward model is judged by people it has not learned from.",
            got=f"{len(shared)} rows and {len(people)} people that it has",
            next_step="rebuild the dataset with `palate build`",
        )


def _longer(paired: pa.Table, predicted: Heldout) -> Array:
    """(N,) log words of the reply that `heldout.predict` presented first, less the other's.

    Raises:
        EvaluationError: it presented the pairs in another way than is thought here.
    """
    columns = paired.select(["preference_id", "chosen", "rejected"]).to_pydict()
    flip = loser_first(columns["preference_id"])
    if (flip != (predicted.outcome == ties.LOSS))[predicted.decided].any():
        raise EvaluationError("Predictions do not belong to these rows.", got="another order of replies")
    longer = length_bias.log_words(columns["chosen"]) - length_bias.log_words(columns["rejected"])
    return np.where(flip, -longer, longer)


def _prior_loss(tie_share: float, outcome: Array) -> Array:
    """(N,) log-loss of the forecast "ties as often as in training, otherwise a coin"."""
    share = float(np.clip(tie_share, 1e-3, 1 - 1e-3))
    return np.where(outcome == ties.TIE, -math.log(share), -math.log((1 - share) / 2))


def _calibration(heldout: Heldout, seed: int) -> Calibration | None:
    decided = heldout.decided
    if not decided.any():
        return None
    return calibrate(
        heldout.p_first_given_decided[decided],
        outcome=(heldout.outcome[decided] == ties.WIN).astype(np.float64),
        clusters=heldout.clusters[decided],
        seed=seed,
    )


def _length(heldout: Heldout, calibrated: Heldout, longer: Array, seed: int) -> dict[str, Estimate]:
    choice = (heldout.outcome == ties.WIN).astype(float) - (heldout.outcome == ties.LOSS)
    difference, _ = temperature.parts(heldout.probabilities)
    lean = calibrated.probabilities[:, ties.WIN] - calibrated.probabilities[:, ties.LOSS]
    parts = length_bias.moments(difference, lean, choice, longer)
    bounds = [(-2.0, 2.0) if name == "excess" else (-1.0, 1.0) for name in length_bias.NAMES]
    found = of_sums(parts, heldout.clusters, length_bias.correlations, bounds, seed=seed)
    return dict(zip(length_bias.NAMES, found, strict=True))


def _plain(value: Any) -> Any:
    """Nested values as JSON has them."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
