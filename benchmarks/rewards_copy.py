"""Will this user copy this reply? Predicted forward in time on real programmers.

    python benchmarks/rewards_copy.py

realhumaneval_chat: programmers at tasks who ask a model for help; a reply counts as copied if anything of it was. Every
reply is predicted, then learned (`reward_models.online`), in two orders: by the time in the session, so that all
programmers work side by side, and one programmer after the other in the order of the file. Nothing of a later reply is
known at an earlier one, not even the spread of a feature. The set tells no time of a copy: that a reply was copied
before the next request is assumed. The ladder:

    share           how many were copied so far
    + reply         what the request and the reply look like, and what happened before in the session
    + habits        how readily each programmer copies

Widths of priors are chosen on one half of the programmers and used to predict the other half, both ways.
"""

from __future__ import annotations

import argparse
import ast
import csv
import itertools
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from promises import Check, finish
from rewards_data import halves, shared
from rich.console import Console
from rich.table import Table

from evaluation.estimates import bootstrap_mean
from reward_models.online import OnlineVotes, Term
from reward_models.ties import LOSS, NO_TIES, WIN

PROMISED = 0.575
NO_TIE = np.array([0.0, NO_TIES])
_WORD = re.compile(r"\w{3,}")
_CODE = re.compile(r"```.*?```", re.DOTALL)
_FUNCTION = re.compile(r"def (\w+)")
_ASKS_FOR_CODE = re.compile(r"\b(?:write|implement|create|complete|give|generate|make)\b", re.I)
_ASKS_WHY = re.compile(r"\b(?:how|what|why|explain|does)\b", re.I)
WIDTHS = list(itertools.product((0.1, 0.2, 0.3), (0.4, 0.8)))
"""Of the weights of features, and of habits."""


@dataclass(frozen=True)
class Replies:
    """N replies: (N, F) raw features, programmer, seconds into the session, whether copied."""

    features: np.ndarray
    user: np.ndarray
    time_s: np.ndarray
    copied: np.ndarray


def replies() -> Replies:
    """The data set, with features that use nothing later than the reply."""
    folder = shared("realhumaneval_chat")
    csv.field_size_limit(10**7)
    with (folder / "tasks_data.csv").open(newline="") as file:
        tasks = {row["name"]: row for row in csv.DictReader(file)}
    with (folder / "chat_data.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # A session's replies in the order in which they came, which is not that of the file everywhere.
    rows.sort(key=lambda row: float(row["timestamp"]))
    copied = np.array([bool(ast.literal_eval(row["copy_events"])) for row in rows])
    sessions: dict[str, list[int]] = defaultdict(list)
    features = []
    for i, row in enumerate(rows):
        before = sessions[row["programmer_id"]]
        features.append(_of_texts(row, tasks.get(row["task_name"])) + _of_session(rows, copied, i, before))
        before.append(i)
    user = np.unique([row["programmer_id"] for row in rows], return_inverse=True)[1]
    return Replies(np.array(features), user, np.array([float(row["timestamp"]) for row in rows]), copied)


def _request(row: dict[str, str]) -> str:
    turns = ast.literal_eval(row["request"])
    return str(turns[-1]["content"]) if turns else ""


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _of_texts(row: dict[str, str], task: dict[str, str] | None) -> list[float]:
    asked, reply = _request(row), row["response"]
    blocks = _CODE.findall(reply)
    code = sum(map(len, blocks))
    wanted = _words(task["task_description"] + " " + task["function_signature"]) if task else set()
    name = _FUNCTION.search(task["function_signature"]) if task else None
    said = ast.literal_eval(row["logprobs"]) if row["logprobs"] else {}
    return [
        float(len(blocks) > 0), float(len(blocks) == 1), np.log1p(len(blocks)), np.log1p(code),
        np.log1p(len(reply)), code / max(1, len(reply)), np.log1p(len(reply) - code), np.log1p(len(asked)),
        float("?" in asked), float("def " in asked or "return" in asked or "```" in asked),
        float("rror" in asked), float(bool(_ASKS_FOR_CODE.search(asked))), float(bool(_ASKS_WHY.search(asked))),
        len(_words(asked) & wanted) / max(1, len(wanted)), len(_words(reply) & wanted) / max(1, len(wanted)),
        float("def " in reply), float(bool(name) and name is not None and name[1] in reply),
        np.log1p(len(ast.literal_eval(row["request"]))),
        float(said.get("mean") or 0.0) if isinstance(said, dict) else 0.0,
    ]  # fmt: skip


def _of_session(rows: list[dict[str, str]], copied: np.ndarray, i: int, before: list[int]) -> list[float]:
    """What is known from the programmer's own replies so far."""
    row = rows[i]
    if not before:
        return [1.0, float(row["timestamp"]) / 1000, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    last, asked = before[-1], _words(_request(row))
    same = [j for j in before if rows[j]["task_name"] == row["task_name"]]
    alike = max(len(w & asked) / max(1, len(w | asked)) for w in (_words(_request(rows[j])) for j in before))
    return [
        0.0,
        float(row["timestamp"]) / 1000,
        np.log1p(float(row["timestamp"]) - float(rows[last]["timestamp"])),
        float(copied[last]) - 0.5,
        float(rows[last]["task_name"] == row["task_name"]),
        float(bool(copied[same].any())) if same else 0.0,
        float(len(same)),
        alike,
    ]


class Scale:
    """Standardises by what was seen so far: mean and spread of a column, by Welford's method."""

    def __init__(self, columns: int):
        self.n, self.mean, self.squares = 0, np.zeros(columns), np.zeros(columns)

    def __call__(self, row: np.ndarray) -> np.ndarray:
        """The row, with itself seen: what a reply looks like is known when it is predicted."""
        self.n += 1
        away = row - self.mean
        self.mean = self.mean + away / self.n
        self.squares = self.squares + away * (row - self.mean)
        spread = np.sqrt(self.squares / max(1, self.n - 1))
        return np.clip((row - self.mean) / np.where(spread > 1e-9, spread, np.inf), -4, 4)


def run(data: Replies, order: np.ndarray, width: tuple[float, float] | None, habits: bool) -> np.ndarray:
    """(N,) log-loss of each reply in one pass; nan outside the order. Without a width, the share alone."""
    online, scale = OnlineVotes(), Scale(data.features.shape[1])
    loss = np.full(len(data.user), np.nan)
    for i in order:
        row = np.array([1.0]) if width is None else np.append(1.0, scale(data.features[i]))
        stds = np.array([1.5]) if width is None else np.append(1.5, np.full(len(row) - 1, width[0]))
        terms = [Term("all", stds, np.stack([row, np.zeros(len(row))]))]
        if habits and width is not None:
            terms.append(Term(data.user[i], np.array([width[1]]), np.array([[1.0], [0.0]])))
        outcome = WIN if data.copied[i] else LOSS
        loss[i] = -np.log(online.predict(terms, offset=NO_TIE)[outcome])
        online.learn(terms, outcome, offset=NO_TIE)
    return loss


def ladder(data: Replies, order: np.ndarray) -> tuple[dict[str, np.ndarray], list[tuple[float, float]]]:
    """Loss of every reply on each rung, and the widths chosen on either half of the programmers."""
    half = halves(data.user)
    chosen = []
    for side in (0, 1):
        own = order[half[order] == side]
        losses = [float(np.nanmean(run(data, own, width, True))) for width in WIDTHS]
        chosen.append(WIDTHS[int(np.argmin(losses))])
    rungs = {"share": run(data, order, None, False)}
    for rung, habits in (("+ reply", False), ("+ habits", True)):
        both = [run(data, order, chosen[1 - side], habits) for side in (0, 1)]
        rungs[rung] = np.where(half == 0, both[0], both[1])
    return rungs, chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    started = time.monotonic()
    data, console = replies(), Console()
    orders = {
        "by time in the session": np.argsort(data.time_s, kind="stable"),
        "one programmer after the other": np.lexsort((data.time_s, data.user)),
    }
    checks, figures = [], {}
    for name, order in orders.items():
        rungs, chosen = ladder(data, order)
        table = Table("knows", "log-loss, nats [95 %]", title=f"{len(data.user)} replies, {name}")
        for rung, loss in rungs.items():
            found = bootstrap_mean(loss, data.user, seed=0)
            figures[f"{name}/{rung}"] = found.to_dict()
            table.add_row(rung, f"{found.value:.4f} [{found.low:.4f}, {found.high:.4f}]")
        console.print(table)
        console.print(f"widths chosen on the other half of the programmers (seed 2026): {chosen}")
        best = float(np.mean(rungs["+ habits"]))
        checks.append(Check(f"log-loss, {name}", f"<= {PROMISED}", f"{best:.4f}", best <= PROMISED))
    console.print(f"{time.monotonic() - started:.0f} s")
    return finish(checks, options.json, figures)


if __name__ == "__main__":
    sys.exit(main())
