"""From a reply's raw vector to the standardised columns that linear reward models weigh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reward_models.features import NAMES
from reward_models.scorer import RewardModelError

_TOGETHER = 8192  # rows centred at once, lest all of them are copied
_FURTHEST = 5.0  # standard deviations; one strange reply cannot run away with the score


@dataclass(frozen=True)
class Projection:
    """Leading principal components of the embedding beside every named feature, each of unit spread.

    Attributes:
        center: (E + F,) mean of the raw vectors.
        axes: (E + F, K + F)
        scale: (K + F,) spread of each column; infinite for one that never varied, which then counts nothing.
    """

    center: np.ndarray
    axes: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, raw: np.ndarray, components: int) -> Projection:
        """From raw vectors (B, E + F), the named features last; `components` of the embedding are kept.

        Each direction is turned so that its entry of greatest size is positive.
        """
        named = len(NAMES)
        center = raw.mean(axis=0)
        k = min(components, len(raw), raw.shape[1] - named)
        axes = np.zeros((raw.shape[1], k + named))
        axes[:-named, :k] = principal_directions(raw[:, :-named], center[:-named], k)
        axes[-named:, k:] = np.eye(named)
        spread = _projected(raw, center, axes).std(axis=0)
        return cls(center, axes, np.where(spread > 1e-9, spread, np.inf))

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        """(B, K + F) standardised columns of raw vectors (B, E + F).

        Raises:
            RewardModelError: the vectors are of another base model.
        """
        if raw.shape[1] != len(self.center):
            raise RewardModelError(
                "The reward model reads the embeddings of another base model.",
                got=f"vectors of {raw.shape[1]} numbers",
                allowed=len(self.center),
                next_step="palate train",
            )
        return np.clip(_projected(raw, self.center, self.axes) / self.scale, -_FURTHEST, _FURTHEST)

    @property
    def named(self) -> slice:
        """Which columns are the named features."""
        return slice(self.axes.shape[1] - len(NAMES), None)

    def arrays(self) -> dict[str, np.ndarray]:
        """As arrays to store; `Projection(**arrays)` reads them back."""
        return {"center": self.center, "axes": self.axes, "scale": self.scale}


def principal_directions(x: np.ndarray, center: np.ndarray, count: int) -> np.ndarray:
    """(E, K) leading principal directions of x (B, E) around its mean, each with its greatest entry positive.

    With more rows than columns they are read off the covariance, which takes one pass over the rows; otherwise off the
    rows themselves.
    """
    rows, columns = x.shape
    if not count:
        return np.zeros((columns, 0))
    if rows > columns:
        from scipy.linalg import eigh

        products = np.zeros((columns, columns))
        for i in range(0, rows, _TOGETHER):
            part = x[i : i + _TOGETHER] - center
            products += part.T @ part
        _, vectors = eigh(products, subset_by_index=[columns - count, columns - 1])
        found = vectors[:, ::-1]
    else:
        found = np.linalg.svd(x - center, full_matrices=False)[2][:count].T
    greatest = found[np.abs(found).argmax(axis=0), np.arange(count)]
    return np.asarray(found * np.where(greatest < 0, -1.0, 1.0))


def _projected(raw: np.ndarray, center: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """(B, K + F) centred rows on the axes."""
    starts = range(0, max(len(raw), 1), _TOGETHER)
    return np.concatenate([(raw[i : i + _TOGETHER] - center) @ axes for i in starts])
