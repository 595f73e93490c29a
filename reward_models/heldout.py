"""How well a scorer predicts preferences it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reward_models import ties
from reward_models.scorer import Scorer

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


def loser_first(preference_ids: Sequence[str]) -> np.ndarray:
    """(N,) bool: pairs that are presented with the rejected reply first."""
    return np.array([int(i[8:16], 16) % 2 == 1 for i in preference_ids], dtype=bool)


def predict(scorer: Scorer, rows: pa.Table) -> Heldout:
    """Predict the paired rows of `rows`; half of them are presented loser first, so that 0.5 is chance."""
    import pyarrow.compute as pc

    rows = rows.filter(pc.is_valid(rows["rejected"])).sort_by("preference_id")
    columns = rows.select(
        ["preference_id", "prompt", "prompt_key", "chosen", "rejected", "margin", "user_id", "agent"]
    ).to_pydict()
    n = rows.num_rows
    rewards = scorer.score(
        columns["prompt"] * 2,
        columns["chosen"] + columns["rejected"],
        user_ids=columns["user_id"] * 2,
        agents=columns["agent"] * 2,
    ).mean
    flip = loser_first(columns["preference_id"])
    difference = np.where(flip, rewards[n:] - rewards[:n], rewards[:n] - rewards[n:])
    tie = np.asarray(columns["margin"]) == 0
    outcome = np.where(tie, ties.TIE, np.where(flip, ties.LOSS, ties.WIN))
    clusters = [u or k for u, k in zip(columns["user_id"], columns["prompt_key"], strict=True)]
    return Heldout(scorer.probabilities(difference), outcome.astype(int), np.array(clusters, dtype=object))
