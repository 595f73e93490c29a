"""How much better an update may make the policy, as far as that can be told before training. Nothing is invented.

Three things can be known, each with its interval or the reason why it is not:

- **What earlier updates brought**: the win rates of candidates that were measured, of the same method on the same base
  model. From n >= 3 of them with mean m and standard deviation s, the win rate of one more lies, with the given
  confidence, in m +- t(n - 1) s sqrt(1 + 1/n) (Student's prediction interval; Hahn and Meeker 1991, "Statistical
  Intervals", chapter 4), and no nearer to m than such a win rate can be measured.
- **A ceiling**: how often the reward model that judges agrees with people on pairs it has not seen. An update that
  learned to answer like the chosen replies, from a champion that answers like the rejected ones, would be seen to win
  so often.
- **What the champion knows already**: the share of held-out pairs whose chosen reply it finds likelier, per token. What
  is left is what pairs can still teach; how much of it an update takes up is not known before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palate.context import Context
from palate.plan_champion import Start

if TYPE_CHECKING:
    from evaluation.estimates import Estimate
    from pipelines.dataset import Dataset
    from rollout.connection import Registry

LEAST = 3
"""With fewer measured updates no interval is given."""
UNKNOWN = "not known before training"


@dataclass(frozen=True)
class Said:
    """A figure, or why there is none."""

    estimate: Estimate | None
    why: str
    """What it rests on, or why it is not known."""


@dataclass(frozen=True)
class Lift:
    """What is known of an update's worth before it is trained."""

    win_rate: Said
    """Of the candidate over the champion, as the gate `win_rate` will measure it; 0.5 is no lift."""
    ceiling: Said
    champion: Said


def earlier(registry: Registry | None, method: str, base_id: str) -> Said:
    """What the measured updates of this method let expect of one more."""
    from evaluation.estimates import Estimate

    measured = [] if registry is None else _measured(registry, method, base_id)
    if len(measured) < LEAST:
        so_many = "no earlier update" if not measured else f"{len(measured)} of at least {LEAST} updates"
        return Said(None, f"{UNKNOWN}: {so_many} by {method} on this base model has a measured win rate.")
    value, low, high = predicted(measured)
    why = f"the win rates of {len(measured)} earlier updates by {method} on this base model"
    return Said(Estimate(value, low, high, len(measured)), why)


def predicted(measured: Sequence[Estimate]) -> tuple[float, float, float]:
    """Mean of n >= 2 win rates, and the interval of one more; see the module's text."""
    from scipy.stats import t

    values = [each.value for each in measured]
    n, mean = len(values), sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    error = sum((each.high - each.low) / 2 for each in measured) / n
    half = max(float(t.ppf(0.975, n - 1)) * spread * math.sqrt(1 + 1 / n), error)
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def _measured(registry: Registry, method: str, base_id: str) -> list[Estimate]:
    """Win rates of candidates that learned by a method."""
    from rollout.models import versions

    found = []
    for version in versions(registry):
        if version.role != "candidate" or version.base_id != base_id:
            continue
        estimate = _gate(version.gates, "win_rate")
        if estimate is not None and _method(registry, version.run_id) == method:
            found.append(estimate)
    return found


def _gate(gates: Sequence[Any], name: str) -> Estimate | None:
    """The estimate that a gate saw; None where it saw none."""
    from evaluation.estimates import Estimate

    for gate in gates:
        if gate.get("gate") == name and None not in [gate.get(k) for k in ("value", "low", "high")]:
            return Estimate(gate["value"], gate["low"], gate["high"], int(gate.get("n") or 0))
    return None


def _method(registry: Registry, run_id: str) -> str | None:
    """By which method a run trained; None where the run is gone."""
    from mlflow.exceptions import MlflowException

    from rollout.connection import retrying

    try:
        params = retrying(lambda: registry.client.get_run(run_id)).data.params
    except MlflowException:
        return None
    known: str | None = params.get("train.method")
    return known


def ceiling(registry: Registry | None, base_id: str) -> Said:
    """How often the newest reward model that judges agrees with held-out people."""
    from rollout import reward_registry
    from rollout.log import all_versions

    if registry is None or not all_versions(registry, reward_registry.name(registry)):
        return Said(None, f"{UNKNOWN}: no reward model was fitted yet; `palate train` fits them.")
    judges = [
        each
        for each in reward_registry.versions(registry)
        if each.role == "evaluation" and each.base_id == base_id
    ]
    if not judges:
        return Said(None, f"{UNKNOWN}: no reward model of this base model judges yet.")
    estimate = _gate(judges[-1].gates, "heldout_accuracy")
    if estimate is None:
        return Said(
            None, f"{UNKNOWN}: reward model v{judges[-1].version} was not measured on held-out pairs."
        )
    return Said(
        estimate,
        f"how often reward model v{judges[-1].version}, which judges, agrees with people on pairs it has not seen",
    )


def ranks_right(context: Context, dataset: Dataset, start: Start, most: int) -> Said:
    """The share of held-out pairs whose chosen reply the champion finds likelier, per token; a tie counts half."""
    import numpy as np
    import pyarrow.compute as pc

    from evaluation.estimates import bootstrap_mean
    from evaluation.logprobs import reply_logprobs
    from evaluation.replies import load_policy

    test = dataset.rows("test")
    decided = test.filter(pc.and_(pc.is_valid(test["rejected"]), pc.greater(test["margin"], 0)))
    pairs = decided.sort_by("preference_id").slice(0, most)
    if not pairs.num_rows:
        return Said(None, f"{UNKNOWN}: there is no decided pair in the split `test`.")
    policy = load_policy(context.base.path, start.champion.adapter)
    columns = pairs.select(["prompt", "chosen", "rejected", "user_id", "prompt_key"]).to_pydict()
    limit = context.project.evaluation.max_pair_tokens
    chosen, rejected = (
        reply_logprobs(policy, columns["prompt"], columns[side], max_tokens=limit).per_token
        for side in ("chosen", "rejected")
    )
    right = np.where(chosen == rejected, 0.5, chosen > rejected).astype(float)
    people = [u or k for u, k in zip(columns["user_id"], columns["prompt_key"], strict=True)]
    found = bootstrap_mean(right, np.array(people, dtype=object), seed=context.project.seed, bounds=(0, 1))
    return Said(found, f"{pairs.num_rows} held-out pairs read by the champion")
