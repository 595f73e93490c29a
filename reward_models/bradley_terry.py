"""Fast reward model: linear Bradley-Terry with ties on frozen embeddings and named text features.

Embeddings are reduced to their leading principal components and every column is standardised; the ridge is
chosen by cross-validation over prompts, so that a small data set gives a cautious model, not a confident one.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from reward_models import ties
from reward_models.features import NAMES
from reward_models.projection import Projection
from reward_models.representation import represent
from reward_models.scorer import Chat, NotEnoughVotes, RewardModelError, Rewards

if TYPE_CHECKING:
    import pyarrow as pa


class Config(BaseModel):
    """Settings of the fast reward model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    components: int = Field(default=24, ge=0)
    """Principal components of the embedding that are kept."""
    ridges: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0)
    """Prior precisions tried by cross-validation."""
    folds: int = Field(default=5, ge=2)
    """Cross-validation folds; a prompt is never in two of them."""
    max_tokens: int = Field(default=160, ge=8)
    """Tokens of prompt and reply that the embedding reads."""
    min_rows: int = Field(default=12, ge=2)
    """With fewer paired rows the fit refuses (exit code 4)."""


@dataclass(frozen=True)
class BradleyTerry:
    """The fitted model. See `reward_models.scorer.Scorer`."""

    base: Path
    config: Config
    projection: Projection
    fitted: ties.Fit
    ridge: float
    trained_on: frozenset[str]
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
        raw = represent(
            self.base, prompts, completions, max_tokens=self.config.max_tokens, cache_dir=self.cache_dir
        )
        x = self.projection(raw)
        variance = np.einsum("bi,ij,bj->b", x, self.fitted.covariance, x)
        return Rewards(x @ self.fitted.weights, np.sqrt(np.maximum(variance, 0)))

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss."""
        return ties.probabilities(difference, self.fitted.log_nu)

    def explain(self) -> dict[str, float]:
        """Reward per standard deviation of each named text feature."""
        return dict(zip(NAMES, map(float, self.fitted.weights[-len(NAMES) :]), strict=True))

    def save(self, directory: Path) -> None:
        """Write `reward_model.json` and `weights.npz`; the JSON, written last, makes it loadable."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "reward_model.json").unlink(missing_ok=True)
        partial = directory / "weights.partial.npz"
        arrays = {
            **self.projection.arrays(),
            "weights": self.fitted.weights,
            "covariance": self.fitted.covariance,
        }
        np.savez(partial, allow_pickle=False, **arrays)
        partial.replace(directory / "weights.npz")
        about = {
            "method": "bradley_terry",
            "config": self.config.model_dump(mode="json"),
            "log_nu": self.fitted.log_nu,
            "ridge": self.ridge,
            "trained_on": sorted(self.trained_on),
            "feature_weights": self.explain(),
        }
        partial_json = directory / "reward_model.partial"
        partial_json.write_text(json.dumps(about, indent=1))
        partial_json.replace(directory / "reward_model.json")


def load(directory: Path, base: Path, cache_dir: Path | None = None) -> BradleyTerry:
    """Load what `save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    try:
        about = json.loads((directory / "reward_model.json").read_text())
        with np.load(directory / "weights.npz") as stored:
            arrays = {name: stored[name] for name in stored.files}
        fitted = ties.Fit(arrays["weights"], about["log_nu"], arrays["covariance"])
        config = Config.model_validate(about["config"])
        return BradleyTerry(
            base,
            config,
            Projection(arrays["center"], arrays["axes"], arrays["scale"]),
            fitted,
            about["ridge"],
            frozenset(about["trained_on"]),
            cache_dir,
        )
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
) -> BradleyTerry:
    """Fit on paired PREFERENCES rows (margin 0 is a tie); the caller chooses the split.

    Raises:
        NotEnoughVotes: fewer than `min_rows` paired rows.
    """
    import pyarrow.compute as pc

    counted = pc.field("rejected").is_valid() & (pc.field("weight") > 0)
    rows = rows.filter(counted).sort_by("preference_id")
    if rows.num_rows < config.min_rows:
        raise NotEnoughVotes(
            "Too few paired preference rows to fit a reward model.",
            got=rows.num_rows,
            allowed=f"at least {config.min_rows} ([reward.bradley_terry] min_rows)",
            next_step="collect more votes or edits, then run again",
        )
    columns = rows.select(
        ["preference_id", "prompt", "prompt_key", "chosen", "rejected", "margin", "weight"]
    ).to_pydict()
    prompts = columns["prompt"]
    texts = columns["chosen"] + columns["rejected"]
    raw = represent(
        base, prompts + prompts, texts, max_tokens=config.max_tokens, cache_dir=cache_dir, progress=progress
    )
    projection = Projection.fit(raw, config.components)
    x = projection(raw)
    n = rows.num_rows
    # Present half of the pairs the other way round: outcomes are then balanced and no constant can creep in.
    flip = np.array([int(i[:8], 16) % 2 == 1 for i in columns["preference_id"]])
    difference = np.where(flip[:, None], x[n:] - x[:n], x[:n] - x[n:])
    tie = np.asarray(columns["margin"]) == 0
    outcome = np.where(tie, ties.TIE, np.where(flip, ties.LOSS, ties.WIN))
    weight = np.asarray(columns["weight"], dtype=np.float64)
    ridge = _choose_ridge(config, difference, outcome, weight, columns["prompt_key"], seed)
    fitted = ties.fit(difference, outcome, weight, ridge)
    ids = frozenset(columns["preference_id"])
    return BradleyTerry(base, config, projection, fitted, ridge, ids, cache_dir)


def _choose_ridge(
    config: Config, x: np.ndarray, outcome: np.ndarray, weight: np.ndarray, prompt_keys: list[str], seed: int
) -> float:
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
