"""Several reward models of one kind that heard people with different weights: how sure a reward is, and abstaining.

Members differ in whom they happened to hear. Each fits all rows, but every person's with a weight of their own, drawn
from the flat Dirichlet distribution (the Bayesian bootstrap, Rubin 1981, Annals of Statistics 9, over people): no row
is lost, and one person's rows, which say alike things, stay together. Networks may instead differ by their seeds
alone (`variation = "deep"`: Lakshminarayanan et al. 2017, arXiv 1612.01474).

With r_m the reward of member m less its mean over a fixed set of training replies, of M members with variance v_m of
their own (0 where a member cannot tell):

    mean = sum_m r_m / M        std^2 = sum_m (r_m - mean)^2 / (M - 1) + sum_m v_m / M

The second term is what members that learned nothing agree about. For members that are told how unsure they are by a
likelihood, both terms see the same scarcity of votes: the sum is up to 1.4 times too wide where votes are
independent, and not too narrow where they are not. Where replies to one prompt are compared, their difference in each
member is what counts, and no offset is left.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from reward_models import model_files, scorer
from reward_models.bootstrap import clusters, weights_of_members
from reward_models.bradley_terry import Config as BradleyTerryConfig
from reward_models.personal import Config as PersonalConfig
from reward_models.preference_lm import Config as PreferenceLMConfig
from reward_models.scorer import Chat, Rewards
from reward_models.votes_of_rows import unlearned

if TYPE_CHECKING:
    import pyarrow as pa

_REFERENCE_REPLIES = 64  # training replies whose mean reward is every member's zero


class Config(BaseModel):
    """Settings of an ensemble."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    member: Literal["bradley_terry", "personal", "preference_lm"] = "bradley_terry"
    """Kind of the members."""
    members: int = Field(default=5, ge=2)
    """How many. Time and size grow with it; every `preference_lm` holds a copy of the base in memory."""
    variation: Literal["bootstrap", "deep"] = "bootstrap"
    """`bootstrap`: every member hears people with other weights. `deep`: members differ in their seeds alone, which
    tells networks apart, so for `preference_lm` only."""
    abstain_z: float = Field(default=1.0, ge=0)
    """Between two replies the ensemble abstains where they differ by less than so many standard deviations of the
    difference over its members."""
    bradley_terry: BradleyTerryConfig = BradleyTerryConfig()
    """Settings of such members."""
    personal: PersonalConfig = PersonalConfig()
    """Settings of such members."""
    preference_lm: PreferenceLMConfig = PreferenceLMConfig()
    """Settings of such members."""

    @model_validator(mode="after")
    def _members_can_differ(self) -> Config:
        if self.variation == "deep" and self.member != "preference_lm":
            raise ValueError(
                f'variation = "deep" would give {self.members} times the same {self.member}; '
                'choose "bootstrap", or member = "preference_lm"'
            )
        return self


@dataclass(frozen=True)
class Ensemble:
    """The fitted members. See `reward_models.scorer.Scorer`."""

    config: Config
    members: tuple[Any, ...]
    """M scorers."""
    zero: np.ndarray
    """(M,) each member's mean reward of the reference replies."""

    @property
    def trained_on(self) -> frozenset[str]:
        """`preference_id`s that any member was fitted on."""
        return frozenset().union(*(member.trained_on for member in self.members))

    def score(
        self,
        prompts: Sequence[Chat],
        completions: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> Rewards:
        """Rewards of B completions and how far members disagree about them."""
        mean, std = self._members_rewards(prompts, completions, user_ids, agents)
        return combined(mean - self.zero[:, None], std)

    def differences(
        self,
        prompts: Sequence[Chat],
        first: Sequence[str],
        second: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> np.ndarray:
        """(M, N) by how much the first reply's reward is above the second's, in each member."""
        mean, _ = self._members_rewards(
            [*prompts, *prompts],
            [*first, *second],
            None if user_ids is None else [*user_ids, *user_ids],
            None if agents is None else [*agents, *agents],
        )
        return mean[:, : len(first)] - mean[:, len(first) :]

    def abstains(
        self,
        prompts: Sequence[Chat],
        first: Sequence[str],
        second: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> np.ndarray:
        """(N,) bool: pairs about which members disagree too much to say which reply is better."""
        return too_close(self.differences(prompts, first, second, user_ids, agents), self.config.abstain_z)

    def compare(
        self,
        prompts: Sequence[Chat],
        first: Sequence[str],
        second: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> np.ndarray:
        """(N, 3) probabilities that the first reply wins, ties, loses: the mean of what members say of the pair."""
        found = self.differences(prompts, first, second, user_ids, agents)
        told = [member.probabilities(own) for member, own in zip(self.members, found, strict=True)]
        return np.asarray(np.mean(told, axis=0))

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss for reward differences, the mean of members'."""
        return np.asarray(np.mean([member.probabilities(difference) for member in self.members], axis=0))

    def _members_rewards(
        self,
        prompts: Sequence[Chat],
        completions: Sequence[str],
        user_ids: Sequence[str | None] | None,
        agents: Sequence[str | None] | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(M, B) rewards and their standard deviations."""
        with embedding_once(self.members) as members:
            told = [member.score(prompts, completions, user_ids, agents) for member in members]
        return np.stack([t.mean for t in told]), np.stack([t.std for t in told])

    def save(self, directory: Path) -> None:
        """Write members to `member-0`, …, then `reward_model.json`, which makes them loadable."""
        with model_files.writing(directory) as about:
            for old in directory.glob("member-*"):
                shutil.rmtree(old)
            for number, member in enumerate(self.members):
                member.save(directory / f"member-{number}")
            about |= {
                "method": "ensemble",
                "config": self.config.model_dump(mode="json"),
                "zero": self.zero.tolist(),
                "trained_on": sorted(self.trained_on),
            }


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> Ensemble:
    """Load what `save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    with model_files.reading(directory) as about:
        zero = np.array(about["zero"], dtype=np.float64)
        members = [scorer.load(directory / f"member-{n}", base, cache_dir) for n in range(len(zero))]
        return Ensemble(Config.model_validate(about["config"]), tuple(members), zero)


def fit(
    config: Config,
    rows: pa.Table,
    *,
    base: Path,
    seed: int,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Ensemble:
    """Fit every member on all PREFERENCES rows with weights of its own; the caller chooses the split.

    Raises:
        NotEnoughVotes: fewer rows than a member needs.
    """
    import pyarrow.compute as pc

    rows = unlearned(rows, ()).sort_by("preference_id")
    if config.member != "personal":  # the others hear pairs alone, so no other row may count as a cluster
        rows = rows.filter(pc.is_valid(rows["rejected"]))
    module: Any = scorer.method(config.member)
    factors = np.ones((config.members, rows.num_rows))
    if config.variation == "bootstrap":
        factors = weights_of_members(clusters(rows), config.members, seed)
    seeds = np.random.SeedSequence([seed, 1]).generate_state(config.members)
    with tempfile.TemporaryDirectory(prefix="ensemble-") as scratch:
        shared = cache_dir or Path(scratch) / "embeddings"  # texts are embedded for the first member only
        members = tuple(
            module.fit(
                getattr(config, config.member),
                _weighted(rows, factors[number]),
                base=base,
                seed=int(seeds[number] % 2**31),
                cache_dir=shared,
                progress=progress and _part(progress, number, config.members),
            )
            for number in range(config.members)
        )
        prompts, replies = _reference(rows, seed)
        zero = np.array([member.score(prompts, replies).mean.mean() for member in members])
    if cache_dir is None:
        members = tuple(_with_cache(member, None) for member in members)
    return Ensemble(config, members, zero)


def combined(mean: np.ndarray, std: np.ndarray) -> Rewards:
    """The members' rewards as one; the module has the formula.

    Args:
        mean: (M, B) rewards, each member's around its own zero.
        std: (M, B) each member's own standard deviation, NaN where it cannot tell.
    """
    own = np.where(np.isnan(std), 0.0, std) ** 2
    return Rewards(mean.mean(axis=0), np.sqrt(mean.var(axis=0, ddof=1) + own.mean(axis=0)))


def too_close(difference: np.ndarray, z: float) -> np.ndarray:
    """(N,) bool: mean differences smaller than z standard deviations over members (M, N)."""
    return np.asarray(np.abs(difference.mean(axis=0)) < z * difference.std(axis=0, ddof=1))


@contextmanager
def embedding_once(members: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The members with a cache of embeddings in common, so that the first one's serve all."""
    if all(getattr(member, "cache_dir", True) is not None for member in members):
        yield members
        return
    with tempfile.TemporaryDirectory(prefix="ensemble-") as scratch:
        yield [_with_cache(member, Path(scratch) / "embeddings") for member in members]


def _with_cache(member: Any, cache_dir: Path | None) -> Any:
    return replace(member, cache_dir=cache_dir) if hasattr(member, "cache_dir") else member


def _weighted(rows: pa.Table, factor: np.ndarray) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    place = rows.schema.get_field_index("weight")
    return rows.set_column(
        place, rows.schema.field(place), pc.multiply(rows["weight"], pa.array(factor, pa.float64()))
    )


def _reference(rows: pa.Table, seed: int) -> tuple[list[Chat], list[str]]:
    """Some training replies: of pairs both, so that neither winners nor losers set the zero."""
    chosen = np.random.default_rng([seed, 2]).permutation(rows.num_rows)[: _REFERENCE_REPLIES // 2]
    some = rows.take(np.sort(chosen)).select(["prompt", "chosen", "rejected"]).to_pylist()
    replies = [(r["prompt"], r[side]) for r in some for side in ("chosen", "rejected") if r[side] is not None]
    return [prompt for prompt, _ in replies], [reply for _, reply in replies]


def _part(progress: Callable[[int, int], None], number: int, members: int) -> Callable[[int, int], None]:
    """What member `number` tells, as a part of the whole."""
    return lambda done, total: progress(number * total + done, members * total)
