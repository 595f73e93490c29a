"""The real votes that the reward benchmarks read, as arrays; nothing of them is kept in the project."""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from reward_models.features import NAMES, text_features  # noqa: E402
from reward_models.ties import LOSS, TIE, WIN  # noqa: E402

OUTCOMES = {"left": WIN, "tie": TIE, "right": LOSS}
_FURTHEST = 4.0  # standard deviations


def shared(name: str) -> Path:
    """The folder of a data set.

    Raises:
        SystemExit: it is not there.
    """
    folder = Path(os.environ.get("PALATE_SHARED_DATA", ROOT.parent / "shared" / "data")) / name
    if not folder.is_dir():
        raise SystemExit(f"no data at {folder}; set PALATE_SHARED_DATA to the folder that holds {name}")
    return folder


@dataclass(frozen=True)
class CrowdVotes:
    """N votes of the llmfao crowd between replies of two models to one of its prompts.

    Attributes:
        style: (replies, F) standardised named features.
        first, second: (N,) codes of the replies, as shown.
        model: (replies,) code of the model that wrote each.
        prompt: (N,) code of the prompt.
        pair: (N,) code of the pair.
        user: (N,) code of the worker.
        outcome: (N,) ties.WIN, TIE or LOSS of the first.
        log_words: (replies,) log of 1 + words.
    """

    style: np.ndarray
    first: np.ndarray
    second: np.ndarray
    model: np.ndarray
    prompt: np.ndarray
    pair: np.ndarray
    user: np.ndarray
    outcome: np.ndarray
    log_words: np.ndarray

    @property
    def difference(self) -> np.ndarray:
        """(N, F) style of the first less the second's."""
        return self.style[self.first] - self.style[self.second]

    @property
    def longer(self) -> np.ndarray:
        """(N,) log of the ratio of lengths."""
        return self.log_words[self.first] - self.log_words[self.second]

    @property
    def strength(self) -> np.ndarray:
        """(N, models) one where the first reply's model stands, minus one at the second's."""
        design = np.zeros((len(self.user), self.model.max() + 1))
        rows = np.arange(len(self.user))
        design[rows, self.model[self.first]] += 1
        design[rows, self.model[self.second]] -= 1
        return design


def crowd_votes() -> CrowdVotes:
    """All votes of people in llmfao."""
    folder = shared("llmfao")
    pairs = {}
    for line in (folder / "pairs-crowd.jsonl").read_text().splitlines():
        pair = json.loads(line)
        pairs[pair["id"]] = pair
    with (folder / "crowd-comparisons.csv").open(newline="") as file:
        votes = list(csv.DictReader(file))
    replies: dict[tuple[str, str], tuple[str, str, str]] = {}
    for vote in votes:
        pair = pairs[int(vote["id"])]
        for side, result in (("left", "result_x"), ("right", "result_y")):
            replies.setdefault((vote["prompt"], vote[side]), (pair["text"], pair[result] or "", vote[side]))
    codes = {key: code for code, key in enumerate(replies)}
    raw = text_features(
        [text for text, _, _ in replies.values()], [reply for _, reply, _ in replies.values()]
    )
    spread = raw.std(axis=0)
    style = np.clip((raw - raw.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf), -_FURTHEST, _FURTHEST)
    return CrowdVotes(
        style,
        np.array([codes[v["prompt"], v["left"]] for v in votes]),
        np.array([codes[v["prompt"], v["right"]] for v in votes]),
        _coded([model for _, _, model in replies.values()]),
        _coded([v["prompt"] for v in votes]),
        _coded([v["id"] for v in votes]),
        _coded([v["worker"] for v in votes]),
        np.array([OUTCOMES[v["winner"]] for v in votes]),
        raw[:, NAMES.index("log_words")],
    )


def _coded(names: list[str]) -> np.ndarray:
    return np.unique(names, return_inverse=True)[1]


def halves(user: np.ndarray) -> np.ndarray:
    """(N,) in which half of the people each row's person is, 0 or 1: what is chosen on one predicts the other."""
    return np.asarray((np.random.default_rng(2026).permutation(user.max() + 1) % 2)[user])


def t_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % t interval over repetitions."""
    from scipy.special import stdtrit

    mean = float(np.mean(values))
    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / len(values) ** 0.5)
    return mean, mean - half, mean + half
