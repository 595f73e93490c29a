"""From a reply's raw vector to the standardised columns that linear reward models weigh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reward_models.features import NAMES

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
        """From raw vectors (B, E + F), the named features last; `components` of the embedding are kept."""
        named = len(NAMES)
        center = raw.mean(axis=0)
        embedding = (raw - center)[:, :-named]
        k = min(components, *embedding.shape)
        _, _, directions = np.linalg.svd(embedding, full_matrices=False)
        axes = np.zeros((raw.shape[1], k + named))
        axes[:-named, :k] = directions[:k].T
        axes[-named:, k:] = np.eye(named)
        spread = ((raw - center) @ axes).std(axis=0)
        return cls(center, axes, np.where(spread > 1e-9, spread, np.inf))

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        """(B, K + F) standardised columns of raw vectors (B, E + F)."""
        return np.clip((raw - self.center) @ self.axes / self.scale, -_FURTHEST, _FURTHEST)

    @property
    def named(self) -> slice:
        """Which columns are the named features."""
        return slice(self.axes.shape[1] - len(NAMES), None)

    def arrays(self) -> dict[str, np.ndarray]:
        """As arrays to store; `Projection(**arrays)` reads them back."""
        return {"center": self.center, "axes": self.axes, "scale": self.scale}
