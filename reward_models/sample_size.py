"""How much weighted rows tell."""

from __future__ import annotations

import numpy as np


def effective_size(weights: np.ndarray) -> float:
    """So many equal weights tell as much: (sum w)^2 / sum w^2 (Kish 1965, Survey Sampling); 0 without weight."""
    square = float((weights**2).sum())
    return float(weights.sum()) ** 2 / square if square > 0 else 0.0
