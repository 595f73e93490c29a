"""Does every method move what users truly feel? Over several seeds, simulated users, candidate less champion.

    python benchmarks/updates_learn.py

Each seed draws other people, tastes and prompts (`updates_simulated`). The champion, the base model with a fresh
adapter, answers once; every method learns from the same reactions to these replies, and then both answer the same
prompts for people who are in nothing that was trained on. The figure is the difference in true satisfaction, a mean
over prompts and people, then over seeds with a Student t interval; the hidden tastes that measure it are never seen by
training. Length drift is the mean ratio of the candidate's tokens to the champion's. What turns round is relearned
(`updates_flip`) from the model that `words` has made. Settings were chosen on other seeds (100 and up) than those
scored. Two seeds run at a time, each a process of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import updates_flip
from promises import Check, finish
from rich.console import Console
from rich.table import Table
from updates_simulated import (
    JUDGED_PROMPTS,
    Watch,
    World,
    answers,
    events,
    feelings,
    interval,
    learnable,
    serve,
    update,
    world,
)

MAX_DRIFT = 0.15
MAX_FORGOTTEN = 0.05
ASKS = 280
_SHARED = {"schedule": "linear", "warmup_share": 0.0, "max_tokens": 192, "learning_rate": 1e-3}
_ROWS = {**_SHARED, "batch_rows": 8, "micro_batch_rows": 8, "max_rows": 128}
METHODS: dict[str, dict[str, Any]] = {
    "words": {**_SHARED, "batch_rows": 4, "micro_batch_rows": 4, "max_rows": 64},
    "dpo": {
        **_SHARED, "batch_pairs": 4, "micro_batch_pairs": 4, "max_pairs": 48, "sft_weight": 1.0, "kl_weight": 0.1,
        "learning_rate": 5e-4,
    },
    "kto": {**_ROWS, "max_rows": 96},
    "online": {
        **_ROWS, "max_rows": 112, "epochs": 2, "learning_rate": 1.5e-3, "clip_low": 0.5, "clip_high": 1.0,
        "kl_weight": 0.02, "silence": None,
    },
    "grpo": {
        "learning_rate": 1e-3, "warmup_share": 0.0, "beta": 0.02, "steps": 10, "prompts_per_step": 4,
        "group_size": 5, "micro_batch": 10, "temperature": 0.7, "max_new_tokens": 24,
    },
}  # fmt: skip
"""Method to its settings in `[train.<method>]`."""


def one_seed(seed: int, methods: Sequence[str], folder: Path) -> dict[str, Any]:
    """Every method's figures of one seed, those of the taste that turns, and seconds by part."""
    watch = Watch()
    here = world(seed, folder / "workspace")
    served = serve(here, here.champion, ASKS, seed, "served")
    watch.lap("champion answers")
    data = learnable(here, events(here, served, here.digest, 0), "served")
    texts = [text for _, text in here.prompts("test")][:JUDGED_PROMPTS]
    champion = answers(here, here.champion, texts, seed + 1)
    felt = feelings(here.people("test"), texts, champion)
    watch.lap("events, held-out answers")
    figures: dict[str, Any] = {"seed": seed, "champion": float(felt.mean()), "methods": {}}
    for method in methods:
        scorer = fitted(here, data) if method == "grpo" else None
        output = folder / method
        try:
            trained = update(here, method, METHODS[method], here.champion, data, output, scorer)
        except (
            RuntimeError,
            ValueError,
        ) as error:  # palate's own errors are one of these: said, and not kept
            figures["methods"][method] = {"failed": f"{type(error).__name__}: {error}"}
            watch.lap(method)
            continue
        candidate = answers(here, trained.adapter, texts, seed + 1)
        figures["methods"][method] = {
            "difference": float((feelings(here.people("test"), texts, candidate) - felt).mean()),
            "length_ratio": sum(t for _, t in candidate) / sum(t for _, t in champion),
            "rows": trained.metrics.get("rows", trained.metrics.get("pairs", trained.metrics.get("prompts"))),
            "seconds": watch.lap(method),
        }
        if method == "words":
            figures["turned"] = updates_flip.relearned(
                here,
                world(seed, folder / "turned"),
                trained.adapter,
                texts,
                candidate,
                folder / "turned-update",
            )
            watch.lap("turned")
        print(method, figures["methods"][method], figures.get("turned"), file=sys.stderr, flush=True)
    return {**figures, "seconds": watch.seconds}


def fitted(here: World, data: Any) -> Any:
    """The reward model of the people's pairs."""
    import pyarrow.compute as pc

    from reward_models import bradley_terry

    project = here.context.project
    return bradley_terry.fit(
        project.reward.bradley_terry,
        data.preferences.filter(pc.is_valid(data.preferences["rejected"])),
        base=here.context.base.path,
        seed=here.seed,
        cache_dir=project.embeddings_dir,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, each one thread")
    parser.add_argument("--method", action="append", choices=list(METHODS))
    parser.add_argument("--one", type=int, help="this seed alone, in this process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    methods = options.method or list(METHODS)
    if options.one is not None:
        with tempfile.TemporaryDirectory() as name:
            options.json.write_text(json.dumps(one_seed(options.one, methods, Path(name))))
        return 0
    console = Console()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        found = list(pool.map(lambda seed: apart(seed, methods, Path(name), console), seeds))
    checks = [check for method in methods for check in told(method, found)]
    console.print(as_table(methods, found))
    if "words" in methods:
        checks += turned(found, console)
    return finish(checks, options.json, found)


def apart(seed: int, methods: Sequence[str], folder: Path, console: Console) -> dict[str, Any]:
    """One seed in a process of its own, of one thread."""
    out, started = folder / f"{seed}.json", time.monotonic()
    command = [sys.executable, __file__, "--one", str(seed), "--json", str(out)]
    command += [part for method in methods for part in ("--method", method)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode or not out.is_file():
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    figures: dict[str, Any] = json.loads(out.read_text())
    said = ", ".join(
        f"{name} {one['difference']:+.3f}" if "difference" in one else f"{name}: {one['failed']}"
        for name, one in figures["methods"].items()
    )
    spent = ", ".join(f"{name} {seconds:.0f}" for name, seconds in figures["seconds"].items())
    console.print(
        f"seed {seed}: champion {figures['champion']:.3f}; {said}; {time.monotonic() - started:.0f} s ({spent})"
    )
    return figures


def told(method: str, found: Sequence[dict[str, Any]]) -> list[Check]:
    """What is promised of a method, beside what was measured."""
    runs = [one["methods"][method] for one in found]
    if failed := [run["failed"] for run in runs if "failed" in run]:
        return [Check(f"{method}: trains on every seed", "yes", failed[0][:200], False)]
    low = interval([run["difference"] for run in runs])[1]
    drift = float(np.mean([run["length_ratio"] for run in runs])) - 1
    return [
        Check(f"{method}: true satisfaction, lower end", "> 0", f"{low:+.3f}", low > 0),
        Check(f"{method}: length drift", f"<= {MAX_DRIFT:.0%}", f"{drift:+.1%}", abs(drift) <= MAX_DRIFT),
    ]


def turned(found: Sequence[dict[str, Any]], console: Console) -> list[Check]:
    """What is promised of a taste that turned round."""
    runs = [one["turned"] for one in found if "turned" in one]
    if not runs:
        return [Check("a taste that turned", "relearned", "nothing to start from", False)]
    count = max(run["interactions"] for run in runs)
    ends = {}
    for name in ("changed", "kept"):
        mean, low, high = ends[name] = interval([run[name] for run in runs])
        by_seed = " ".join(f"{run[name]:+.2f}" for run in runs)
        console.print(
            f"turned {updates_flip.TASTE}, {name}: {mean:+.3f} [{low:+.3f}, {high:+.3f}] by seed {by_seed}"
        )
    before, after = (float(np.mean([run[f"taste_{when}"] for run in runs])) for when in ("before", "after"))
    drift = float(np.mean([run["length_ratio"] for run in runs])) - 1
    console.print(
        f"replies' {updates_flip.TASTE} {before:.2f} before, {after:.2f} after, length {drift:+.1%}; "
        f"{count:.0f} interactions, {np.mean([run['pairs'] for run in runs]):.0f} votes"
    )
    return [
        Check(
            f"{updates_flip.TASTE} turned: relearned within {count:.0f} interactions, lower end",
            "> 0", f"{ends['changed'][1]:+.3f}", ends["changed"][1] > 0,
        ),
        Check(
            f"{updates_flip.TASTE} turned: what did not change is kept, lower end",
            f">= -{MAX_FORGOTTEN}", f"{ends['kept'][1]:+.3f}", ends["kept"][1] >= -MAX_FORGOTTEN,
        ),
    ]  # fmt: skip


def as_table(methods: Sequence[str], found: Sequence[dict[str, Any]]) -> Table:
    """Every method's figures."""
    table = Table(
        "method",
        "satisfaction, candidate less champion",
        "by seed",
        "length ratio",
        "rows",
        "s",
        title="updates",
    )
    for method in methods:
        runs = [one["methods"][method] for one in found if "difference" in one["methods"][method]]
        if not runs:
            table.add_row(method, "failed", "", "", "", "")
            continue
        mean, low, high = interval([run["difference"] for run in runs])
        table.add_row(
            method,
            f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]",
            " ".join(f"{run['difference']:+.2f}" for run in runs),
            f"{np.mean([run['length_ratio'] for run in runs]):.2f}",
            f"{np.mean([run['rows'] for run in runs]):.0f}",
            f"{np.mean([run['seconds'] for run in runs]):.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
