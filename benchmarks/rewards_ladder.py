"""Real votes of a crowd in one pass, each predicted, then learned: how much is it worth to know who is asking?

    python benchmarks/rewards_ladder.py

llmfao: people who compare replies of 59 models to 13 prompts; left, right or tie. The votes come in a random order
drawn from a seed, ten times. The ladder of baselines is rebuilt on the same engine (`reward_models.online`), so that
rungs differ in what they know and in nothing else:

    marginal        the shares of left, tie and right so far
    global          strength of each model, style of each reply, lean to the left, readiness for ties
    + user ties     how readily each person ties
    + user style    each person's own weights of style
    palate          also each person's lean and scale, and what is known of each reply, pair and prompt by now
    nobody known    palate's last rung without anything about the person: what is left is what knowing them is worth

Widths of priors are chosen rung by rung on one half of the people and used to predict the other half, both ways:
no vote is predicted with a width chosen on its person.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from promises import Check, finish
from rewards_data import CrowdVotes, crowd_votes, halves, t_interval
from rich.console import Console
from rich.table import Table

from reward_models.online import OnlineVotes, Term

RUNGS: dict[str, dict[str, tuple[float, ...]]] = {
    "global": {"strength": (0.4, 0.7, 1.0), "style": (0.08, 0.15, 0.3)},
    "+ user ties": {"user_ties": (0.6, 1.0, 1.5)},
    "+ user style": {"user_style": (0.05, 0.1, 0.2)},
    "palate": {
        "user_lean": (0.3, 0.6),
        "user_length_ties": (0.15, 0.3),
        "reply": (0.4, 0.8),
        "pair_ties": (0.4, 0.8),
        "prompt_ties": (0.3, 0.6),
        "user_prompt": (0.3, 0.6),
    },
}
"""What each rung adds to the one before, and the widths that are tried."""
NOBODY = "nobody known"
ORDERS = 10
MIN_GAIN, MIN_ACCURACY = 0.01, 0.51


class Stream:
    """The votes with everything about them that does not change from pass to pass."""

    def __init__(self, votes: CrowdVotes):
        self.votes = votes
        style, longer = votes.difference, votes.longer
        n = len(votes.user)
        d = votes.strength.shape[1] + style.shape[1]
        self.shared = np.zeros((n, 2, d + 4))
        self.shared[:, 0, :d] = np.concatenate([votes.strength, style], axis=1)
        self.shared[:, 0, d] = 1.0
        self.shared[:, 1, d + 1] = 1.0
        self.shared[:, 1, d + 2] = np.abs(longer)
        self.shared[:, 1, d + 3] = np.sqrt((style**2).mean(axis=1))
        self.style, self.longer = style, longer

    def terms(self, i: int, width: dict[str, float]) -> list[Term]:
        """What takes part in vote i, as far as widths are given."""
        v, style = self.votes, self.style[i]
        stds = (
            np.full(v.model.max() + 1, width["strength"]),
            np.full(len(style), width["style"]),
            np.array([0.3, 1.0, 0.3, 0.3]),
        )
        found = [Term("all", np.concatenate(stds), self.shared[i])]
        columns: list[tuple[str, float, float]] = [
            ("user_lean", 1.0, 0.0),
            ("user_ties", 0.0, 1.0),
            ("user_length_ties", 0.0, abs(self.longer[i])),
        ]
        own = [(width[name], d, t) for name, d, t in columns if name in width]
        if "user_style" in width:
            own += [(width["user_style"], value, 0.0) for value in style]
        if own:
            values = np.array(own)
            found.append(Term(("user", v.user[i]), values[:, 0], values[:, 1:].T))
        for name, key, d, t in (
            ("reply", ("reply", v.first[i]), 1.0, 0.0),
            ("reply", ("reply", v.second[i]), -1.0, 0.0),
            ("pair_ties", ("pair", v.pair[i]), 0.0, 1.0),
            ("prompt_ties", ("prompt", v.prompt[i]), 0.0, 1.0),
            ("user_prompt", ("user at prompt", v.user[i], v.prompt[i]), 0.0, 1.0),
        ):
            if name in width:
                found.append(Term(key, np.array([width[name]]), np.array([[d], [t]])))
        return found

    def run(self, order: np.ndarray, width: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """One pass: (log-loss, whether the likeliest outcome came) of each vote; nan outside the order."""
        online, outcome = OnlineVotes(), self.votes.outcome
        loss = np.full(len(outcome), np.nan)
        right = np.full(len(outcome), np.nan)
        for i in order:
            taking_part = self.terms(i, width)
            p = online.predict(taking_part)
            loss[i], right[i] = -np.log(max(p[outcome[i]], 1e-12)), float(p.argmax() == outcome[i])
            online.learn(taking_part, int(outcome[i]))
        return loss, right


def marginal(outcome: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same of the shares so far."""
    counts = np.ones(3)
    loss, right = np.empty(len(order)), np.empty(len(order))
    for i in order:
        loss[i] = -np.log(counts[outcome[i]] / counts.sum())
        right[i] = float(counts.argmax() == outcome[i])
        counts[outcome[i]] += 1
    return loss, right


STREAM: Stream | None = None


def stream() -> Stream:
    """The votes, read once in each process."""
    global STREAM
    STREAM = STREAM or Stream(crowd_votes())
    return STREAM


def tuned(half: int) -> dict[str, dict[str, float]]:
    """Widths of every rung, chosen one after the other on the people of one half."""
    rows = np.flatnonzero(halves(stream().votes.user) == half)
    order = np.random.default_rng(half).permutation(rows)
    width: dict[str, float] = {"strength": 0.7}
    chosen = {}
    for rung, added in RUNGS.items():
        for name, tried in added.items():
            width.setdefault("style", 0.15)
            losses = [float(np.nanmean(stream().run(order, {**width, name: value})[0])) for value in tried]
            width[name] = tried[int(np.argmin(losses))]
        chosen[rung] = dict(width)
    chosen[NOBODY] = {name: value for name, value in width.items() if not name.startswith("user")}
    return chosen


def measured(task: tuple[int, dict[int, dict[str, dict[str, float]]]]) -> dict[str, tuple[float, float]]:
    """Mean log-loss and accuracy of every rung in one order."""
    seed, widths = task
    votes, half = stream().votes, halves(stream().votes.user)
    order = np.random.default_rng(seed).permutation(len(votes.user))
    loss, right = marginal(votes.outcome, order)
    found = {"marginal": (float(loss.mean()), float(right.mean()))}
    for rung in (*RUNGS, NOBODY):
        both = {side: stream().run(order, widths[1 - side][rung]) for side in (0, 1)}
        loss, right = (np.where(half == 0, both[0][k], both[1][k]) for k in (0, 1))
        found[rung] = (float(loss.mean()), float(right.mean()))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        widths = dict(enumerate(pool.map(tuned, (0, 1))))
        orders = list(pool.map(measured, [(seed, widths) for seed in range(options.orders)]))
    console = Console()
    table = Table(
        "knows", "log-loss, nats [95 %]", "accuracy [95 %]", title="llmfao, one pass, three outcomes"
    )
    loss, accuracy = {}, {}
    for rung in ("marginal", *RUNGS, NOBODY):
        loss[rung] = t_interval(np.array([order[rung][0] for order in orders]))
        accuracy[rung] = t_interval(np.array([order[rung][1] for order in orders]))
        table.add_row(rung, _shown(loss[rung]), _shown(accuracy[rung]))
    console.print(table)
    console.print(f"orders: seeds 0-{options.orders - 1}; halves of people: seed 2026; widths: {widths}")
    console.print(f"{time.monotonic() - started:.0f} s")
    person = t_interval(np.array([order[NOBODY][0] - order["palate"][0] for order in orders]))
    console.print(f"knowing the person, everything else alike: {_shown(person)} nats")
    best = min((rung for rung in loss if rung != "palate"), key=lambda rung: loss[rung][0])
    gain = loss[best][0] - loss["palate"][0]
    checks = [
        Check(f"gain over the best rung ({best}), nats", f">= {MIN_GAIN}", f"{gain:.4f}", gain >= MIN_GAIN),
        Check(
            "intervals apart", "yes", f"{loss['palate'][2]:.4f} < {loss[best][1]:.4f}",
            loss["palate"][2] < loss[best][1],
        ),
        Check("knowing the person alone, nats", "> 0", _shown(person), person[1] > 0),
        Check(
            "three-way accuracy", f">= {MIN_ACCURACY:.0%}", f"{accuracy['palate'][0]:.1%}",
            accuracy["palate"][0] >= MIN_ACCURACY,
        ),
    ]  # fmt: skip
    return finish(checks, options.json, {"log_loss": loss, "accuracy": accuracy, "widths": widths})


def _shown(interval: tuple[float, float, float]) -> str:
    return f"{interval[0]:.4f} [{interval[1]:.4f}, {interval[2]:.4f}]"


if __name__ == "__main__":
    sys.exit(main())
