"""Candidate against champion, reply by reply, on prompts that neither was trained on.

Formulas (a cluster is a prompt; every figure has the interval of `evaluation.estimates`):

    win_rate              mean of 1 (candidate's reward is higher by more than `tie_margin`), 0.5 (tie), 0
    reward_difference     mean of candidate_reward - champion_reward
    length_ratio          sum of candidate_tokens / sum of champion_tokens
    *_repetition          mean share of a reply's word 4-grams that repeat an earlier one of that reply
    repetition_difference mean of the candidate's share minus the champion's
    kl_per_token          sum of kl * candidate_tokens / sum of candidate_tokens, over rows that have `kl`
    *_unfinished          share of replies cut off at the length limit (if a `*_finished` column is there)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evaluation.errors import EvaluationError
from evaluation.estimates import Estimate, bootstrap_mean, bootstrap_ratio

Array = npt.NDArray[Any]

ROWS = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("user_id", pa.string()),
        pa.field("agent", pa.string()),
        pa.field("champion", pa.string(), nullable=False),
        pa.field("candidate", pa.string(), nullable=False),
        pa.field("champion_reward", pa.float64(), nullable=False),
        pa.field("candidate_reward", pa.float64(), nullable=False),
        pa.field("champion_tokens", pa.int64(), nullable=False),
        pa.field("candidate_tokens", pa.int64(), nullable=False),
        # KL(candidate || champion), estimated on the candidate's reply: nats per token of it.
        pa.field("kl", pa.float64()),
    ]
)
"""A row is a prompt answered by both models; bool `champion_finished`, `candidate_finished` may be added."""

FINISHED = ("champion_finished", "candidate_finished")
GRAM = 4


@dataclass(frozen=True)
class Comparison:
    """What the rows say. `metrics` by name as in the module's text; the counts are of rows."""

    metrics: dict[str, Estimate]
    wins: int
    ties: int
    losses: int
    prompts: int
    seed: int
    tie_margin: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> int:
        """How many pairs of replies were compared."""
        return self.wins + self.ties + self.losses

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        counts = {key: getattr(self, key) for key in ("wins", "ties", "losses", "rows", "prompts")}
        settings = {"seed": self.seed, "tie_margin": self.tie_margin, "notes": list(self.notes)}
        return {"metrics": {k: v.to_dict() for k, v in self.metrics.items()}, **counts, **settings}


def check_rows(rows: pa.Table) -> pa.Table:
    """The rows with exactly the columns of `ROWS` (and `*_finished`, if there), in their types.

    Raises:
        EvaluationError: a column is missing, has the wrong type or nulls, or a reward is not finite.
    """
    missing = [name for name in ROWS.names if name not in rows.column_names]
    if missing:
        raise EvaluationError("The comparison lacks columns.", got=missing, allowed=ROWS.names)
    optional = [pa.field(name, pa.bool_()) for name in FINISHED if name in rows.column_names]
    schema = pa.schema([*ROWS, *optional])
    try:
        checked = rows.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise EvaluationError("A column of the comparison has the wrong type.", got=error) from error
    for column in ROWS:
        if not column.nullable and checked[column.name].null_count:
            raise EvaluationError(
                f"Every row needs a {column.name}.", got=f"{checked[column.name].null_count} rows without"
            )
    if checked.num_rows and min(_min(checked, "champion_tokens"), _min(checked, "candidate_tokens")) < 0:
        raise EvaluationError("A reply cannot have fewer than 0 tokens.")
    return checked


def outcomes(rows: pa.Table, tie_margin: float = 0.0) -> Array:
    """1.0 where the candidate's reply won, 0.5 for a tie, 0.0 where it lost: shape (N,)."""
    difference = _numbers(rows, "candidate_reward") - _numbers(rows, "champion_reward")
    return np.where(np.abs(difference) <= tie_margin, 0.5, (difference > 0).astype(np.float64))


def repetition(text: str) -> float:
    """Share of the text's word 4-grams that occurred before in it; 0 for texts under five words."""
    words = text.casefold().split()
    grams = [tuple(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def compare(rows: pa.Table, *, seed: int, tie_margin: float = 0.0) -> Comparison:
    """All metrics of the module's text. No rows give metrics of n = 0, which every gate calls insufficient.

    Args:
        rows: as `ROWS`.
        seed: of the bootstrap.
        tie_margin: two rewards at most this far apart are a tie (>= 0).

    Raises:
        EvaluationError: the rows are not as `ROWS`, a number is not finite, or the margin is negative.
    """
    if not 0 <= tie_margin < float("inf"):
        raise EvaluationError("tie_margin must be a finite number >= 0.", got=tie_margin)
    rows = check_rows(rows)
    clusters = np.asarray(rows["prompt_id"].to_pylist(), dtype=object)
    outcome = outcomes(rows, tie_margin)
    metrics = _metrics(rows, clusters, outcome, seed)
    notes = []
    lacking = rows["kl"].null_count
    if lacking and rows.num_rows:
        notes.append(
            f"{lacking} of {rows.num_rows} rows have no KL estimate and are left out of kl_per_token."
        )
    return Comparison(
        metrics=metrics,
        wins=int((outcome == 1).sum()),
        ties=int((outcome == 0.5).sum()),
        losses=int((outcome == 0).sum()),
        prompts=len(set(clusters.tolist())),
        seed=seed,
        tie_margin=tie_margin,
        notes=tuple(notes),
    )


def _metrics(rows: pa.Table, clusters: Array, outcome: Array, seed: int) -> dict[str, Estimate]:
    def mean(values: Array, bounds: tuple[float, float] | None = None) -> Estimate:
        return bootstrap_mean(values, clusters, seed=seed, bounds=bounds)

    champion_tokens, candidate_tokens = _numbers(rows, "champion_tokens"), _numbers(rows, "candidate_tokens")
    repeated = {side: _texts(rows, side, repetition) for side in ("champion", "candidate")}
    metrics = {
        "win_rate": mean(outcome, (0, 1)),
        "reward_difference": mean(_numbers(rows, "candidate_reward") - _numbers(rows, "champion_reward")),
        "length_ratio": bootstrap_ratio(candidate_tokens, champion_tokens, clusters, seed=seed),
        "champion_repetition": mean(repeated["champion"]),
        "candidate_repetition": mean(repeated["candidate"]),
        "repetition_difference": mean(repeated["candidate"] - repeated["champion"]),
    }
    known = np.asarray(rows["kl"].is_valid().to_pylist(), dtype=bool)
    if known.any():
        kl, tokens = _numbers(rows, "kl")[known], candidate_tokens[known]
        metrics["kl_per_token"] = bootstrap_ratio(kl * tokens, tokens, clusters[known], seed=seed)
    for column in FINISHED:
        if column in rows.column_names:
            known = np.asarray(rows[column].is_valid().to_pylist(), dtype=bool)
            cut = ~np.asarray(rows[column].fill_null(True).to_pylist(), dtype=bool)
            name = column.replace("_finished", "_unfinished")
            metrics[name] = bootstrap_mean(cut[known], clusters[known], seed=seed, bounds=(0, 1))
    return metrics


def _numbers(rows: pa.Table, name: str) -> Array:
    """A column as float64, nulls as NaN."""
    return np.asarray(rows[name].cast(pa.float64()).to_numpy(), dtype=np.float64)


def _texts(rows: pa.Table, name: str, measure: Callable[[str], float]) -> Array:
    return np.asarray([measure(text) for text in rows[name].to_pylist()], dtype=np.float64)


def _min(rows: pa.Table, name: str) -> float:
    return float(_numbers(rows, name).min())
