"""What a policy is worth, from the log of another one, where the truth is known.

    python benchmarks/rewards_bandit.py

open_bandit_men: a real shop's log in which every item was shown with the same, known probability. Its rows are the
population here. A log is drawn from them as a skewed policy would have made it (rows are kept with a probability in
proportion to that policy's), so the truth, the mean reward of the target policy over the population, is known exactly
while estimates see the drawn log and its propensities only. 200 logs for each target; intervals are to hold the truth
in at least 90 % of them, and a target that the logged policy hardly ever followed is to be refused.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from promises import Check, finish
from rewards_data import shared
from rich.console import Console
from rich.table import Table

from evaluation.off_policy import Config, InsufficientOverlap, Logged, crossfitted_means, evaluate

REPETITIONS, MIN_COVERAGE = 200, 0.90
ITEMS = 34
DRAWS = 150_000  # of which about one in seven is kept
CONFIG = Config(resamples=300)
ESTIMATORS = ("ips", "snips", "dr")


@dataclass(frozen=True)
class Population:
    """N rows of the shop's log: item shown, click, and the situation: position and a feature of the user."""

    item: np.ndarray
    click: np.ndarray
    situation: np.ndarray


def population() -> Population:
    """The log as it is."""
    with (shared("open_bandit_men") / "random_men.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shares = {float(row["propensity_score"]) for row in rows}
    assert all(abs(share - 1 / ITEMS) < 1e-9 for share in shares), "the log is not of the uniform policy"
    user = np.unique([row["user_feature_0"] for row in rows], return_inverse=True)[1]
    position = np.array([int(row["position"]) - 1 for row in rows])
    return Population(
        np.array([int(row["item_id"]) for row in rows]),
        np.array([float(row["click"]) for row in rows]),
        position * (user.max() + 1) + user,
    )


def policy(situations: int, sharpness: float, seed: int) -> np.ndarray:
    """(situations, items) probabilities of a policy whose taste is drawn from a seed."""
    likes = np.random.default_rng(seed).normal(size=(situations, ITEMS)) * sharpness
    weights = np.exp(likes - likes.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def truth(people: Population, target: np.ndarray) -> float:
    """The target's mean reward over the population, in which every item had the same chance."""
    return float((target[people.situation, people.item] * ITEMS * people.click).mean())


def drawn(people: Population, logged: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Rows as the logged policy would have made them: drawn evenly, kept in proportion to its probability."""
    rows = dice.integers(0, len(people.item), DRAWS)
    chance = logged[people.situation[rows], people.item[rows]] / logged.max()
    return rows[dice.random(len(rows)) < chance]


def as_logged(
    people: Population, rows: np.ndarray, logged: np.ndarray, target: np.ndarray, seed: int
) -> Logged:
    """What an estimator sees of a drawn log, beside a model of clicks by item that has not seen the row."""
    item, situation, click = people.item[rows], people.situation[rows], people.click[rows]
    means, fold = crossfitted_means(item, click, ITEMS, pull=2_000.0, seed=seed)
    expected = (means[fold] * target[situation]).sum(axis=1)
    return Logged(click, logged[situation, item], target[situation, item], None, means[fold, item], expected)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    people, console = population(), Console()
    situations = int(people.situation.max()) + 1
    logged = policy(situations, 0.7, seed=1)
    targets = {
        "every item alike": np.full((situations, ITEMS), 1 / ITEMS),
        "a policy of other taste": policy(situations, 0.5, seed=2),
    }
    table = Table("target", "truth", "estimator", "one log [95 %]", "holds the truth", "mean ess", "rows")
    checks, figures = [], {}
    for name, target in targets.items():
        real = truth(people, target)
        inside = dict.fromkeys(ESTIMATORS, 0)
        sizes, shown = [], {}
        for seed in range(options.repetitions):
            rows = drawn(people, logged, np.random.default_rng([7, seed]))
            value = evaluate(as_logged(people, rows, logged, target, seed), CONFIG, seed=seed)
            sizes.append((value.ess, value.rows))
            for estimator in ESTIMATORS:
                estimate = getattr(value, estimator)
                inside[estimator] += estimate.low <= real <= estimate.high
                if seed == 0:
                    shown[estimator] = f"{estimate.value:.5f} [{estimate.low:.5f}, {estimate.high:.5f}]"
        ess, count = np.mean(sizes, axis=0)
        for estimator in ESTIMATORS:
            coverage = inside[estimator] / options.repetitions
            table.add_row(
                name,
                f"{real:.5f}",
                estimator,
                shown[estimator],
                f"{coverage:.1%}",
                f"{ess:.0f}",
                f"{count:.0f}",
            )
            checks.append(
                Check(f"{name}: truth in the interval, {estimator}", f">= {MIN_COVERAGE:.0%}", f"{coverage:.1%}",
                      coverage >= MIN_COVERAGE)
            )  # fmt: skip
            figures[f"{name}/{estimator}"] = coverage
    console.print(table)
    console.print(
        f"{len(people.item)} rows, {int(people.click.sum())} clicks; policies: seeds 1 and 2; "
        f"logs: seeds [7, 0]-[7, {options.repetitions - 1}]"
    )
    checks.append(_refused(people, logged, console))
    console.print(f"{time.monotonic() - started:.0f} s")
    return finish(checks, options.json, figures)


def _refused(people: Population, logged: np.ndarray, console: Console) -> Check:
    """A policy that always shows what the logged one shows least."""
    target = np.zeros_like(logged)
    target[np.arange(len(logged)), logged.argmin(axis=1)] = 1.0
    rows = drawn(people, logged, np.random.default_rng([7, 0]))
    try:
        evaluate(as_logged(people, rows, logged, target, 0), CONFIG, seed=0)
    except InsufficientOverlap as refusal:
        console.print(f"refused: {refusal}")
        return Check("hardly any overlap", "refused", "refused", True)
    return Check("hardly any overlap", "refused", "estimated", False)


if __name__ == "__main__":
    sys.exit(main())
