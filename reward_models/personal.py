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

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import low_rank, people, ties
from reward_models.acquaintance import Acquaintance
from reward_models.features import NAMES
from reward_models.low_rank import LowRank, LowRankConfig
from reward_models.people import Person
from reward_models.projection import Projection
from reward_models.representation import last_user_message, represent
from reward_models.scorer import Chat, NotEnoughVotes, RewardModelError, Rewards
from reward_models.taste import Belief, updated
from reward_models.votes_of_rows import Given, given_votes, votes_of

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
    trusts: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0)
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
        x = self.vectors(prompts, completions)
        beliefs = self._beliefs(prompts, user_ids, agents)
        d, r = x.shape[1], self.taste.basis.shape[1]
        z = x @ self.taste.basis
        own = np.stack([b.mean[:r] for b in beliefs])
        spread = np.stack([b.covariance[:r, :r] for b in beliefs])
        mean = x @ self.taste.shared.mean[:d] + (z * own).sum(axis=1)
        variance = np.einsum("bi,ij,bj->b", x, self.taste.shared.covariance[:d, :d], x)
        variance += np.einsum("bi,bij,bj->b", z, spread, z)
        return Rewards(mean, np.sqrt(np.maximum(variance, 0)))

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss for reward differences, of a pair and a person like the average."""
        extra = self.taste.shared.mean[-3:]
        return ties.probabilities(difference, float(extra[0] + extra[1:] @ self.typical))

    def compare(
        self,
        prompts: Sequence[Chat],
        first: Sequence[str],
        second: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> np.ndarray:
        """(N, 3) probabilities that the first reply wins, ties, loses, with these people's habits."""
        votes = self.votes(Given(prompts, first, second))
        beliefs = self._beliefs(prompts, user_ids, agents)
        parts = [self.taste.predict(votes.take(np.array([i])), b) for i, b in enumerate(beliefs)]
        return np.concatenate(parts) if parts else np.zeros((0, 3))

    def votes(self, pairs: Given) -> low_rank.Votes:
        """Pairs as votes whose outcomes are not known."""
        return given_votes(pairs, self._raw, self.projection)

    def vectors(self, prompts: Sequence[Chat], completions: Sequence[str]) -> np.ndarray:
        """(B, D) standardised columns of replies."""
        return self.projection(self._raw(prompts, completions))

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

        new = rows.filter(pc.and_(pc.is_valid(rows["user_id"]), pc.greater(rows["weight"], 0)))
        new = new.sort_by([("event_time", "ascending"), ("preference_id", "ascending")])
        about = new.select(["preference_id", "user_id", "agent", "prompt", "event_time"]).to_pylist()
        votes = votes_of(new, self._raw, self.projection, {})
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
        t = self.taste.shared.mean[-3:] @ np.array([1.0, *self.typical])
        if person is not None:
            t += person.belief.mean[-2:] @ np.array([1.0, self.typical[0]])
        return float(ties.probabilities(np.zeros(1), float(t))[0, ties.TIE])

    def _raw(self, prompts: Sequence[Chat], completions: Sequence[str]) -> np.ndarray:
        return represent(
            self.base, prompts, completions, max_tokens=self.config.max_tokens, cache_dir=self.cache_dir
        )

    def _beliefs(
        self,
        prompts: Sequence[Chat],
        user_ids: Sequence[str | None] | None,
        agents: Sequence[str | None] | None,
    ) -> list[Belief]:
        names = user_ids or [None] * len(prompts)
        used = agents or [None] * len(prompts)
        return [
            self.person(name, agent, last_user_message(prompt)).belief
            for name, agent, prompt in zip(names, used, prompts, strict=True)
        ]

    def save(self, directory: Path) -> None:
        """Write `weights.npz`, `people.parquet` and `reward_model.json`; the JSON, written last, makes it loadable."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "reward_model.json").unlink(missing_ok=True)
        people.write(self.people, directory / "people.parquet")
        partial = directory / "weights.partial.npz"
        taste, known = self.taste, self.acquaintance
        arrays = {
            **{f"projection_{name}": array for name, array in self.projection.arrays().items()},
            "shared_mean": taste.shared.mean,
            "shared_covariance": taste.shared.covariance,
            "basis": taste.basis,
            "covariance": taste.covariance,
            "groups": taste.groups,
            "known_center": known.center,
            "known_scale": known.scale,
            "typical": self.typical,
        }
        np.savez(partial, allow_pickle=False, **arrays)
        partial.replace(directory / "weights.npz")
        about = {
            "method": "personal",
            "config": self.config.model_dump(mode="json"),
            "trust": taste.trust,
            "agents": list(known.agents),
            "people": len(self.people),
            "trained_on": sorted(self.trained_on),
            "feature_weights": {name: mean for name, (mean, _) in self.explain().items()},
        }
        partial_json = directory / "reward_model.partial"
        partial_json.write_text(json.dumps(about, indent=1))
        partial_json.replace(directory / "reward_model.json")


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> Personal:
    """Load what `save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    try:
        about = json.loads((directory / "reward_model.json").read_text())
        with np.load(directory / "weights.npz") as stored:
            a = {name: stored[name] for name in stored.files}
        projection = Projection(*(a[f"projection_{n}"] for n in ("center", "axes", "scale")))
        shared = Belief(a["shared_mean"], a["shared_covariance"])
        taste = LowRank(shared, a["basis"], a["covariance"], a["groups"], float(about["trust"]))
        known = Acquaintance(tuple(about["agents"]), a["known_center"], a["known_scale"])
        everybody = people.read(directory / "people.parquet")
        config = Config.model_validate(about["config"])
        ids = frozenset(about["trained_on"])
        return Personal(base, config, projection, taste, known, everybody, a["typical"], ids, cache_dir)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise RewardModelError(
            "The reward model cannot be read.", got=directory, next_step="palate train"
        ) from error


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
    import pyarrow.compute as pc

    rows = rows.filter(pc.greater(rows["weight"], 0)).sort_by("preference_id")
    if rows.num_rows < config.min_rows:
        raise NotEnoughVotes(
            "Too few preference rows to fit a reward model.",
            got=rows.num_rows,
            allowed=f"at least {config.min_rows} ([reward.personal] min_rows)",
            next_step="collect more feedback, then run again",
        )

    def raw(prompts: Sequence[Chat], completions: Sequence[str]) -> np.ndarray:
        return represent(
            base, prompts, completions, max_tokens=config.max_tokens, cache_dir=cache_dir, progress=progress
        )

    replies = rows.select(["prompt", "chosen", "rejected"]).to_pylist()
    texts = [(r["prompt"], t) for r in replies for t in (r["chosen"], r["rejected"]) if t is not None]
    projection = Projection.fit(raw([p for p, _ in texts], [t for _, t in texts]), config.components)
    names, agents, messages = _people_of(rows)
    acquaintance = Acquaintance.fit(agents, messages)
    known = acquaintance.describe(agents, messages)
    votes = votes_of(rows, raw, projection, {name: code for code, name in enumerate(names)})
    taste = low_rank.fit(votes, known, config.taste)
    taste = replace(taste, trust=_trust(votes, known, config, seed))
    design = votes.shared_design()[votes.can_tie > 0]
    typical = design[:, 1, -2:].mean(axis=0) if len(design) else np.zeros(2)
    model = Personal(
        base, config, projection, taste, acquaintance, {}, typical,
        frozenset(rows["preference_id"].to_pylist()), cache_dir,
    )  # fmt: skip
    return replace(model, people=_everybody(rows, votes, names, known, taste))


def _everybody(
    rows: pa.Table, votes: low_rank.Votes, names: list[str], known: np.ndarray, taste: LowRank
) -> dict[str, Person]:
    """What is believed of each person after all their votes together."""
    times = rows["event_time"].cast("int64").fill_null(0).to_numpy()
    ids = np.asarray(rows["preference_id"].to_pylist(), dtype=object)
    order = np.lexsort((ids.astype(str), times))
    order = order[np.argsort(votes.user[order], kind="stable")]
    people_codes, first = np.unique(votes.user[order], return_index=True)
    found = {}
    for code, own in zip(people_codes, np.split(order, first[1:]), strict=True):
        if code < 0:
            continue
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


def _trust(votes: low_rank.Votes, known: np.ndarray, config: Config, seed: int) -> float:
    """The factor on what is personal that predicts people who were not fitted best, before and after some votes.

    Half of the people are fitted and the other half predicted, both ways. The shared taste alone wins ties.
    """
    counts = np.bincount(votes.user[votes.user >= 0], minlength=len(known))
    if (counts > 0).sum() < config.min_people:
        return 0.0
    half = np.random.default_rng(seed).permutation(len(known)) % 2
    losses = np.zeros(len(config.trusts))
    for side in (0, 1):
        inside = (votes.user < 0) | (half[votes.user] == side)
        fitted = low_rank.fit(votes.take(np.flatnonzero(inside)), known, config.taste)
        for person in np.flatnonzero((half != side) & (counts > 0)):
            own = votes.take(np.flatnonzero(votes.user == person))
            for i, trust in enumerate(config.trusts):
                losses[i] += _forward_loss(replace(fitted, trust=trust), own, known[person])
    best = int(np.argmin(losses))
    worth = losses[best] < losses[int(np.argmin(np.abs(config.trusts)))]
    return config.trusts[best] if worth else 0.0


def _forward_loss(taste: LowRank, own: low_rank.Votes, known: np.ndarray) -> float:
    """Mean log-loss of a person's votes, each predicted from those before it in blocks that double."""
    belief, done, total = taste.prior(known), 0, 0.0
    if taste.trust == 0:
        p = taste.predict(own, None)
        return float(-np.log(p[np.arange(len(p)), own.outcome]).mean())
    while done < len(own.outcome):
        block = own.take(np.arange(done, min(2 * done + 1, len(own.outcome))))
        p = taste.predict(block, belief)
        total -= float(np.log(p[np.arange(len(p)), block.outcome]).sum())
        done += len(block.outcome)
        belief = taste.learn(own.take(np.arange(done)), taste.prior(known))
    return total / len(own.outcome)
