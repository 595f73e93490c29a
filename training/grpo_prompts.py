"""Which prompts GRPO answers, and in which order: a function of the rows, the seed and the step, with no state.

What was resumed therefore continues with the prompts that an undisturbed run has.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from training.rendered import TOO_LONG, NotRendered, Rendered, counted

if TYPE_CHECKING:
    import pyarrow as pa

Chat = list[dict[str, Any]]
Row = dict[str, Any]
"""`messages`, `tools` and `prompt_ids` as logged, beside whom the prompt is from."""
Render = Callable[[Row], "tuple[Rendered, Chat] | NotRendered"]
"""A row's prompt as tokens, with the messages that are left of it."""


@dataclass(frozen=True)
class Prompt:
    """One prompt to answer."""

    key: str
    messages: Chat
    """Those that `ids` show: without the turns that were cut."""
    ids: tuple[int, ...]
    """(T,) token ids, as they were served where that was logged."""
    user_id: str | None
    agent: str | None


@dataclass(frozen=True)
class Chosen:
    """The prompts of a run."""

    prompts: list[Prompt]
    left_out: dict[str, int]
    """Distinct prompts not used, by reason."""
    mismatched: int
    """Prompts that are known to differ from what was served, or whose logged token ids are not what their messages
    render to; the logged ids are used."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What became of the prompts that were rendered: see `training.rendered.RenderCounts`."""


def choose(served: pa.Table, preferences: pa.Table, render: Render, *, max_prompts: int, seed: int) -> Chosen:
    """Distinct prompts of real logs: those served, or, when none is known, those of the train split's preferences.

    Of several rows of one prompt one is taken, by a hash with the seed: that one's user is whom it is answered for.

    Args:
        served: SERVED rows of the split `train`.
        preferences: PREFERENCES rows; other splits are not read.
        render: tokens of a chat, ready to be answered; what it refuses is left out and counted.
        max_prompts: at most so many, by a hash with the seed.
        seed: of the choice.
    """
    rows = list(_served(served)) if served.num_rows else list(_preferred(preferences))
    first: dict[str, Row] = {}
    ranked = sorted(
        rows, key=lambda r: (_rank(seed, r["prompt_key"]), _rank(seed, str(r["user_id"])), r["id"])
    )
    for row in ranked:
        first.setdefault(row["prompt_key"], row)
    left_out: Counter[str] = Counter()
    outcomes: list[Rendered | NotRendered] = []
    prompts: list[Prompt] = []
    for row in first.values():
        if len(prompts) == max_prompts:
            left_out["over_max_prompts"] += 1
        elif not row["messages"]:
            left_out["not_readable"] += 1
        elif isinstance(outcome := render(row), NotRendered):
            outcomes.append(outcome)
            left_out[_LEFT_OUT.get(outcome.reason, "not_rendered")] += 1
        else:
            tokens, messages = outcome
            outcomes.append(tokens)
            prompts.append(
                Prompt(row["prompt_key"], messages, tuple(tokens.prompt_ids), row["user_id"], row["agent"])
            )
    counts = counted(outcomes)
    return Chosen(prompts, dict(left_out), counts.mismatch, counts.metrics())


_LEFT_OUT = {TOO_LONG: "longer_than_max_prompt_tokens"}
"""Reasons of `training.rendered` by the name that the settings have for them."""


def _served(table: pa.Table) -> Iterator[dict[str, Any]]:
    columns = ["interaction_id", "prompt", "prompt_key", "prompt_ids", "tools", "user_id", "agent"]
    for row in table.select(columns).to_pylist():
        messages, tools = _objects(row.pop("prompt")), _objects(row.pop("tools"))
        yield {**row, "messages": messages, "tools": tools or None, "id": row["interaction_id"]}


def _objects(text: str | None) -> Chat:
    """A JSON list of objects; empty where it is something else."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return []
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else []


def _preferred(table: pa.Table) -> Iterator[dict[str, Any]]:
    import pyarrow.compute as pc

    columns = ["preference_id", "prompt", "prompt_key", "user_id", "agent"]
    for row in table.filter(pc.field("split") == "train").select(columns).to_pylist():
        yield {
            **row,
            "messages": row["prompt"],
            "id": row["preference_id"],
            "prompt_ids": None,
            "tools": None,
        }


def _rank(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}:{text}".encode()).digest()


def scheduled(prompts: int, generation: int, count: int, seed: int) -> list[int]:
    """Places of the prompts of one generation: every prompt once in each pass, each pass in an order of its own.

    Args:
        prompts: how many there are, at least one.
        generation: number of the generation, from 0.
        count: prompts of a generation.
        seed: of the orders.
    """
    places = range(generation * count, (generation + 1) * count)
    orders = {
        p: np.random.default_rng([seed, 1, p]).permutation(prompts) for p in {i // prompts for i in places}
    }
    return [int(orders[i // prompts][i % prompts]) for i in places]


def refills(
    prompts: int, generation: int, turn: int, count: int, taken: Sequence[int], seed: int
) -> list[int]:
    """Places of up to `count` further prompts of a generation, none of them taken already.

    Args:
        prompts: how many there are.
        generation: number of the generation.
        turn: number of the refill within it.
        count: prompts wanted; fewer are given where too few are left.
        taken: places that are not to be given again.
        seed: of the orders.
    """
    order = np.random.default_rng([seed, 2, generation, turn]).permutation(prompts)
    free = order[~np.isin(order, list(taken))]
    return [int(i) for i in free[:count]]


def draw_seed(seed: int, generation: int, turn: int) -> int:
    """Seed of the tokens drawn in one turn of a generation."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{generation}:{turn}".encode()).digest()[:7], "big")
