"""The texts that `rewards_speed.py` scores and learns from: logged chats, and many models' replies to one prompt."""

from __future__ import annotations

import ast
import csv
import json
import sys
from collections import defaultdict
from typing import Any

import numpy as np
from rewards_data import shared

GROUP = 8
Texts = list[tuple[str, str]]


def pairs() -> list[dict[str, Any]]:
    """Two models' replies to one prompt of llmfao, each."""
    lines = (shared("llmfao") / "pairs-crowd.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def groups(seed: int) -> Texts:
    """Prompts and replies: `GROUP` models, drawn from a seed, for each prompt."""
    replies: dict[str, dict[int, str]] = defaultdict(dict)
    for pair in pairs():
        for side in "xy":
            if pair[f"result_{side}"]:
                replies[pair["text"]][pair[f"model_{side}"]] = pair[f"result_{side}"]
    dice = np.random.default_rng(seed)
    return [
        (prompt, replies[prompt][model])
        for prompt in sorted(replies)
        for model in dice.choice(sorted(replies[prompt]), GROUP, replace=False)
    ]


def logged(count: int, seed: int) -> list[tuple[list[dict[str, str]], str]]:
    """Requests of programmers with all that was said before, and the replies they were given: drawn from a seed."""
    csv.field_size_limit(sys.maxsize)
    with (shared("realhumaneval_chat") / "chat_data.csv").open(newline="") as file:
        rows = [(ast.literal_eval(row["request"]), row["response"]) for row in csv.DictReader(file)]
    picked = np.random.default_rng(seed).permutation(len(rows))[:count]
    return [
        ([{"role": m["role"], "content": m["content"]} for m in rows[i][0]], rows[i][1])
        for i in sorted(picked)
    ]


def asked(texts: Texts) -> tuple[list[Any], list[str]]:
    """Prompts as chats, and replies."""
    return [[{"role": "user", "content": prompt}] for prompt, _ in texts], [reply for _, reply in texts]


def rows(count: int, seed: int) -> Any:
    """PREFERENCES rows of pairs of llmfao, drawn from a seed; which one won is invented."""
    from tests.unit.reward_models.made import row, table

    some = [pair for pair in pairs() if pair["result_x"] and pair["result_y"]]
    dice = np.random.default_rng(seed)
    return table(
        [
            row(
                number,
                prompt=[{"role": "user", "content": pair["text"]}],
                prompt_key=str(pair["prompt"]),
                chosen=pair["result_x"],
                rejected=pair["result_y"],
                margin=float(number % 3 > 0),
            )
            for number, pair in enumerate(some[i] for i in dice.permutation(len(some))[:count])
        ]
    )
