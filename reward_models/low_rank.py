"""A shared basis of tastes, each person a point in it: rewards of low rank with habits, fitted by Laplace-EM.

The reward of person u is linear in a reply's vector, with weights that differ between people in few directions:

    r_u(x) = x' (w + B z_u)          B (D, R) shared, z_u (R,) the person's

This is LoRe's model (Bose et al. 2025, LoRe: Personalizing LLMs via Low-Rank Reward Modeling, arXiv 2504.14439,
where r_u = z_u' B' x and all users' weights form a matrix of rank R), written around the population's mean w.
LoRe keeps z_u in a simplex; here it is Gaussian, so that one vote updates it in closed form, its uncertainty is known,
and a person without votes has exactly the mean of people like them. Beside taste a person has habits: how readily they
call a tie, how much a difference in length adds to that, and a lean to what was shown first.

    theta_u = (z_u, habits_u) ~ N(Gamma g_u, Sigma)      g_u: what is known of a person without votes

Gamma, Sigma, w and B come from all people together. E step: `taste.posterior` of every person given the rest. M step:
w given everybody's theta (penalised Newton); Sigma = mean of C_u + (m_u - Gamma g_u)(…)'; Gamma by ridge regression.
Sources: Breslow and Clayton 1993 (JASA 88) for the approximation, Dempster, Laird and Rubin 1977 for EM. The basis
is read off the covariance of the full deviations: with Sigma = V L V' the deviation of most variance in R directions
is B = V_R L_R^(1/2), under which z has unit variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models.taste import Belief, expected_probabilities, posterior, posteriors, predictors_of
from reward_models.ties import NO_TIES

HABITS = ("first", "ties", "ties_by_length")
"""Lean to what is shown first (on d), readiness for ties (on t), and how a difference in length changes it (on t)."""
SHARED_EXTRA = (*HABITS, "ties_by_distance")


class LowRankConfig(BaseModel):
    """Settings of the shared basis."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rank: int = Field(default=4, ge=0)
    """Directions in which people differ; 0 leaves habits only."""
    ridge: float = Field(default=10.0, gt=0)
    """Prior precision of the shared weights."""
    taste_std: float = Field(default=0.15, gt=0)
    """Standard deviation of a person's weights around the shared ones, in reward per standardised column, that the
    estimate is pulled to."""
    habit_std: float = Field(default=0.7, gt=0)
    """The same for habits, in log-odds."""
    prior_people: float = Field(default=10.0, gt=0)
    """How many people's worth that pull has."""
    group_people: float = Field(default=8.0, gt=0)
    """So many people of a group are needed for half of its difference from everybody to be believed."""
    rounds: int = Field(default=12, ge=1)
    """EM steps before and after the basis is reduced."""


@dataclass(frozen=True)
class Votes:
    """N votes between two replies each.

    Attributes:
        x: (N, D) standardised vector of the first reply less the second's.
        log_words: (N,) log of the ratio of their lengths in words.
        outcome: (N,) ties.WIN, TIE or LOSS of the first.
        user: (N,) code of the person, -1 where nobody is known.
        weight: (N,)
        sided: (N,) 1 where being first means something: what was shown first, or a single reply that was rated,
            which stands against the average reply. 0 where the order was drawn by lot afterwards.
        can_tie: (N,) 1 where a tie could have been said, 0 for a thumb on a single reply.
    """

    x: np.ndarray
    log_words: np.ndarray
    outcome: np.ndarray
    user: np.ndarray
    weight: np.ndarray
    sided: np.ndarray
    can_tie: np.ndarray

    def take(self, rows: np.ndarray) -> Votes:
        """Some of them."""
        arrays = {
            n: getattr(self, n)[rows]
            for n in ("x", "log_words", "outcome", "user", "weight", "sided", "can_tie")
        }
        return replace(self, **arrays)

    def base(self) -> np.ndarray:
        """(N, 2) what no effect changes: no tie where none could be said."""
        return np.stack([np.zeros(len(self.x)), NO_TIES * (1 - self.can_tie)], axis=1)

    def shared_design(self) -> np.ndarray:
        """(N, 2, D + 4) of the shared effects: w, then `SHARED_EXTRA`."""
        distance = np.zeros((len(self.x), 2, 1))
        distance[:, 1, 0] = self.can_tie * np.sqrt((self.x**2).mean(axis=1))
        return np.concatenate([self._design(self.x), distance], axis=2)

    def personal_design(self, basis: np.ndarray) -> np.ndarray:
        """(N, 2, R + 3) of a person's effects: z, then `HABITS`."""
        return self._design(self.x @ basis)

    def _design(self, columns: np.ndarray) -> np.ndarray:
        """(N, 2, C + 3) of columns (N, C) on the reward difference, then `HABITS`."""
        n, c = columns.shape
        design = np.zeros((n, 2, c + len(HABITS)))
        design[:, 0, :c] = columns
        design[:, 0, c] = self.sided
        design[:, 1, c + 1] = self.can_tie
        design[:, 1, c + 2] = self.can_tie * np.abs(self.log_words)
        return design

    def grouped(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows with a person, each one's together and in their order; people's codes (U,); where each begins (U,)."""
        order = np.argsort(self.user, kind="stable")
        order = order[np.searchsorted(self.user[order], 0) :]
        people, first = np.unique(self.user[order], return_index=True)
        return order, people, first

    def by_person(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each person's code and the rows of their votes, in their order."""
        order, people, first = self.grouped()
        return zip(people.tolist(), np.split(order, first[1:]) if len(people) else [], strict=True)


@dataclass(frozen=True)
class LowRank:
    """What holds for everybody.

    Attributes:
        shared: belief about w (D,) and `SHARED_EXTRA`.
        basis: (D, R) B.
        covariance: (R + 3, R + 3) Sigma.
        groups: (G, R + 3) Gamma: what each feature of a person adds to what is expected of them.
        trust: in [0, 1], the factor on Sigma and Gamma that predicted people best who were not fitted; 0 is the
            shared taste alone.
    """

    shared: Belief
    basis: np.ndarray
    covariance: np.ndarray
    groups: np.ndarray
    trust: float = 1.0

    def prior(self, known: np.ndarray | None = None) -> Belief:
        """What is believed of a person without votes, given what is known of them (G,)."""
        mean = np.zeros(len(self.covariance)) if known is None else known @ self.groups
        return Belief(self.trust * mean, self.trust * self.covariance)

    def offset(self, votes: Votes) -> np.ndarray:
        """(N, 2) the shared part of (d, t)."""
        return np.asarray(votes.base() + votes.shared_design() @ self.shared.mean)

    def predict(self, votes: Votes, belief: Belief | None) -> np.ndarray:
        """(N, 3) probabilities for votes of one person, or of nobody in particular: the shared taste alone.

        `belief` may also be one for each vote, stacked as `taste.predictors_of` takes them.
        """
        mean, spread = predictors_of(self.shared, votes.shared_design())
        mean = mean + votes.base()
        if belief is not None:
            own, own_spread = predictors_of(belief, votes.personal_design(self.basis))
            mean, spread = mean + own, spread + own_spread
        return expected_probabilities(mean, spread)

    def learn(self, votes: Votes, prior: Belief) -> Belief:
        """What is believed of a person after these votes of theirs."""
        return posterior(
            prior, votes.personal_design(self.basis), votes.outcome, votes.weight, self.offset(votes)
        )

    def learn_all(self, votes: Votes, first: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is believed of U people after all their votes: means (U, R + 3), covariances (U, R + 3, R + 3).

        Args:
            votes: each person's together.
            first: (U,) row of each one's first vote.
            known: (U, G) what is known of them without votes.
        """
        return posteriors(
            self.trust * (known @ self.groups), self.trust * self.covariance,
            votes.personal_design(self.basis), votes.outcome, votes.weight, self.offset(votes), first,
        )  # fmt: skip


def fit(
    votes: Votes,
    known: np.ndarray,
    config: LowRankConfig,
    taste_columns: np.ndarray | None = None,
) -> LowRank:
    """Fits everything that is shared.

    Args:
        votes: of many people; `votes.user` indexes `known`.
        known: (U, G) what is known of each person without votes; G may be 0.
        config: settings.
        taste_columns: (D,) bool, the columns of x in which people may differ; all when None.
    """
    d = votes.x.shape[1]
    open_columns = np.flatnonzero(np.ones(d, bool) if taste_columns is None else taste_columns)
    wide = np.zeros((d, len(open_columns)))
    wide[open_columns, np.arange(len(open_columns))] = 1.0
    if config.rank == 0:
        wide = wide[:, :0]
    std = np.r_[np.full(wide.shape[1], config.taste_std), np.full(len(HABITS), config.habit_std)]
    full = _em(votes, known, wide, np.diag(std**2), config)
    r = min(config.rank, wide.shape[1])
    if r == wide.shape[1]:
        return full
    k = wide.shape[1]
    values, vectors = np.linalg.eigh(full.covariance[:k, :k])
    basis = wide @ (vectors[:, ::-1][:, :r] * np.sqrt(np.maximum(values[::-1][:r], 1e-12)))
    pull = np.diag(np.r_[np.ones(r), np.full(len(HABITS), config.habit_std**2)])
    return _em(votes, known, basis, pull, config)


def _em(
    votes: Votes, known: np.ndarray, basis: np.ndarray, pull: np.ndarray, config: LowRankConfig
) -> LowRank:
    """Laplace-EM with a given basis; `pull` is the covariance the estimate is pulled to."""
    # Each person's votes together, and those of nobody in particular at the end.
    order = np.argsort(np.where(votes.user < 0, len(known), votes.user), kind="stable")
    votes = votes.take(order)
    n = int((votes.user >= 0).sum())
    people, first, code = np.unique(votes.user[:n], return_index=True, return_inverse=True)
    known = known[people]
    shared_design, own_design = votes.shared_design(), votes.personal_design(basis)[:n]
    prior = Belief.independent(
        np.r_[np.full(votes.x.shape[1], config.ridge**-0.5), np.ones(len(SHARED_EXTRA))]
    )
    shared, covariance = prior, pull
    groups = np.zeros((known.shape[1], len(pull)))
    theta = np.zeros((len(people), len(pull)))
    base, own = votes.base(), np.zeros((len(votes.x), 2))
    for _ in range(config.rounds):
        own[:n] = (own_design @ theta[code][:, :, None])[:, :, 0]
        shared = posterior(prior, shared_design, votes.outcome, votes.weight, base + own, start=shared.mean)
        offset = (base + shared_design @ shared.mean)[:n]
        expected = known @ groups
        theta, spreads = posteriors(
            expected, covariance, own_design, votes.outcome[:n], votes.weight[:n], offset, first, start=theta
        )
        away = theta - expected
        seen = spreads.sum(axis=0) + away.T @ away
        covariance = (seen + config.prior_people * pull) / (len(people) + config.prior_people)
        groups = _group_means(known, theta, config.group_people)
    return LowRank(shared, basis, covariance, groups)


def _group_means(known: np.ndarray, theta: np.ndarray, people: float) -> np.ndarray:
    """(G, K) ridge regression of people's effects on what is known of them; `people` is the ridge."""
    gram = known.T @ known + people * np.eye(known.shape[1])
    return np.linalg.solve(gram, known.T @ theta)
