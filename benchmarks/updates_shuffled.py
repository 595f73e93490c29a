"""Feedback that says nothing must not pass: the demo with shuffled labels ends with its gates failed.

    python benchmarks/updates_shuffled.py

The whole loop on simulated users, but a coin names the winner of each vote, the sign of each thumb and which text of
an edit was the correction. The same texts remain; what people wanted is gone. A candidate that is no better passes the
gate `win_rate` in at most about 2.5 % of runs.
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

from promises import Check, finish
from rewards_data import ROOT
from rich.console import Console
from rich.table import Table

GATE_FAILED = 3


def shuffled(seed: int, folder: Path) -> dict[str, Any]:
    """One demo whose labels were shuffled: its exit code and what its gates said."""
    command = [str(Path(sys.executable).with_name("palate")), "demo", "--shuffled-labels", "--json"]
    command += ["--seed", str(seed), "--set", f"workspace.dir={folder}/shuffled-{seed}"]
    started = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    document = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return {
        "seed": seed,
        "exit_code": done.returncode,
        "gates": {gate["gate"]: gate["verdict"] for gate in document.get("verdicts", ())},
        "satisfaction": (document.get("satisfaction") or {}).get("difference"),
        "stderr": "" if document else done.stderr[-2000:],
        "seconds": time.monotonic() - started,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, each one thread")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        found = list(pool.map(lambda seed: shuffled(seed, Path(name)), seeds))
    table = Table("seed", "exit code", "gates", "true satisfaction", "s", title="shuffled labels")
    for one in found:
        felt = one["satisfaction"]
        table.add_row(
            str(one["seed"]),
            str(one["exit_code"]),
            one["stderr"] or ", ".join(f"{gate}: {said}" for gate, said in one["gates"].items()),
            f"{felt['value']:+.3f}" if felt else "",
            f"{one['seconds']:.0f}",
        )
    Console().print(table)
    checks = [
        Check(
            f"shuffled labels, seed {one['seed']}",
            f"exit code {GATE_FAILED}: a gate failed",
            f"exit code {one['exit_code']}",
            one["exit_code"] == GATE_FAILED,
        )
        for one in found
    ]
    return finish(checks, options.json, found)


if __name__ == "__main__":
    sys.exit(main())
