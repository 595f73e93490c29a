"""Known answers: hand-computed likelihoods, and parameters that are known because votes were simulated from them.

    python benchmarks/rewards_oracles.py

Votes are drawn from Davidson's model with known weights and a known share of ties, 200 times; the fit's own intervals
are to hold the truth about as often as they say. Then people whose tastes are drawn from a known basis, 40 times.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rewards_data  # noqa: F401 - puts the project on the path
from promises import Check, finish
from rich.console import Console

from reward_models import ties
from reward_models.low_rank import LowRankConfig, Votes, fit
from reward_models.taste import Belief, posterior, updated

REPETITIONS, PEOPLE_REPETITIONS = 200, 40
WEIGHTS = np.array([0.8, -0.5, 0.0, 0.3])
LOG_NU = -0.4


def by_hand() -> list[Check]:
    """Numbers worked out on paper."""
    even = ties.probabilities(np.zeros(1), 0.0)[0]
    # d = log 4: e^(d/2) = 2, e^(-d/2) = 1/2, nu = 1: win 2 / 3.5, tie 1 / 3.5, loss 0.5 / 3.5.
    four = ties.probabilities(np.array([math.log(4)]), 0.0)[0]
    # One win of one reply over another, prior N(0, 1) on the difference, no ties: theta = 1 - sigmoid(theta).
    (won,) = updated(
        [Belief.independent([1.0])],
        [np.array([[1.0], [0.0]])],
        ties.WIN,
        offset=np.array([0.0, ties.NO_TIES]),
    )
    # One column, x = 1, one win, ridge 1: the same equation; Bradley-Terry's fit must agree with the belief.
    fitted = ties.fit(np.ones((1, 1)), np.array([ties.WIN]), np.ones(1), 1.0)
    # Shrinkage: ten wins and no loss with a prior of precision 1 solve theta = 10 (1 - sigmoid(theta)): 1.633506.
    ten = posterior(
        Belief.independent([1.0]), np.tile([[[1.0], [0.0]]], (10, 1, 1)), np.full(10, ties.WIN), np.ones(10),
        np.tile([0.0, ties.NO_TIES], (10, 1)),
    )  # fmt: skip
    found = [
        ("even replies, nu = 1: thirds", even, [1 / 3] * 3),
        ("d = log 4, nu = 1: 4/7, 2/7, 1/7", four, [4 / 7, 2 / 7, 1 / 7]),
        ("one win, prior N(0, 1): 0.4011", [won.mean[0]], [0.401058]),
        ("the same by Bradley-Terry's fit", [fitted.weights[0]], [0.401058]),
        ("ten wins, prior N(0, 1): 1.6335", [ten.mean[0]], [1.633506]),
    ]
    return [
        Check(
            what,
            "1e-5",
            f"{np.abs(np.subtract(got, wanted)).max():.1e}",
            bool(np.allclose(got, wanted, atol=1e-5)),
        )
        for what, got, wanted in found
    ]


def drawn(x: np.ndarray, weights: np.ndarray, log_nu: float, dice: np.random.Generator) -> np.ndarray:
    """(N,) outcomes of Davidson's model."""
    p = ties.probabilities(x @ weights, log_nu)
    return np.asarray((dice.random(len(x))[:, None] > p.cumsum(axis=1)).sum(axis=1))


def recovery(repetitions: int) -> tuple[Check, np.ndarray]:
    """How often 95 % intervals of the weights hold the truth."""
    inside = np.zeros(len(WEIGHTS))
    for seed in range(repetitions):
        dice = np.random.default_rng([1, seed])
        x = dice.normal(size=(400, len(WEIGHTS)))
        fitted = ties.fit(x, drawn(x, WEIGHTS, LOG_NU, dice), np.ones(len(x)), 1e-3)
        inside += np.abs(fitted.weights - WEIGHTS) < 1.96 * np.sqrt(np.diag(fitted.covariance))
    coverage = inside.sum() / (repetitions * len(WEIGHTS))
    # All four weights of one simulation hang together, so the margin is that of `repetitions` draws.
    margin = 3 * math.sqrt(0.95 * 0.05 / repetitions)
    return (
        Check(
            "weights recovered beside ties: 95% intervals hold the truth", f"95% ± {margin:.1%}", f"{coverage:.1%}",
            abs(coverage - 0.95) < margin,
        ),
        inside / repetitions,
    )  # fmt: skip


def of_people(repetitions: int) -> Check:
    """How often the beliefs about people hold their true weights in the direction in which people differ."""
    inside = total = 0
    config = LowRankConfig(rank=1, ridge=1.0, taste_std=1.0, prior_people=1.0)
    for seed in range(repetitions):
        dice = np.random.default_rng([2, seed])
        place = dice.normal(size=40)
        user = np.repeat(np.arange(40), 15)
        x = dice.normal(size=(len(user), 3))
        direction = np.array([0.6, 0.8, 0.0])
        weights = np.array([0.3, 0.0, 0.5]) + place[user, None] * direction
        p = ties.probabilities((x * weights).sum(axis=1), -0.5)
        outcome = (dice.random(len(x))[:, None] > p.cumsum(axis=1)).sum(axis=1)
        ones = np.ones(len(user))
        votes = Votes(x, 0 * ones, outcome, user, ones, 0 * ones, ones)
        fitted = fit(votes, np.zeros((40, 0)), config)
        basis, shared = fitted.basis[:, 0], fitted.shared
        for person in range(40):
            belief = fitted.learn(votes.take(np.flatnonzero(user == person)), fitted.prior())
            mean = direction @ (shared.mean[:3] + basis * belief.mean[0])
            variance = direction @ shared.covariance[:3, :3] @ direction
            variance += (direction @ basis) ** 2 * belief.covariance[0, 0]
            real = direction @ np.array([0.3, 0.0, 0.5]) + place[person]
            inside += abs(mean - real) < 1.96 * math.sqrt(variance)
            total += 1
    return Check(
        "people's own weights: 95% intervals hold the truth", "90% - 99%", f"{inside / total:.1%}",
        0.90 <= inside / total <= 0.99,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    check, by_weight = recovery(REPETITIONS)
    checks = [*by_hand(), check, of_people(PEOPLE_REPETITIONS)]
    Console().print(
        f"coverage by weight: {by_weight.round(3).tolist()}; simulations: seeds [1, 0]-[1, {REPETITIONS - 1}] and "
        f"[2, 0]-[2, {PEOPLE_REPETITIONS - 1}]; {time.monotonic() - started:.0f} s"
    )
    return finish(checks, options.json, {"coverage": by_weight.tolist()})


if __name__ == "__main__":
    sys.exit(main())
