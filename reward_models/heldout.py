"""How well a scorer predicts preferences it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reward_models import ties
from reward_models.length_bias import LengthControlled, log_words
from reward_models.scorer import Chat, Scorer
from reward_models.temperature import Tempered, parts
from reward_models.temperature_likelihood import scaled

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Heldout:
    """Per-row predictions on N held-out pairs, in a presentation order fixed by `preference_id`."""

    probabilities: np.ndarray
    """(N, 3) predicted win, tie, loss of the first reply."""
    outcome: np.ndarray
    """(N,) what happened: ties.WIN, TIE or LOSS."""
    clusters: np.ndarray
    """(N,) user of each row, or its prompt where no user is known: what intervals resample."""

    @property
    def decided(self) -> np.ndarray:
        """(N,) bool: rows where one reply won."""
        return self.outcome != ties.TIE

    @property
    def correct(self) -> np.ndarray:
        """(N,) 1 where the scorer puts the winner first, 0.5 when it cannot tell; for decided rows."""
        lean = self.probabilities[:, ties.WIN] - self.probabilities[:, ties.LOSS]
        right = np.where(self.outcome == ties.WIN, lean > 0, lean < 0)
        return np.where(lean == 0, 0.5, right.astype(float))

    @property
    def log_loss(self) -> np.ndarray:
        """(N,) negative log-likelihood in nats over the three outcomes."""
        return ties.outcome_loss(self.probabilities, self.outcome)

    @property
    def p_first_given_decided(self) -> np.ndarray:
        """(N,) predicted probability that the first reply wins, given that one does."""
        win, loss = self.probabilities[:, ties.WIN], self.probabilities[:, ties.LOSS]
        return win / np.maximum(win + loss, 1e-12)


@dataclass(frozen=True)
class Presented:
    """N pairs as they are shown to a scorer, and what happened."""

    prompts: Sequence[Chat]
    first: Sequence[str]
    second: Sequence[str]
    outcome: np.ndarray
    """(N,) ties.WIN, TIE or LOSS of the first reply."""


def loser_first(preference_ids: Sequence[str]) -> np.ndarray:
    """(N,) bool: pairs that are presented with the rejected reply first."""
    return np.array([int(i[8:16], 16) % 2 == 1 for i in preference_ids], dtype=bool)


def bare(scorer: Scorer) -> Scorer:
    """The reward model itself, without what is wrapped around it."""
    while isinstance(scorer, (Tempered, LengthControlled)):
        scorer = scorer.scorer
    return scorer


def corrected(scorer: Scorer, probabilities: np.ndarray, longer: np.ndarray) -> np.ndarray:
    """(N, 3) what a scorer's wrappers make of what the reward model inside them says of N pairs.

    Args:
        scorer: a temperature, a length control, both in any order, or a reward model, which changes nothing.
        probabilities: (N, 3) win, tie, loss of the first reply, of `bare(scorer)`.
        longer: (N,) log words of the first reply less the second's.
    """
    if isinstance(scorer, Tempered):
        return scorer.temperature.apply(corrected(scorer.scorer, probabilities, longer))
    if isinstance(scorer, LengthControlled):
        difference, log_nu = parts(corrected(scorer.scorer, probabilities, longer))
        return scaled(difference - scorer.slope * longer, log_nu, 1.0, 0.0)
    return probabilities


def compare(
    scorer: Scorer,
    prompts: Sequence[Chat],
    first: Sequence[str],
    second: Sequence[str],
    user_ids: Sequence[str | None],
    agents: Sequence[str | None],
) -> np.ndarray:
    """(N, 3) probabilities that the first reply wins, ties, loses.

    By the reward model's own comparison where it has one (`compare`), which knows what a difference of rewards does
    not: people's habits, and how sure their taste is. Else by that difference.
    """
    own = getattr(bare(scorer), "compare", None)
    if own is not None:
        said = np.asarray(own(prompts, first, second, user_ids=user_ids, agents=agents))
        return corrected(scorer, said, log_words(first) - log_words(second))
    n = len(prompts)
    rewards = scorer.score(
        [*prompts, *prompts],
        [*first, *second],
        user_ids=[*user_ids, *user_ids],
        agents=[*agents, *agents],
    ).mean
    return scorer.probabilities(rewards[:n] - rewards[n:])


def presented(paired: pa.Table) -> Presented:
    """The pairs in the order in which their replies are presented: half of them loser first, so that 0.5 is chance."""
    columns = paired.select(["preference_id", "prompt", "chosen", "rejected", "margin"]).to_pydict()
    flip = loser_first(columns["preference_id"])
    pairs = list(zip(columns["chosen"], columns["rejected"], flip.tolist(), strict=True))
    tie = np.asarray(columns["margin"]) == 0
    outcome = np.where(tie, ties.TIE, np.where(flip, ties.LOSS, ties.WIN)).astype(int)
    first = [rejected if turned else chosen for chosen, rejected, turned in pairs]
    second = [chosen if turned else rejected for chosen, rejected, turned in pairs]
    return Presented(columns["prompt"], first, second, outcome)


def predict(scorer: Scorer, rows: pa.Table) -> Heldout:
    """Predict the paired rows of `rows` for the people who voted, as `presented`; see `compare` for how."""
    import pyarrow.compute as pc

    rows = rows.filter(pc.is_valid(rows["rejected"])).sort_by("preference_id")
    about = rows.select(["prompt_key", "user_id", "agent"]).to_pydict()
    shown = presented(rows)
    said = compare(scorer, shown.prompts, shown.first, shown.second, about["user_id"], about["agent"])
    clusters = [u or k for u, k in zip(about["user_id"], about["prompt_key"], strict=True)]
    return Heldout(said, shown.outcome, np.array(clusters, dtype=object))
