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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import low_rank, model_files, people, ties
from reward_models.acquaintance import Acquaintance
from reward_models.features import NAMES
from reward_models.low_rank import LowRank, LowRankConfig
from reward_models.people import Person
from reward_models.projection import Projection
from reward_models.representation import last_user_message, represent
from reward_models.scorer import Chat, NotEnoughVotes, Rewards
from reward_models.taste import Belief, updated
from reward_models.votes_of_rows import Given, given_votes, replies_of, unlearned, votes_of

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
    people: dict[str, Person]
    typical: np.ndarray
    """(2,) mean of `ties_by_length`'s and `ties_by_distance`'s columns: what a pair is like on average."""
    trained_on: frozenset[str]
    cache_dir: Path | None = field(default=None, compare=False)

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

        Rows of nobody in particular, or already learned from, change nothing.
        """
        import pyarrow.compute as pc

        new = unlearned(rows, self.trained_on)
        new = new.filter(pc.is_valid(new["user_id"]))
        if not new.num_rows:
            return self
        new = new.sort_by([("event_time", "ascending"), ("preference_id", "ascending")])
        about = new.select(["preference_id", "user_id", "agent", "prompt", "event_time"]).to_pylist()
        votes = votes_of(new, self._raw(*replies_of(new)), self.projection)
        offset, design = self.taste.offset(votes), votes.personal_design(self.taste.basis)
        after, learned = dict(self.people), set(self.trained_on)
        for i, row in enumerate(about):
            if row["preference_id"] in learned:
                continue
            name = row["user_id"]
            person = after.get(name) or self.person(name, row["agent"], last_user_message(row["prompt"]))
            outcome, weight = int(votes.outcome[i]), float(votes.weight[i])
            (belief,) = updated([person.belief], [design[i]], outcome, weight=weight, offset=offset[i])
            time = row["event_time"]
            stamp = 0 if time is None else int(time.timestamp() * 1e6)
            after[name] = person.after(belief, row["preference_id"], stamp)
            learned.add(row["preference_id"])
        return replace(self, people=after, trained_on=frozenset(learned))

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
        with model_files.writing(directory) as about:
            people.write(self.people, directory / "people.parquet")
            model_files.write_arrays(
                directory,
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
                },
            )
            about |= {
                "method": "personal",
                "config": self.config.model_dump(mode="json"),
                "trust": taste.trust,
                "agents": list(known.agents),
                "people": len(self.people),
                "trained_on": sorted(self.trained_on),
                "feature_weights": {name: mean for name, (mean, _) in self.explain().items()},
            }


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> Personal:
    """Load what `save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    with model_files.reading(directory) as about:
        a = model_files.read_arrays(directory)
        projection = Projection(*(a[f"projection_{n}"] for n in ("center", "axes", "scale")))
        shared = Belief(a["shared_mean"], a["shared_covariance"])
        taste = LowRank(shared, a["basis"], a["covariance"], a["groups"], float(about["trust"]))
        known = Acquaintance(tuple(about["agents"]), a["known_center"], a["known_scale"])
        everybody = people.read(directory / "people.parquet")
        config = Config.model_validate(about["config"])
        ids = frozenset(about["trained_on"])
        return Personal(base, config, projection, taste, known, everybody, a["typical"], ids, cache_dir)


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
    names, agents, messages = _people_of(rows)
    acquaintance = Acquaintance.fit(agents, messages)
    known = acquaintance.describe(agents, messages)
    votes = votes_of(rows, vectors, projection, {name: code for code, name in enumerate(names)})
    taste = low_rank.fit(votes, known, config.taste)
    trust = 0.0
    if len(names) >= config.min_people:
        trust = low_rank.choose_trust(votes, known, config.taste, config.trusts, seed)
    taste = replace(taste, trust=trust)
    design = votes.shared_design()[votes.can_tie > 0]
    typical = design[:, 1, -2:].mean(axis=0) if len(design) else np.zeros(2)
    return Personal(
        base, config, projection, taste, acquaintance, _everybody(rows, votes, names, known, taste), typical,
        frozenset(rows["preference_id"].to_pylist()), cache_dir,
    )  # fmt: skip


def _everybody(
    rows: pa.Table, votes: low_rank.Votes, names: list[str], known: np.ndarray, taste: LowRank
) -> dict[str, Person]:
    """What is believed of each person after all their votes together."""
    times = rows["event_time"].cast("int64").fill_null(0).to_numpy()
    ids = np.asarray(rows["preference_id"].to_pylist(), dtype=object)
    order = np.lexsort((ids.astype(str), times))
    times, ids, votes = times[order], ids[order], votes.take(order)
    found = {}
    for code, own in votes.by_person():
        belief = taste.learn(votes.take(own), taste.prior(known[code]))
        newest = tuple(ids[own][-people.ROWS_KEPT :])
        stamps = times[own]
        found[names[code]] = Person(
            belief, known[code], len(own), int(stamps.min()), int(stamps.max()), newest
        )
    return found


def _people_of(rows: pa.Table) -> tuple[list[str], list[str | None], list[list[str]]]:
    """Everybody with an id: name, the agent they use most, their first messages."""
    import pyarrow.compute as pc

    known = rows.filter(pc.is_valid(rows["user_id"])).sort_by(
        [("event_time", "ascending"), ("preference_id", "ascending")]
    )
    agents: dict[str, list[str | None]] = {}
    messages: dict[str, dict[str, None]] = {}
    for row in known.select(["user_id", "agent", "prompt"]).to_pylist():
        agents.setdefault(row["user_id"], []).append(row["agent"])
        messages.setdefault(row["user_id"], {})[last_user_message(row["prompt"])] = None
    names = sorted(agents)
    most = [max(sorted(set(agents[n]), key=str), key=agents[n].count) for n in names]
    return names, most, [list(messages[n]) for n in names]
