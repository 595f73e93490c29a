"""Does every method move what users truly feel? Over several seeds, simulated users, candidate less champion.

    python benchmarks/updates_learn.py

Each seed draws other people, tastes and prompts; the champion answers once, and every method learns from the same
reactions to the same replies. The figure is the mean over seeds of the difference
in true satisfaction, with a Student t interval; the hidden tastes that measure it are never seen by training. Length
drift is the mean ratio of the candidate's reply length to the champion's. Settings are to be
chosen on other seeds than those scored.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promises import Check, finish
from rewards_data import ROOT
from rich.console import Console
from rich.table import Table
from scipy import stats

MAX_DRIFT = 0.15
_ROWS = (
    "batch_rows=4",
    "micro_batch_rows=4",
    "max_rows=64",
    "min_rows=8",
    "max_tokens=192",
    "warmup_share=0.0",
)
METHODS: dict[str, Sequence[str]] = {
    "dpo": (),
    "kto": (*_ROWS, "learning_rate=1.5e-3", "schedule='linear'"),
    "online": (*_ROWS, "learning_rate=1.5e-3", "schedule='linear'"),
    "words": (*_ROWS, "learning_rate=1.5e-3", "schedule='linear'"),
}
"""Method to its settings in `[train.<method>]`, beside those of the demo."""


def run(method: str, seed: int, folder: Path) -> dict[str, Any]:
    """One update on the reactions of a seed's users; what they truly felt, and what it took."""
    options = [f"train.method={method}", f"workspace.dir={folder}/seed-{seed}"]
    options += [f"train.{method}.{setting}" for setting in METHODS[method]]
    command = [str(Path(sys.executable).with_name("palate")), "demo", "--keep", "--json", "--seed", str(seed)]
    command += [part for option in options for part in ("--set", option)]
    started = time.monotonic()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, cwd=ROOT
    )
    if done.returncode not in (0, 3, 4):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**document, "wall_s": time.monotonic() - started}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % Student t interval."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
    return mean, mean - half, mean + half


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--method", action="append", choices=list(METHODS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    console, checks, figures = Console(), [], {}
    table = Table(
        "method", "satisfaction, candidate less champion", "by seed", "length ratio", "s", title="updates"
    )
    with tempfile.TemporaryDirectory() as name:
        found: dict[str, list[dict[str, Any]]] = {method: [] for method in options.method or METHODS}
        for seed in range(options.first, options.first + options.seeds):
            for method, runs in found.items():
                runs.append(run(method, seed, Path(name)))
                console.print(f"seed {seed} {method}: {felt(runs[-1]):+.3f}, {runs[-1]['wall_s']:.0f} s")
    for method, runs in found.items():
        values, lengths = [felt(one) for one in runs], [length(one) for one in runs]
        mean, low, high = interval(values)
        drift = sum(lengths) / len(lengths)
        table.add_row(
            method, f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]", " ".join(f"{v:+.2f}" for v in values), f"{drift:.2f}",
            f"{sum(one['wall_s'] for one in runs) / len(runs):.0f}",
        )  # fmt: skip
        checks += [
            Check(f"{method}: true satisfaction, lower end", "> 0", f"{low:+.3f}", low > 0),
            Check(
                f"{method}: length drift",
                f"<= {MAX_DRIFT:.0%}",
                f"{drift - 1:+.0%}",
                abs(drift - 1) <= MAX_DRIFT,
            ),
        ]
        figures[method] = {"satisfaction": values, "length_ratio": lengths}
    console.print(table)
    return finish(checks, options.json, figures)


def felt(document: dict[str, Any]) -> float:
    """True satisfaction with the candidate less that with the champion."""
    return float(document["satisfaction"]["difference"]["value"])


def length(document: dict[str, Any]) -> float:
    """The candidate's mean reply length over the champion's."""
    return float(document["comparison"]["metrics"]["length_ratio"]["value"])


if __name__ == "__main__":
    sys.exit(main())
