"""Personal reward model: everybody shares a basis of tastes, each person is a point in it.

The fast linear model on frozen embeddings and named features (`bradley_terry`), with weights that differ between
people in few directions (`low_rank`). Who has said nothing gets what is expected of people like them; how far that
and everybody's own votes are trusted is chosen on people who were not fitted, down to not at all, so that the model
is not worse than the shared taste. One vote changes one person (`taste.updated`), in less than a millisecond
beside embedding the two replies.

Pairs are votes between two replies. A thumb on a single reply is a vote of it against the average reply, without
ties, where a person's lean is how readily they like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import low_rank, model_files, people, ties
from reward_models.acquaintance import Acquaintance, people_of
from reward_models.features import NAMES
from reward_models.low_rank import LowRank, LowRankConfig
from reward_models.people import Person
from reward_models.persistent import Persistent
from reward_models.projection import Projection
from reward_models.representation import last_user_message, represent
from reward_models.scorer import Chat, NotEnoughVotes, Rewards
from reward_models.taste import Belief, updated
from reward_models.trust import choose_trust
from reward_models.votes_of_rows import (
    Given,
    given_votes,
    marks_of,
    replies_of,
    unheard,
    unlearned,
    votes_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


class Config(BaseModel):
    """Settings of the personal reward model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    components: int = Field(default=24, ge=0)
    """Principal components of the embedding that are kept."""
    max_tokens: int = Field(default=160, ge=8)
    """Tokens of prompt and reply that the embedding reads."""
    min_rows: int = Field(default=12, ge=2)
    """With fewer rows the fit refuses (exit code 4)."""
    taste: LowRankConfig = LowRankConfig()
    """How people may differ."""
    trusts: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(0.0, 0.25, 0.5, 1.0), min_length=1
    )
    """Factors on what is personal that are tried on people who were not fitted; 0 is the shared taste alone."""
    min_people: int = Field(default=8, ge=2)
    """With fewer people who voted, nothing personal is believed."""


@dataclass(frozen=True)
class Personal:
    """The fitted model. See `reward_models.scorer.Scorer`."""

    base: Path
    config: Config
    projection: Projection
    taste: LowRank
    acquaintance: Acquaintance
    people: Mapping[str, Person]
    typical: np.ndarray
    """(2,) mean of `ties_by_length`'s and `ties_by_distance`'s columns: what a pair is like on average."""
    learned: Persistent[str, None]
    """`preference_id`s of all rows that were taken in, at the fit or later."""
    heard: Persistent[int, None]
    """Marks of their verdicts; see `votes_of_rows`."""
    cache_dir: Path | None = field(default=None, compare=False)

    @cached_property
    def trained_on(self) -> frozenset[str]:
        """`preference_id`s of all rows that were taken in; made when it is asked for, as they may be very many."""
        return frozenset(self.learned)

    def score(
        self,
        prompts: Sequence[Chat],
        completions: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> Rewards:
        """Rewards of B completions for the people who asked; for nobody in particular where no id is given."""
        if not completions:
            return Rewards(np.zeros(0), np.zeros(0))
        x = self.projection(self._raw(prompts, completions))
        beliefs = self._beliefs(prompts, user_ids, agents)
        d, r = x.shape[1], self.taste.basis.shape[1]
        z = x @ self.taste.basis
        mean = x @ self.taste.shared.mean[:d] + (z * beliefs.mean[:, :r]).sum(axis=1)
        variance = np.einsum("bi,ij,bj->b", x, self.taste.shared.covariance[:d, :d], x)
        variance += np.einsum("bi,bij,bj->b", z, beliefs.covariance[:, :r, :r], z)
        return Rewards(mean, np.sqrt(np.maximum(variance, 0)))

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss for reward differences, of a pair and a person like the average."""
        return ties.probabilities(difference, self._tie_weight(None))

    def compare(
        self,
        prompts: Sequence[Chat],
        first: Sequence[str],
        second: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> np.ndarray:
        """(N, 3) probabilities that the first reply wins, ties, loses, with these people's habits."""
        if not prompts:
            return np.zeros((0, 3))
        votes = self.votes(Given(prompts, first, second))
        return self.taste.predict(votes, self._beliefs(prompts, user_ids, agents))

    def votes(self, pairs: Given) -> low_rank.Votes:
        """Pairs as votes whose outcomes are not known."""
        vectors = self._raw([*pairs.prompts, *pairs.prompts], [*pairs.first, *pairs.second])
        return given_votes(pairs, vectors, self.projection)

    def person(self, user_id: str | None, agent: str | None = None, message: str = "") -> Person:
        """What is believed of somebody; of people like them where they have said nothing."""
        if user_id is not None and user_id in self.people:
            return self.people[user_id]
        if user_id is None and agent is None:
            known = np.zeros(len(self.acquaintance.center))
        else:
            known = self.acquaintance.describe([agent], [[message]])[0]
        return Person(self.taste.prior(known), known)

    def learn(self, rows: pa.Table) -> Personal:
        """The model after more PREFERENCES rows, one after the other; only the people in them change.

        Rows of nobody in particular, or already learned from, change nothing; nor does a verdict that was learned from
        another row. What it costs depends on these rows, not on how many people and rows are known.
        """
        new = unlearned(rows, self.learned)
        if new["user_id"].null_count:
            new = new.filter(new["user_id"].is_valid())
        if not new.num_rows:
            return self
        if new.num_rows > 1:  # of a single row all this would cost as much as the rest
            new = new.sort_by([("event_time", "ascending"), ("preference_id", "ascending")])
        marks = marks_of(new)
        said = unheard(marks, self.heard)
        return replace(
            self,
            people=Persistent(self.people).and_(self._after(new if said.all() else new.filter(said))),
            learned=self.learned.and_(dict.fromkeys(new["preference_id"].to_pylist())),
            heard=self.heard.and_({mark: None for each in marks for mark in each}),
        )

    def _after(self, rows: pa.Table) -> dict[str, Person]:
        """The people in these rows after them, one after the other."""
        if not rows.num_rows:
            return {}
        about = rows.select(["preference_id", "user_id", "agent", "prompt", "event_time"]).to_pylist()
        votes = votes_of(rows, self._raw(*replies_of(rows)), self.projection)
        offset, design = self.taste.offset(votes), votes.personal_design(self.taste.basis)
        after: dict[str, Person] = {}
        for i, row in enumerate(about):
            name = row["user_id"]
            person = after.get(name) or self.person(name, row["agent"], last_user_message(row["prompt"]))
            outcome, weight = int(votes.outcome[i]), float(votes.weight[i])
            (belief,) = updated([person.belief], [design[i]], outcome, weight=weight, offset=offset[i])
            time = row["event_time"]
            stamp = 0 if time is None else int(time.timestamp() * 1e6)
            after[name] = person.after(belief, row["preference_id"], stamp)
        return after

    def explain(self, belief: Belief | None = None) -> dict[str, tuple[float, float]]:
        """Reward per standard deviation of each named feature, mean and standard deviation; a person's or all's."""
        named = np.arange(self.taste.basis.shape[0])[self.projection.named]
        shared, basis = self.taste.shared, self.taste.basis[named]
        mean, variance = shared.mean[named], np.diag(shared.covariance)[named]
        if belief is not None:
            r = basis.shape[1]
            mean = mean + basis @ belief.mean[:r]
            variance = variance + np.einsum("ir,rs,is->i", basis, belief.covariance[:r, :r], basis)
        return {n: (float(m), float(v**0.5)) for n, m, v in zip(NAMES, mean, variance, strict=True)}

    def tie_share(self, person: Person | None) -> float:
        """Probability that a person, or everybody, calls an average pair of equal reward a tie."""
        log_nu = self._tie_weight(None if person is None else person.belief)
        return float(ties.probabilities(np.zeros(1), log_nu)[0, ties.TIE])

    def _tie_weight(self, belief: Belief | None) -> float:
        """Log of Davidson's tie parameter for an average pair."""
        log_nu = self.taste.shared.mean[-3:] @ np.array([1.0, *self.typical])
        if belief is not None:
            log_nu += belief.mean[-2:] @ np.array([1.0, self.typical[0]])
        return float(log_nu)

    def _raw(self, prompts: Sequence[Chat], completions: Sequence[str]) -> np.ndarray:
        return represent(
            self.base, prompts, completions, max_tokens=self.config.max_tokens, cache_dir=self.cache_dir
        )

    def _beliefs(
        self,
        prompts: Sequence[Chat],
        user_ids: Sequence[str | None] | None,
        agents: Sequence[str | None] | None,
    ) -> Belief:
        """What is believed of whoever asked each prompt, stacked: mean (B, K), covariance (B, K, K)."""
        names = user_ids or [None] * len(prompts)
        used = agents or [None] * len(prompts)
        asked = list(zip(names, used, map(last_user_message, prompts), strict=True))
        known = {who: self.person(*who).belief for who in set(asked)}  # the replies of a group have one asker
        own = [known[who] for who in asked]
        return Belief(np.stack([b.mean for b in own]), np.stack([b.covariance for b in own]))

    def save(self, directory: Path) -> None:
        """Write `weights.npz`, `people.parquet` and `reward_model.json`; the JSON, written last, makes it loadable."""
        taste, known = self.taste, self.acquaintance
        with model_files.replacing(directory) as draft:
            people.write(self.people, draft.path(model_files.PEOPLE))
            model_files.write_arrays(
                draft.path(model_files.WEIGHTS),
                {
                    **{f"projection_{name}": array for name, array in self.projection.arrays().items()},
                    "shared_mean": taste.shared.mean,
                    "shared_covariance": taste.shared.covariance,
                    "basis": taste.basis,
                    "covariance": taste.covariance,
                    "groups": taste.groups,
                    "known_center": known.center,
                    "known_scale": known.scale,
                    "typical": self.typical,
                    "heard": np.array(sorted(self.heard), dtype=np.uint64),
                },
            )
            draft.about |= {
                "method": "personal",
                "config": self.config.model_dump(mode="json"),
                "trust": taste.trust,
                "agents": list(known.agents),
                "people": len(self.people),
                "trained_on": sorted(self.learned),
                "feature_weights": {name: mean for name, (mean, _) in self.explain().items()},
            }


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> Personal:
    """Load what `save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable, or the model is of other named features.
    """
    with model_files.reading(directory) as about:
        model_files.refuse_other_features(about, NAMES, directory)
        a = model_files.read_arrays(model_files.file_of(directory, about, model_files.WEIGHTS))
        projection = Projection(*(a[f"projection_{n}"] for n in ("center", "axes", "scale")))
        shared = Belief(a["shared_mean"], a["shared_covariance"])
        taste = LowRank(shared, a["basis"], a["covariance"], a["groups"], float(about["trust"]))
        known = Acquaintance(tuple(about["agents"]), a["known_center"], a["known_scale"])
        everybody = people.read(model_files.file_of(directory, about, model_files.PEOPLE))
        heard = a.get("heard", np.zeros(0, np.uint64))  # models of before did not keep it
        return Personal(
            base, Config.model_validate(about["config"]), projection, taste, known, Persistent(everybody),
            a["typical"], Persistent(dict.fromkeys(about["trained_on"])),
            Persistent(dict.fromkeys(heard.tolist())), cache_dir,
        )  # fmt: skip


def fit(
    config: Config,
    rows: pa.Table,
    *,
    base: Path,
    seed: int,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Personal:
    """Fit on PREFERENCES rows, paired and unpaired; the caller chooses the split.

    Raises:
        NotEnoughVotes: fewer than `min_rows` rows.
    """
    rows = unlearned(rows, ()).sort_by("preference_id")
    if rows.num_rows < config.min_rows:
        raise NotEnoughVotes(
            "Too few preference rows to fit a reward model.",
            got=rows.num_rows,
            allowed=f"at least {config.min_rows} ([reward.personal] min_rows)",
            next_step="collect more feedback, then run again",
        )

    vectors = represent(
        base, *replies_of(rows), max_tokens=config.max_tokens, cache_dir=cache_dir, progress=progress
    )
    projection = Projection.fit(vectors, config.components)
    names, agents, messages = people_of(rows)
    acquaintance = Acquaintance.fit(agents, messages)
    known = acquaintance.describe(agents, messages)
    votes = votes_of(rows, vectors, projection, {name: code for code, name in enumerate(names)})
    taste = low_rank.fit(votes, known, config.taste)
    trust = 0.0
    if len(names) >= config.min_people:
        trust = choose_trust(votes, known, config.taste, config.trusts, seed)
    taste = replace(taste, trust=trust)
    design = votes.shared_design()[votes.can_tie > 0]
    typical = design[:, 1, -2:].mean(axis=0) if len(design) else np.zeros(2)
    heard = {mark: None for each in marks_of(rows) for mark in each}
    return Personal(
        base, config, projection, taste, acquaintance,
        Persistent(people.believed(rows, votes, names, known, taste)), typical,
        Persistent(dict.fromkeys(rows["preference_id"].to_pylist())), Persistent(heard), cache_dir,
    )  # fmt: skip
