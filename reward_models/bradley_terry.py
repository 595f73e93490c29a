"""Fast reward model: linear Bradley-Terry with ties on frozen embeddings and named text features.

Embeddings are reduced to their leading principal components and every column is standardised; the ridge is
chosen by cross-validation over prompts, so that a small data set gives a cautious model, not a confident one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import model_files, ties
from reward_models.features import NAMES
from reward_models.projection import Projection
from reward_models.representation import represent
from reward_models.scorer import Chat, NotEnoughVotes, Rewards
from reward_models.votes_of_rows import marks_of, replies_of, unheard, unlearned, votes_of

if TYPE_CHECKING:
    import pyarrow as pa


class Config(BaseModel):
    """Settings of the fast reward model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    components: int = Field(default=24, ge=0)
    """Principal components of the embedding that are kept."""
    ridges: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(1.0, 3.0, 10.0, 30.0, 100.0), min_length=1
    )
    """Prior precisions tried by cross-validation."""
    folds: int = Field(default=5, ge=2)
    """Cross-validation folds; a prompt is never in two of them."""
    max_tokens: int = Field(default=160, ge=8)
    """Tokens of prompt and reply that the embedding reads."""
    min_rows: int = Field(default=12, ge=2)
    """With fewer paired rows the fit refuses (exit code 4)."""


@dataclass(frozen=True)
class Votes:
    """What the fit saw, small enough to be kept: an update reads these and embeds new rows only.

    Attributes:
        difference: (N, K + F) standardised columns of the first reply less the second's.
        outcome: (N,) ties.WIN, TIE or LOSS of the first reply.
        weight: (N,)
    """

    difference: np.ndarray
    outcome: np.ndarray
    weight: np.ndarray

    def and_(self, more: Votes) -> Votes:
        """These votes, then those."""
        return Votes(
            np.concatenate([self.difference, more.difference]),
            np.concatenate([self.outcome, more.outcome]),
            np.concatenate([self.weight, more.weight]),
        )

    def fit(self, ridge: float, start: ties.Fit | None = None) -> ties.Fit:
        """The tie model of all of them."""
        return ties.fit(self.difference, self.outcome, self.weight, ridge, start)


@dataclass(frozen=True)
class BradleyTerry:
    """The fitted model. See `reward_models.scorer.Scorer`."""

    base: Path
    config: Config
    projection: Projection
    fitted: ties.Fit
    votes: Votes
    ridge: float
    trained_on: frozenset[str]
    heard: frozenset[int] = frozenset()
    """Marks of the verdicts that were learned; see `votes_of_rows`."""
    cache_dir: Path | None = field(default=None, compare=False)

    def score(
        self,
        prompts: Sequence[Chat],
        completions: Sequence[str],
        user_ids: Sequence[str | None] | None = None,  # noqa: ARG002 - the protocol of scorers
        agents: Sequence[str | None] | None = None,  # noqa: ARG002
    ) -> Rewards:
        """Rewards of B completions; this model has one taste for everybody, so `user_ids` changes nothing."""
        if not completions:
            return Rewards(np.zeros(0), np.zeros(0))
        x = self.projection(self._raw(prompts, completions))
        variance = np.einsum("bi,ij,bj->b", x, self.fitted.covariance, x)
        return Rewards(x @ self.fitted.weights, np.sqrt(np.maximum(variance, 0)))

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss."""
        return ties.probabilities(difference, self.fitted.log_nu)

    def explain(self) -> dict[str, float]:
        """Reward per standard deviation of each named text feature."""
        return dict(zip(NAMES, map(float, self.fitted.weights[-len(NAMES) :]), strict=True))

    def update(self, rows: pa.Table) -> BradleyTerry:
        """The model after more paired PREFERENCES rows: what a fit of all with its projection and ridge gives.

        Those stay as they were chosen; only rows that are new are embedded. Rows already learned change nothing, nor
        does a verdict that was learned from another row.
        """
        new = _pairs(unlearned(rows, self.trained_on))
        if not new.num_rows:
            return self
        marks = marks_of(new)
        learned = replace(
            self,
            trained_on=self.trained_on | frozenset(new["preference_id"].to_pylist()),
            heard=self.heard.union(*marks),
        )
        new = new.filter(unheard(marks, self.heard))
        if not new.num_rows:
            return learned
        votes = self.votes.and_(_votes(new, self._raw(*replies_of(new)), self.projection))
        return replace(learned, fitted=votes.fit(self.ridge, start=self.fitted), votes=votes)

    def _raw(self, prompts: Sequence[Chat], completions: Sequence[str]) -> np.ndarray:
        return represent(
            self.base, prompts, completions, max_tokens=self.config.max_tokens, cache_dir=self.cache_dir
        )

    def save(self, directory: Path) -> None:
        """Write `reward_model.json` and `weights.npz`; the JSON, written last, makes it loadable."""
        with model_files.replacing(directory) as draft:
            model_files.write_arrays(
                draft.path(model_files.WEIGHTS),
                {
                    **self.projection.arrays(),
                    "weights": self.fitted.weights,
                    "covariance": self.fitted.covariance,
                    "difference": self.votes.difference,
                    "outcome": self.votes.outcome,
                    "weight": self.votes.weight,
                    "heard": np.array(sorted(self.heard), dtype=np.uint64),
                },
            )
            draft.about |= {
                "method": "bradley_terry",
                "config": self.config.model_dump(mode="json"),
                "log_nu": self.fitted.log_nu,
                "ridge": self.ridge,
                "trained_on": sorted(self.trained_on),
                "feature_weights": self.explain(),
            }


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> BradleyTerry:
    """Load what `save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable, or the model is of other named features.
    """
    with model_files.reading(directory) as about:
        model_files.refuse_other_features(about, NAMES, directory)
        arrays = model_files.read_arrays(model_files.file_of(directory, about, model_files.WEIGHTS))
        return BradleyTerry(
            base,
            Config.model_validate(about["config"]),
            Projection(arrays["center"], arrays["axes"], arrays["scale"]),
            ties.Fit(arrays["weights"], about["log_nu"], arrays["covariance"]),
            Votes(arrays["difference"], arrays["outcome"], arrays["weight"]),
            about["ridge"],
            frozenset(about["trained_on"]),
            frozenset(arrays["heard"].tolist() if "heard" in arrays else ()),
            cache_dir,
        )


def fit(
    config: Config,
    rows: pa.Table,
    *,
    base: Path,
    seed: int,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BradleyTerry:
    """Fit on paired PREFERENCES rows (margin 0 is a tie); the caller chooses the split.

    Raises:
        NotEnoughVotes: fewer than `min_rows` paired rows.
    """
    rows = _pairs(unlearned(rows, ()))
    if rows.num_rows < config.min_rows:
        raise NotEnoughVotes(
            "Too few paired preference rows to fit a reward model.",
            got=rows.num_rows,
            allowed=f"at least {config.min_rows} ([reward.bradley_terry] min_rows)",
            next_step="collect more votes or edits, then run again",
        )
    vectors = represent(
        base, *replies_of(rows), max_tokens=config.max_tokens, cache_dir=cache_dir, progress=progress
    )
    projection = Projection.fit(vectors, config.components)
    votes = _votes(rows, vectors, projection)
    ridge = _choose_ridge(config, votes, rows["prompt_key"].to_pylist(), seed)
    fitted = votes.fit(ridge)
    ids = frozenset(rows["preference_id"].to_pylist())
    heard = frozenset[int]().union(*marks_of(rows))
    return BradleyTerry(base, config, projection, fitted, votes, ridge, ids, heard, cache_dir)


def _pairs(rows: pa.Table) -> pa.Table:
    """Those of the rows that are pairs, in an order that depends on nothing else."""
    import pyarrow.compute as pc

    return rows.filter(pc.is_valid(rows["rejected"])).sort_by("preference_id")


def _votes(rows: pa.Table, vectors: np.ndarray, projection: Projection) -> Votes:
    votes = votes_of(rows, vectors, projection)
    return Votes(votes.x, votes.outcome, votes.weight)


def _choose_ridge(config: Config, votes: Votes, prompt_keys: list[str], seed: int) -> float:
    x, outcome, weight = votes.difference, votes.outcome, votes.weight
    groups = sorted(set(prompt_keys))
    order = np.random.default_rng(seed).permutation(len(groups))
    fold_of = {groups[g]: i % config.folds for i, g in enumerate(order)}
    fold = np.array([fold_of[k] for k in prompt_keys])
    if len(groups) < config.folds:
        return max(config.ridges)
    losses = []
    for ridge in config.ridges:
        total = 0.0
        for k in range(config.folds):
            inside, outside = fold != k, fold == k
            fitted = ties.fit(x[inside], outcome[inside], weight[inside], ridge)
            total += (
                ties.log_loss(x[outside], outcome[outside], weight[outside], fitted) * weight[outside].sum()
            )
        losses.append(total)
    return config.ridges[int(np.argmin(losses))]
