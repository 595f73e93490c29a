"""How far a brigade of 5 % of the users moves everybody else's rewards, with and without the guard.

    python benchmarks/rewards_brigade.py

The honest are the llmfao crowd, 89 workers and their real votes. Five simulated users join them (5 of 94) and vote
for what they are told to, whatever the replies say:

    model, burst      for one model, in one hour, as many votes as the median worker
    longer, burst     for the longer reply, likewise
    camouflage        for one model in every other vote, else with the crowd's majority, spread over the two weeks
    volume            for the longer reply, ten times the median worker's votes, spread over the two weeks
    camouflage, longer    for the longer reply in every other vote, else with the majority

The last is shown and not promised: each of its members stays within what honest people do, who differ most of all in
how they like length, so that the guard does not find it, and the cap does not hold it.

Which model, which pairs and when are drawn by the seed. The set tells no times, so those of the honest are simulated
too, with bursts of their own: each worker works in one sitting of up to two hours in daytime, and a third of them in
the same two hours of a launch day.

Measured is how each honest worker's reward of the 750 replies moves when the brigade joins: r_u of the shared-plus-
personal model (`reward_models.low_rank`) fitted with and without the brigade's votes, under the same guard, which
judges anew what it sees. Only differences between replies to one prompt mean anything, so a prompt's mean is taken out.
Of the differences the root mean square over replies is divided by the standard deviation over replies of that
worker's rewards without the brigade, and of all workers the one who is moved most counts.

The guard is judged on every seed. Where it leaves exactly the honest votes, with the weights they have without the
brigade, the model is the same and the move is 0 without a fit; of the seeds where it does not, the first two of each
kind are fitted and the table of detection tells how many there are. False alarms are counted on the honest alone
too, all of them and a random half of them for each seed. Seeds 0 to 119 were looked at while the guard was built; those
scored are others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from promises import Check, finish
from rewards_data import CrowdVotes, crowd_votes, t_interval
from rich.console import Console
from rich.table import Table

from reward_models import brigade, influence
from reward_models.features import NAMES
from reward_models.low_rank import LowRankConfig, Votes, fit
from reward_models.ties import LOSS, TIE, WIN

PROMISED_STD, PROMISED_FLAGGED, SHARE = 0.1, 0.02, 0.05
FIRST_SEED, SEEDS, FITTED = 200, 16, 2
DAYS, HOUR_US = 14, 3_600_000_000
GUARDS = ("none", "cap", "cap + detection")
BOTH = GUARDS[-1]
MODEL = LowRankConfig(rank=2, taste_std=0.15, habit_std=0.4)
"""As `rewards_unseen.py` mostly chooses."""


@dataclass(frozen=True)
class Kind:
    """How a brigade votes."""

    aim: str
    """`model` or `longer`."""
    times_median: int
    """Votes of each, in those of the median worker."""
    camouflage: float
    """Share of votes that follow the majority."""
    burst: bool


KINDS = {
    "model, burst": Kind("model", 1, 0.0, True),
    "longer, burst": Kind("longer", 1, 0.0, True),
    "camouflage": Kind("model", 1, 0.5, False),
    "volume": Kind("longer", 10, 0.0, False),
    "camouflage, longer": Kind("longer", 1, 0.5, False),
}
HIDDEN = "camouflage, longer"
"""Shown and not promised."""


@dataclass(frozen=True)
class Ballot:
    """N votes: codes of two replies and the person, ties.WIN, TIE or LOSS of the first, and microseconds."""

    first: np.ndarray
    second: np.ndarray
    user: np.ndarray
    outcome: np.ndarray
    time_us: np.ndarray

    def take(self, rows: np.ndarray) -> Ballot:
        """Some of them."""
        return Ballot(*(getattr(self, n)[rows] for n in self.__dataclass_fields__))

    def with_others(self, other: Ballot) -> Ballot:
        """Both."""
        return Ballot(
            *(np.concatenate([getattr(self, n), getattr(other, n)]) for n in self.__dataclass_fields__)
        )


class Crowd:
    """The honest, and what there is to vote on."""

    def __init__(self, votes: CrowdVotes):
        self.votes = votes
        strength = np.eye(votes.model.max() + 1)[votes.model]
        self.x = np.concatenate([strength, votes.style], axis=1)
        self.personal = np.arange(self.x.shape[1]) >= strength.shape[1]
        self.names = [*(f"model {m}" for m in range(strength.shape[1])), *NAMES]
        self.people = int(votes.user.max()) + 1
        self.median = int(np.median(np.bincount(votes.user)))
        self.prompt = np.zeros(len(self.x), int)
        for reply in (votes.first, votes.second):
            self.prompt[reply] = votes.prompt

    def honest(self, seed: int) -> Ballot:
        """The real votes at simulated times."""
        dice = np.random.default_rng([seed, 1])
        day, hour = dice.integers(DAYS, size=self.people), dice.uniform(8, 20, self.people)
        launch = dice.random(self.people) < 1 / 3
        day, hour = np.where(launch, 5, day), np.where(launch, 12.0, hour)
        hours = (24 * day + hour)[self.votes.user] + dice.uniform(0, 2, len(self.votes.user))
        v = self.votes
        return Ballot(v.first, v.second, v.user, v.outcome, _us(hours))

    def brigade(self, kind: Kind, seed: int) -> Ballot:
        """Five percent of all users who join."""
        dice = np.random.default_rng([seed, 2])
        members = round(SHARE * self.people / (1 - SHARE))
        target = int(dice.integers(self.votes.model.max() + 1))
        start = 24 * dice.integers(DAYS) + dice.uniform(0, 23)
        winners, losers, users = [], [], []
        for member in range(members):
            for vote in range(kind.times_median * self.median):
                if vote < kind.camouflage * kind.times_median * self.median:
                    pair = self._with_majority(dice)
                else:
                    pair = self._for_model(target, dice) if kind.aim == "model" else self._for_longer(dice)
                winners.append(pair[0])
                losers.append(pair[1])
                users.append(self.people + member)
        n = len(users)
        flip = dice.random(n) < 0.5
        hours = start + dice.random(n) if kind.burst else 24 * dice.uniform(0, DAYS, n)
        a, b = np.array(winners), np.array(losers)
        first, second = np.where(flip, b, a), np.where(flip, a, b)
        return Ballot(first, second, np.array(users), np.where(flip, LOSS, WIN), _us(hours))

    def _with_majority(self, dice: np.random.Generator) -> tuple[int, int]:
        """(winner, loser) of a real vote's pair that was not mostly called a tie."""
        v = self.votes
        while True:
            own = v.pair == v.pair[dice.integers(len(v.pair))]
            # A pair's replies are always shown in the same order or the other; count by reply.
            a = int(v.first[own][0])
            for_a = ((v.outcome == WIN) & (v.first == a) | (v.outcome == LOSS) & (v.second == a))[own].sum()
            decided = (v.outcome[own] != TIE).sum()
            b = int(v.second[own][0])
            if 2 * for_a != decided:
                return (a, b) if 2 * for_a > decided else (b, a)

    def _for_model(self, target: int, dice: np.random.Generator) -> tuple[int, int]:
        ours = int(dice.choice(np.flatnonzero(self.votes.model == target)))
        others = np.flatnonzero((self.prompt == self.prompt[ours]) & (self.votes.model != target))
        return ours, int(dice.choice(others))

    def _for_longer(self, dice: np.random.Generator) -> tuple[int, int]:
        words = self.votes.log_words
        while True:
            i = dice.integers(len(self.votes.user))
            a, b = int(self.votes.first[i]), int(self.votes.second[i])
            if words[a] != words[b]:
                return (a, b) if words[a] > words[b] else (b, a)

    def as_votes(self, ballot: Ballot, weight: np.ndarray) -> Votes:
        """For the fit."""
        words, ones = self.votes.log_words, np.ones(len(ballot.user))
        return Votes(
            self.x[ballot.first] - self.x[ballot.second],
            words[ballot.first] - words[ballot.second],
            ballot.outcome, ballot.user, weight, ones, ones,
        )  # fmt: skip

    def detect(self, ballot: Ballot) -> brigade.Brigade:
        """Who acts together in these votes."""
        sign = np.where(ballot.outcome == LOSS, -1, 1)
        toward = sign[:, None] * (self.x[ballot.first] - self.x[ballot.second])
        return brigade.detect(self._rows(ballot), directions=toward, names=self.names)

    def _rows(self, ballot: Ballot) -> pa.Table:
        """The columns of PREFERENCES that are read; a reply's text is its code."""
        won = ballot.outcome != LOSS
        chosen, other = np.where(won, ballot.first, ballot.second), np.where(won, ballot.second, ballot.first)
        return pa.table(
            {
                "user_id": pa.array(_ids(ballot)),
                "prompt_key": pa.array(self.prompt[ballot.first].astype(str).tolist()),
                "chosen": pa.array(chosen.astype(str).tolist()),
                "rejected": pa.array(other.astype(str).tolist()),
                "label": pa.nulls(len(won), pa.bool_()),
                "margin": pa.array(np.where(ballot.outcome == TIE, 0.0, 1.0)),
                "event_time": pa.array(ballot.time_us, pa.timestamp("us", "UTC")),
            }
        )

    def guarded(
        self, ballot: Ballot, flagged: brigade.Brigade | None, guard: str
    ) -> tuple[Ballot, np.ndarray]:
        """The votes that still weigh something under one of `GUARDS`, and their weights."""
        weight = np.ones(len(ballot.user))
        if guard == BOTH and flagged is not None:
            weight = weight * flagged.factors
        if guard != "none":
            weight = influence.capped(_ids(ballot), weight).weights
        return ballot.take(weight > 0), weight[weight > 0]

    def rewards(self, ballot: Ballot, weight: np.ndarray) -> np.ndarray:
        """(people, replies) of the honest, less each prompt's mean."""
        everybody = self.as_votes(ballot, weight)
        model = fit(everybody, np.zeros((ballot.user.max() + 1, 0)), MODEL, self.personal)
        d, r = model.basis.shape
        found = np.empty((self.people, len(self.x)))
        # What a person said of themselves counts in full: the guard protects the others from it.
        v = self.votes
        own_votes = self.as_votes(Ballot(v.first, v.second, v.user, v.outcome, v.user), np.ones(len(v.user)))
        for person, rows in own_votes.by_person():
            belief = model.learn(own_votes.take(rows), model.prior())
            found[person] = self.x @ (model.shared.mean[:d] + model.basis @ belief.mean[:r])
        for prompt in np.unique(self.prompt):
            own = self.prompt == prompt
            found[:, own] -= found[:, own].mean(axis=1, keepdims=True)
        return found


def _us(hours: np.ndarray) -> np.ndarray:
    return (hours * HOUR_US).astype(np.int64) + 1_767_225_600_000_000  # from 2026-01-01 on


def _ids(ballot: Ballot) -> list[str]:
    return [f"user-{code}" for code in ballot.user.tolist()]


class Fits:
    """Rewards of the honest, fitted once for the same votes and weights."""

    def __init__(self, crowd: Crowd):
        self.crowd = crowd
        self.known: dict[bytes, np.ndarray] = {}
        self.spare: dict[str, int] = {}
        """Fits left for each kind, on seeds that are not fitted anyway."""

    @staticmethod
    def _key(ballot: Ballot, weight: np.ndarray) -> bytes:
        return np.stack([ballot.first, ballot.second, ballot.user, ballot.outcome, weight]).tobytes()

    def knows(self, ballot: Ballot, weight: np.ndarray) -> bool:
        """Whether it costs nothing."""
        return self._key(ballot, weight) in self.known

    def __call__(self, ballot: Ballot, weight: np.ndarray) -> np.ndarray:
        """(people, replies)"""
        key = self._key(ballot, weight)
        if key not in self.known:
            self.known[key] = self.crowd.rewards(ballot, weight)
        return self.known[key]


def moved(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """(root mean square, mean absolute) move over replies of whom it moves most, in standard deviations of theirs."""
    std, move = before.std(axis=1), after - before
    return float((np.sqrt((move**2).mean(axis=1)) / std).max()), float(
        (np.abs(move).mean(axis=1) / std).max()
    )


@dataclass(frozen=True)
class Found:
    """What the detection said of one ballot: shares of the brigade and of the honest who are flagged."""

    caught: float
    wrong: float

    @classmethod
    def of(cls, flagged: brigade.Brigade, honest: int, members: int) -> Found:
        """Honest people have the lower codes."""
        codes = np.array([int(name.removeprefix("user-")) for name in flagged.users], dtype=int)
        return cls(float((codes >= honest).sum() / max(1, members)), float((codes < honest).sum() / honest))


def one_seed(crowd: Crowd, fits: Fits, seed: int, fitted: bool) -> dict[str, dict[str, object]]:
    """For each kind, what was found and the moves (root mean square, mean absolute) under each guard measured."""
    honest = crowd.honest(seed)
    alone = crowd.detect(honest)
    out: dict[str, dict[str, object]] = {}
    for name, kind in KINDS.items():
        joined = crowd.brigade(kind, seed)
        ballot = honest.with_others(joined)
        flagged = crowd.detect(ballot)
        out[name] = {"found": Found.of(flagged, crowd.people, len(np.unique(joined.user)))}
        for guard in GUARDS if fitted else (BOTH,):
            before, after = crowd.guarded(honest, alone, guard), crowd.guarded(ballot, flagged, guard)
            if fitted or fits.knows(*after):
                out[name][guard] = moved(fits(*before), fits(*after))
            elif fits.spare.get(name, FITTED) > 0:
                fits.spare[name] = fits.spare.get(name, FITTED) - 1
                out[name][guard] = moved(fits(*before), fits(*after))
    half = np.random.default_rng([seed, 3]).permutation(crowd.people)[: crowd.people // 2]
    some = crowd.detect(honest.take(np.isin(honest.user, half)))
    out["nobody joins"] = {"found": Found.of(alone, crowd.people, 0)}
    out["nobody joins, half of the crowd"] = {"found": Found(0.0, len(some.users) / len(half))}
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="brigades of each kind that the guard faces")
    parser.add_argument(
        "--fitted", type=int, default=FITTED, help="of these, also measured without the guard"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    started, console, crowd = time.monotonic(), Console(), Crowd(crowd_votes())
    fits = Fits(crowd)
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    found = [one_seed(crowd, fits, seed, i < options.fitted) for i, seed in enumerate(seeds)]
    console.print(
        f"seeds {seeds[0]}-{seeds[-1]}; {crowd.people} honest, median {crowd.median} votes; "
        f"without the guard and with the cap alone: the first {options.fitted}"
    )
    worst = _moves(found, console)
    _alarms(found, console)
    console.print(
        f"{HIDDEN} is not promised, as it hides among honest people: it moves somebody by up to "
        f"{worst[HIDDEN][BOTH]:.3f} std with the guard"
    )
    console.print(f"{time.monotonic() - started:.0f} s, {len(fits.known)} fits")
    wrong = max(float(np.mean([each[kind]["found"].wrong for each in found])) for kind in found[0])  # type: ignore[attr-defined]
    checks = [
        Check(
            f"{kind}: most a worker's rewards move, std, with the guard",
            f"<= {PROMISED_STD}", f"{worst[kind][BOTH]:.3f}", worst[kind][BOTH] <= PROMISED_STD,
        )
        for kind in KINDS
        if kind != HIDDEN
    ]  # fmt: skip
    checks += [
        Check(
            f"{kind}: the same without, least over seeds", f"> {PROMISED_STD}",
            f"{worst[kind]['none']:.3f}", worst[kind]["none"] > PROMISED_STD,
        )
        for kind in KINDS
    ]  # fmt: skip
    checks.append(
        Check(
            "honest workers flagged, worst kind",
            f"<= {PROMISED_FLAGGED:.0%}",
            f"{wrong:.2%}",
            wrong <= PROMISED_FLAGGED,
        )
    )
    return finish(checks, options.json, {"per_seed": found, "worst": worst})


def _moves(found: list[dict[str, dict[str, object]]], console: Console) -> dict[str, dict[str, float]]:
    """Prints the moves; for each kind and guard the worst over seeds, which without a guard is the least."""
    table = Table(
        "brigade", "guard", "seeds", "RMS move, mean [95 %]", "max", "mean abs. move, max",
        title="how far the worker is moved whom it moves most, in std of their rewards",
    )  # fmt: skip
    worst: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        for guard in GUARDS:
            values = np.array([each[kind][guard] for each in found if guard in each[kind]])
            mean, low, high = t_interval(values[:, 0]) if len(values) > 1 else (values[0, 0], np.nan, np.nan)
            table.add_row(
                kind, guard, str(len(values)), f"{mean:.3f} [{low:.3f}, {high:.3f}]",
                f"{values[:, 0].max():.3f}", f"{values[:, 1].max():.3f}",
            )  # fmt: skip
            least = guard == "none"
            worst.setdefault(kind, {})[guard] = float(values[:, 0].min() if least else values[:, 0].max())
    console.print(table)
    return worst


def _alarms(found: list[dict[str, dict[str, object]]], console: Console) -> None:
    """Prints who was flagged."""
    table = Table(
        "brigade", "of it flagged, mean", "least", "of the honest flagged, mean", "most", title="detection"
    )
    for kind in found[0]:
        each: list[Found] = [seed[kind]["found"] for seed in found]  # type: ignore[misc]
        caught, wrong = np.array([f.caught for f in each]), np.array([f.wrong for f in each])
        shown = (f"{caught.mean():.1%}", f"{caught.min():.0%}") if kind in KINDS else ("", "")
        table.add_row(kind, *shown, f"{wrong.mean():.2%}", f"{wrong.max():.1%}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
