"""People nobody has met: how well their votes are predicted after none, 1, 2, 4 … 32 of them.

    python benchmarks/rewards_unseen.py --plots plots

llmfao: 30 workers are left out, five times; the rest fit the shared basis (`reward_models.low_rank`). Of everybody
left out, half of the votes (at most 32) are there to learn from and the others to be predicted, the same ones for
every k. `global` is the same model without anything personal, fitted on the same votes. How people may differ is
chosen inside the people who are fitted, by leaving out a third of them in turn.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from promises import Check, finish
from rewards_data import crowd_votes, t_interval
from rich.console import Console
from rich.table import Table

from evaluation.estimates import Estimate, bootstrap_mean
from reward_models.low_rank import LowRank, LowRankConfig, Votes, fit
from reward_models.ties import outcome_loss

LEFT_OUT, SPLITS, MOST = 30, 5, 32
KS = (0, 1, 2, 4, 8, 16, 32)
TRIED = [
    LowRankConfig(rank=rank, taste_std=taste, habit_std=habit)
    for rank, taste, habit in itertools.product((2, 4), (0.15, 0.3), (0.4, 0.7))
]


def votes() -> tuple[Votes, np.ndarray]:
    """(the votes, which columns people may differ in): strengths of models are everybody's."""
    crowd = crowd_votes()
    x = np.concatenate([crowd.strength, crowd.difference], axis=1)
    ones = np.ones(len(x))
    personal = np.arange(x.shape[1]) >= crowd.strength.shape[1]
    return Votes(x, crowd.longer, crowd.outcome, crowd.user, ones, ones, ones), personal


def divided(everybody: Votes, person: int, seed: int) -> tuple[np.ndarray, Votes]:
    """(rows of a person's earlier votes, their later votes)."""
    own = np.random.default_rng([seed, person]).permutation(np.flatnonzero(everybody.user == person))
    known = min(len(own) // 2, MOST)
    return own[:known], everybody.take(own[known:])


def curve(model: LowRank, everybody: Votes, person: int, seed: int) -> list[float]:
    """Mean log-loss of a person's later votes after each number of earlier ones."""
    known, later = divided(everybody, person, seed)
    beliefs = [model.learn(everybody.take(known[:k]), model.prior()) for k in KS]
    return [float(outcome_loss(model.predict(later, belief), later.outcome).mean()) for belief in beliefs]


def chosen(everybody: Votes, people: np.ndarray, personal: np.ndarray, seed: int) -> LowRankConfig:
    """The setting that predicts people best who were left out of these, over all k."""
    third = np.random.default_rng(seed).permutation(len(people)) % 3
    total = np.zeros(len(TRIED))
    for out in range(3):
        inside = np.isin(everybody.user, people[third != out])
        for i, config in enumerate(TRIED):
            model = fitted(everybody, inside, config, personal)
            total[i] += sum(np.mean(curve(model, everybody, p, seed)) for p in people[third == out])
    return TRIED[int(np.argmin(total))]


def fitted(everybody: Votes, inside: np.ndarray, config: LowRankConfig, personal: np.ndarray) -> LowRank:
    """The model of some votes."""
    known = np.zeros((everybody.user.max() + 1, 0))
    return fit(everybody.take(np.flatnonzero(inside)), known, config, personal)


def split(seed: int) -> tuple[LowRankConfig, np.ndarray, np.ndarray]:
    """(the setting chosen, losses (30, 1 + K): of the global model, then after each k; whose they are (30,))."""
    everybody, personal = votes()
    order = np.random.default_rng(seed).permutation(everybody.user.max() + 1)
    out, rest = order[:LEFT_OUT], order[LEFT_OUT:]
    config = chosen(everybody, rest, personal, seed)
    inside = np.isin(everybody.user, rest)
    model = fitted(everybody, inside, config, personal)
    one_taste = config.model_copy(update={"rank": 0, "habit_std": 1e-3, "prior_people": 1e6})
    alone = fitted(everybody, inside, one_taste, personal)
    losses = []
    for person in out:
        _, later = divided(everybody, person, seed)
        shared = float(outcome_loss(alone.predict(later, None), later.outcome).mean())
        losses.append([shared, *curve(model, everybody, person, seed)])
    return config, np.array(losses), out


def plot(gains: list[Estimate], path: Path) -> None:
    """The curve as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    mean, low, high = np.array([(gain.value, gain.low, gain.high) for gain in gains]).T
    places = np.arange(len(KS))
    axes.fill_between(places, low, high, alpha=0.2, linewidth=0)
    axes.plot(places, mean, marker="o")
    axes.axhline(0, linewidth=1, linestyle=":")
    axes.set_xticks(places, [str(k) for k in KS])
    axes.set_xlabel("votes of a person that were seen before")
    axes.set_ylabel("log-loss below the global model, nats")
    axes.set_title("People who were not there when the model was fitted (llmfao)")
    path.mkdir(parents=True, exist_ok=True)
    figure.savefig(path / "unseen_people.svg")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plots", type=Path, help="folder for the picture of the curve")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        found = list(pool.map(split, range(options.splits)))
    losses = np.concatenate([each for _, each, _ in found])
    people = np.concatenate([who for _, _, who in found])  # some are left out by several splits
    gains = [bootstrap_mean(losses[:, 0] - losses[:, 1 + i], people, seed=0) for i in range(len(KS))]
    table = Table(
        "k", "log-loss, nats", "below global [95 %]", title=f"global: {losses[:, 0].mean():.4f} nats"
    )
    for i, k in enumerate(KS):
        table.add_row(
            str(k),
            f"{losses[:, 1 + i].mean():.4f}",
            f"{gains[i].value:.4f} [{gains[i].low:.4f}, {gains[i].high:.4f}]",
        )
    console = Console()
    console.print(table)
    console.print(
        f"splits: seeds 0-{options.splits - 1}; people: {len(np.unique(people))}, left out {len(people)} times"
    )
    for seed, (config, each, _) in enumerate(found):
        means = " ".join(f"{value:.4f}" for value in each.mean(axis=0))
        console.print(
            f"split {seed}: rank {config.rank}, taste {config.taste_std}, habits {config.habit_std}: {means}"
        )
    per_split = np.array([each[:, 0].mean() - each[:, 1].mean() for _, each, _ in found])
    if len(per_split) > 1:
        console.print("gain at k = 0, over splits: {:.4f} [{:.4f}, {:.4f}]".format(*t_interval(per_split)))
    console.print(f"{time.monotonic() - started:.0f} s")
    if options.plots:
        plot(gains, options.plots)
    whole = gains[KS.index(MOST)].value
    share = gains[KS.index(8)].value / whole if whole > 0 else 0.0
    checks = [
        Check("k = 0: log-loss below global, nats", ">= 0", f"{gains[0].value:.4f}", gains[0].value >= 0),
        *(
            Check(f"k = {k}: below global, lower bound", "> 0", f"{gains[i].low:.4f}", gains[i].low > 0)
            for i, k in enumerate(KS)
            if k >= 4
        ),
        Check("share of the whole gain at k = 8", ">= 50%", f"{share:.0%}", share >= 0.5),
    ]
    figures = {
        "gains": {str(k): gain.to_dict() for k, gain in zip(KS, gains, strict=True)},
        "global": float(losses[:, 0].mean()),
    }
    return finish(checks, options.json, figures)


if __name__ == "__main__":
    sys.exit(main())
