"""Do the means of two samples differ, where rows of one person resemble each other and a person may be in both?

Rows cannot be permuted then. The statistic is the difference of the means over its standard error across people; what
it would be by chance is drawn by the wild cluster bootstrap with the null imposed: each person's deviations from the
common mean get a random sign together, and the statistic is computed anew. Cameron, Gelbach and Miller,
"Bootstrap-Based Improvements for Inference with Clustered Errors", Review of Economics and Statistics 90, 2008. With
few people in one sample it can err (MacKinnon and Webb, "Wild Bootstrap Inference for Wildly Different Cluster Sizes",
Journal of Applied Econometrics 32, 2017).
"""

from __future__ import annotations

import numpy as np

from reward_models.scorer import RewardModelError


def wild_p(
    columns: np.ndarray, recent: np.ndarray, clusters: np.ndarray, *, seed: int, resamples: int
) -> tuple[np.ndarray, np.ndarray]:
    """(two-sided, one-sided) p-values, (C,) each, that recent means differ, or are higher.

    Args:
        columns: (N, C) finite values.
        recent: (N,) bool; both kinds present.
        clusters: (N,) who each row belongs to.
        seed: of the signs; the same ones for all columns.
        resamples: how many draws.

    Raises:
        RewardModelError: a value is not finite.
    """
    if not np.isfinite(columns).all():
        raise RewardModelError(
            "Drift needs finite numbers.", got=f"{int((~np.isfinite(columns)).sum())} NaN or infinite",
            next_step="look at the rewards of these pairs",
        )  # fmt: skip
    _, codes = np.unique(np.asarray(clusters).astype(str), return_inverse=True)
    groups = int(codes.max()) + 1

    def sums(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        added = np.zeros((groups, values.shape[1]))
        np.add.at(added, codes[which], values[which])
        return added / which.sum()

    deviation = columns - columns.mean(axis=0)
    # Shares of a person in each window's mean, and of their votes in its count: (G, C) and (G, 1).
    mine = [sums(deviation, which) for which in (recent, ~recent)]
    size = [sums(np.ones((len(columns), 1)), which) for which in (recent, ~recent)]

    def statistic(signs: np.ndarray) -> np.ndarray:
        """(R, C) t of the difference of means, with each person's deviations times their sign, (R, G)."""
        m1, m0 = (signs @ part for part in mine)
        # A person's part in the error of the difference is sign * own - (size1 * m1 - size0 * m0).
        own, (s1, s0) = mine[0] - mine[1], size
        across = m1 * (signs @ (own * s1)) - m0 * (signs @ (own * s0))
        square = m1**2 * (s1**2).sum() - 2 * m1 * m0 * (s1 * s0).sum() + m0**2 * (s0**2).sum()
        variance = np.maximum((own**2).sum(axis=0) - 2 * across + square, 1e-12 * (own**2).sum(axis=0))
        return np.divide(m1 - m0, np.sqrt(variance), out=np.zeros_like(m1), where=variance > 0)

    observed = statistic(np.ones((1, groups)))[0]
    rng = np.random.default_rng(seed)
    further, higher, step = np.ones(columns.shape[1]), np.ones(columns.shape[1]), max(1, 4_000_000 // groups)
    for start in range(0, resamples, step):
        drawn = statistic(rng.choice([-1.0, 1.0], size=(min(step, resamples - start), groups)))
        further += (np.abs(drawn) >= np.abs(observed) * (1 - 1e-9)).sum(axis=0)
        higher += (drawn >= observed - 1e-9 * np.abs(observed)).sum(axis=0)
    return further / (resamples + 1), higher / (resamples + 1)
