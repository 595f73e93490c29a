"""The temperature of a reward model from votes that it has not seen, with nobody held out for good.

People and prompts of one split are divided into K folds. For each fold the model is fitted without the people and
without the prompts of that fold, and predicts the votes of those people on those prompts: strangers who ask something
new, as those are whom it will judge for. One temperature is fitted on all these predictions together and is that of a
fit on everything, which has learned from at least as much as each of them. So Platt, "Probabilistic Outputs for Support
Vector Machines", 1999, fits his sigmoid on the scores of three folds.

A prompt is in the fold of most of the votes on it. Where every prompt is one person's own, each vote is so predicted
once; where everybody votes on the same prompts, about one vote in K is. Where the prompts that it will judge are those
that it learns from, only people are kept apart, and each vote is predicted once. Rows of nobody known are their
prompt's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from reward_models import temperature
from reward_models.heldout import predict
from reward_models.scorer import NotEnoughVotes, Scorer
from reward_models.temperature import Config, Temperature

if TYPE_CHECKING:
    import pyarrow as pa

_EVERY_ROW = 1e-3  # of a vote: prompts without a vote that is predicted go where most of their rows are


def fit(
    make: Callable[[pa.Table], Scorer],
    rows: pa.Table,
    config: Config | None = None,
    *,
    told: np.ndarray | None = None,
    prompts_apart: bool = True,
    seed: int,
    once: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Temperature:
    """Fit models on parts of the rows, and one temperature on what they predict of the rest.

    The temperature stays 1, with the reason, where votes are few, or rows without a fold too few for a fit.

    Args:
        make: fits a reward model on PREFERENCES rows.
        rows: all that the model to be scaled learns from, N of one split.
        config: defaults if None.
        told: (N,) bool, which rows' votes may tell the temperature; all if None. Unpaired rows never do.
        prompts_apart: whether votes are predicted by models that have not seen their prompt either.
        seed: of the folds.
        once: predict only the fold with most votes, at the price of one fit instead of K.
        progress: told how many of the fits are done.

    Raises:
        RewardModelError: a prediction is NaN.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    config = config or Config()
    may = np.ones(rows.num_rows, dtype=bool) if told is None else np.asarray(told, dtype=bool)
    may = may & np.asarray(pc.and_(pc.is_valid(rows["rejected"]), pc.greater(rows["weight"], 0)), dtype=bool)
    people = pc.if_else(pc.equal(pc.fill_null(rows["user_id"], ""), ""), rows["prompt_key"], rows["user_id"])
    person, prompt = folds_of(_codes(people), _codes(rows["prompt_key"]), may, config.folds, seed)
    prompt = prompt if prompts_apart else person
    asked = np.where(may & (person == prompt), person, -1)
    sizes = np.bincount(asked[asked >= 0], minlength=config.folds)
    rounds = [int(sizes.argmax())] if once else np.flatnonzero(sizes).tolist()
    users = len(pc.unique(people.filter(pa.array(np.isin(asked, rounds)))))
    n = int(sizes[rounds].sum())
    few = temperature.too_few(n, users, config)
    if few:
        return _one(few, n, users)
    parts = (
        (rows.filter(pa.array((person != k) & (prompt != k))), rows.filter(pa.array(asked == k)))
        for k in rounds
    )
    try:
        p, outcome, clusters, weight = _predicted(make, parts, len(rounds), progress)
    except NotEnoughVotes as error:
        why = f"Without the people and prompts of one fold of {config.folds} too few rows are left to fit"
        return _one(f"{why}: {error.got}, {error.allowed}.", n, users)
    return temperature.fit(p, outcome, clusters, config, seed=seed, weight=weight).temperature


def folds_of(
    people: np.ndarray, prompts: np.ndarray, may: np.ndarray, folds: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(N,) fold of each row's person, and of its prompt.

    Folds have equally many people, as nearly as can be. A prompt goes where most of its votes are, by lot among equals.

    Args:
        people: (N,) codes, 0 and up.
        prompts: (N,) codes, 0 and up.
        may: (N,) bool, rows whose votes are to be predicted.
        folds: K.
        seed: of the division.
    """
    if not len(people):
        return np.zeros(0, dtype=int), np.zeros(0, dtype=int)
    rng = np.random.default_rng(seed)
    person = (rng.permutation(int(people.max()) + 1) % folds)[people]
    n_prompts = int(prompts.max()) + 1
    votes = np.bincount(prompts * folds + person, weights=may + _EVERY_ROW, minlength=n_prompts * folds)
    lot = rng.random((n_prompts, folds)) * _EVERY_ROW / 2
    prompt = (votes.reshape(n_prompts, folds) + lot).argmax(axis=1)[prompts]
    return person, prompt


def _predicted(
    make: Callable[[pa.Table], Scorer],
    parts: Iterable[tuple[pa.Table, pa.Table]],
    count: int,
    progress: Callable[[int, int], None] | None,
) -> list[np.ndarray]:
    """Probabilities (N, 3), outcomes (N,), people (N,) and weights (N,) of the second table of each part.

    They are predicted by a model of the first table.
    """
    found = []
    for done, (learned, held) in enumerate(parts, 1):
        held = held.sort_by("preference_id")  # the order that `predict` keeps
        said = predict(make(learned), held)
        found.append((said.probabilities, said.outcome, said.clusters, held["weight"].to_numpy()))
        if progress is not None:
            progress(done, count)
    return [np.concatenate(column) for column in zip(*found, strict=True)]


def _codes(names: pa.ChunkedArray) -> np.ndarray:
    """(N,) which of the sorted names each is, so that the order of rows does not matter."""
    return np.unique(np.array(names.to_pylist(), dtype=str), return_inverse=True)[1].astype(int)


def _one(reason: str, votes: int, users: int) -> Temperature:
    return Temperature(1.0, 0.0, np.nan, np.nan, np.nan, np.nan, votes, users, reason)
