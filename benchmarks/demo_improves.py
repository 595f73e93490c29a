"""Is the demo's improvement real? Over several seeds, true satisfaction of simulated users, candidate less champion.

Every seed draws other people, other tastes, other prompts and trains anew. The figure is the mean difference over
seeds with a Student t interval; the hidden tastes that measure it are never seen by training or by the gates.
Prints promised against measured and exits with 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy import stats

PROMISED_SECONDS = 360.0


def run(seed: int, workspace: Path, shuffled: bool = False) -> dict[str, Any]:
    """One `palate demo` in its own workspace; its JSON document."""
    started = time.monotonic()
    command = [
        str(Path(sys.executable).with_name("palate")),
        "demo",
        "--json",
        "--seed",
        str(seed),
        "--set",
        f"workspace.dir={workspace}/seed-{seed}{'-shuffled' if shuffled else ''}",
        *(["--shuffled-labels"] if shuffled else []),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3, 4):
        raise SystemExit(f"palate demo --seed {seed} ended with {done.returncode}:\n{done.stdout}")
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    document["wall_s"] = time.monotonic() - started
    return document


def t_interval(values: list[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean and Student t interval of independent seeds."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * spread
    return mean, mean - half, mean + half


def main() -> int:
    """Run the seeds, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workspace", type=Path, default=Path(".palate/bench-demo"))
    arguments = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=140)
    table = Table("seed", "champion", "candidate", "difference", "win rate", "length", "gates", "seconds")
    differences, seconds, passed = [], [], 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        found = run(seed, arguments.workspace)
        if found.get("candidate") is None or not found.get("satisfaction"):
            # Too little feedback for a candidate: the champion stays, so nobody is better or worse off.
            differences.append(0.0)
            seconds.append(found["wall_s"])
            table.add_row(str(seed), "–", "–", "0", "–", "–", "no candidate", f"{found['wall_s']:.0f}")
            continue
        felt, metrics = found["satisfaction"], found["comparison"]["metrics"]
        differences.append(felt["difference"]["value"])
        seconds.append(found["wall_s"])
        passed += found["exit_code"] == 0
        gates = " ".join(f"{v['gate']}:{v['verdict']}" for v in found["verdicts"])
        table.add_row(
            str(seed),
            *(f"{felt[w]['value']:.3f}" for w in ("champion", "candidate", "difference")),
            f"{metrics['win_rate']['value']:.2f}",
            f"{metrics['length_ratio']['value']:.2f}",
            gates,
            f"{found['wall_s']:.0f}",
        )
        console.print(f"seed {seed}: {differences[-1]:+.3f} in {seconds[-1]:.0f} s")
    console.print(table)
    mean, low, high = t_interval(differences)
    promises = Table("promise", "promised", "measured", "kept")
    kept = [
        (
            "true satisfaction, candidate − champion, mean over seeds",
            "interval above 0",
            f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]",
            low > 0,
        ),
        (
            "seconds of one demo, slowest",
            f"≤ {PROMISED_SECONDS:.0f}",
            f"{max(seconds):.0f}",
            max(seconds) <= PROMISED_SECONDS,
        ),
    ]
    for name, promised, measured, good in kept:
        promises.add_row(name, promised, measured, "yes" if good else "NO")
    console.print(promises)
    console.print(f"{passed} of {arguments.seeds} candidates passed every gate.")
    return 0 if all(good for *_, good in kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
