"""What to ask somebody first: the pair of replies whose answer tells most about their taste.

The answer y (first, tie, second) to a pair tells about the person's effects theta the mutual information

    I(y; theta) = H(E p) - E H(p)        p = P(y | d, t),   (d, t) ~ N(A m, A C A')

as an answer depends on theta through (d, t) alone: a difference of two entropies, integrated on the grid of `taste`.
Where the belief is narrow and ties are rare it is p (1 - p) x' C x / 2, Fisher information times the variance of the
reward difference: the criterion by which PReF chooses its questions (Shenfeld et al. 2025, Language Model
Personalization via Reward Factorization, arXiv 2503.06358, section on active learning), derived here from the
information instead of a confidence bound. What is uncertain for everybody, or a coin toss whatever the taste, tells
nothing about the person and is not asked. The general form is Houlsby et al. 2011 (arXiv 1112.5745).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reward_models.personal import Personal
from reward_models.scorer import RewardModelError
from reward_models.taste import Belief, curvature, expected_entropy, expected_probabilities, predictors_of
from reward_models.votes_of_rows import Given


class Question(NamedTuple):
    """A pair worth asking about."""

    pair: int
    """Which of the candidates."""
    information: float
    """What its answer tells about the person, in nats; log 3 at most."""
    probabilities: np.ndarray
    """(3,) expected first, tie, second."""


def information(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(N,) mutual information in nats of answers whose (d, t) have these means (N, 2) and covariances (N, 2, 2)."""
    p = expected_probabilities(mean, spread)
    whole = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    return np.asarray(np.maximum(whole - expected_entropy(mean, spread), 0.0))


def next_questions(
    model: Personal, pairs: Given, user_id: str | None, agent: str | None = None, count: int = 1
) -> list[Question]:
    """The candidates whose answers tell most, each given that those before it are asked too.

    After each the belief is narrowed by its expected answer, so that the second question is not the first in other
    words.

    Args:
        model: the fitted model.
        pairs: candidates.
        user_id: who is asked; a stranger has the belief about people like them.
        agent: who would ask.
        count: how many questions.

    Raises:
        RewardModelError: there is no candidate, or the model believes that people do not differ.
    """
    if not len(pairs.prompts):
        raise RewardModelError(
            "There is no pair to ask about.",
            allowed="pairs of replies to one prompt",
            next_step="palate build, or --from a JSONL file with prompt, first and second",
        )
    if model.taste.trust == 0:
        raise RewardModelError(
            "This reward model has one taste for everybody: no answer tells anything about one person.",
            got="trust 0: too few people voted, or what is personal did not predict those who were not fitted",
            next_step="palate train, once more people have voted",
        )
    votes = model.votes(pairs)
    design = votes.personal_design(model.taste.basis)
    offset = model.taste.offset(votes)
    belief = model.person(user_id, agent).belief
    asked: list[Question] = []
    open_pairs = np.ones(len(design), dtype=bool)
    while len(asked) < min(count, len(design)):
        mean, spread = predictors_of(belief, design)
        mean = mean + offset
        tells = np.where(open_pairs, information(mean, spread), -1.0)
        best = int(np.argmax(tells))
        probabilities = expected_probabilities(mean[best : best + 1], spread[best : best + 1])[0]
        asked.append(Question(best, float(tells[best]), probabilities))
        open_pairs[best] = False
        belief = _narrowed(belief, design[best], mean[best])
    return asked


def _narrowed(belief: Belief, design: np.ndarray, at: np.ndarray) -> Belief:
    """The belief after an answer that was as expected: its mean stays, its covariance shrinks by the curvature."""
    gain = belief.covariance @ design.T
    inner = np.linalg.inv(np.linalg.inv(curvature(at) + 1e-9 * np.eye(2)) + design @ gain)
    return Belief(belief.mean, belief.covariance - gain @ inner @ gain.T)
