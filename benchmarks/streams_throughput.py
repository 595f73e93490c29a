"""How fast JSON becomes validated, joined Parquet: palate against Beam per element, plain polars and plain DuckDB.

All shapes do this work in the same run, each in a process of its own on the same file: read lines of about
1.2 KB, keep a bad line with a reason instead of failing, check required fields, the type of every field and
ranges, keep the body as text, drop exact copies by id, join feedback to its interaction, order by prompt, write
zstd Parquet. Their row counts must be equal. Imports are timed apart, as a service pays them once.

What palate does beyond that, within its figure: no unknown field passes; bodies are rewritten in canonical form
(sorted keys, UTC, NFC) and hashed with SHA-256; a suite of Great Expectations runs over every batch; rows and read
offsets are committed together in a Delta table, fsynced, in bounded steps that a crash cannot double; copies under
one id with another content are told apart; memory does not grow with the input.

Every shape is measured `--rounds` times in turn and its best counts.

Prints ratios; exits with 1 where a promise is not kept. Beam per element needs 7 KB of memory per event, so above
`--per-element-max` it works on a part of the file and its rate is compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from streams_events import write_events
from streams_shapes import SHAPES, warm

MIN_OVER_PER_ELEMENT = 3.0
MIN_SHARE_OF_PLAIN = 0.4
MAX_PEAK_GB = 1.5


def child(shape: str, path: Path, folder: Path) -> None:
    """One shape; tells seconds and row counts as JSON."""
    started = time.monotonic()
    warm(shape)
    imported, cpu = time.monotonic(), time.process_time()
    counts = SHAPES[shape](path, folder)
    found = {
        "import_s": imported - started,
        "wall_s": time.monotonic() - imported,
        "cpu_s": time.process_time() - cpu,
        "counts": counts,
    }
    print(json.dumps(found), flush=True)


def measure(shape: str, path: Path) -> dict[str, Any]:
    """Runs a shape in its own process; adds the peak memory of its process tree."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, __file__, "--child", shape, str(path), folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        tree, peak = psutil.Process(process.pid), 0
        while process.poll() is None:
            peak = max(peak, _memory(tree))
            time.sleep(0.05)
        output = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"{shape} ended with {process.returncode}")
    return {**json.loads(output.splitlines()[-1]), "peak_gb": peak / 1e9}


def _memory(root: psutil.Process) -> int:
    try:
        return sum(each.memory_info().rss for each in [root, *root.children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0


def better(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """The quicker of two measurements of a shape, with the higher peak of both: others' work only ever slows."""
    now["rate"] = now["events"] / now["wall_s"]
    if before is None:
        return now
    quicker = max(before, now, key=lambda each: each["rate"])
    return {**quicker, "peak_gb": max(before["peak_gb"], now["peak_gb"])}


def shortened(path: Path, lines: int) -> Path:
    """The first lines of a file, as another file."""
    short = path.with_name(f"first-{lines}.jsonl")
    with path.open("rb") as source, short.open("wb") as target:
        target.writelines(islice(source, lines))
    return short


def judge(found: dict[str, dict[str, Any]]) -> list[tuple[str, str, str, bool]]:
    """(what, measured, promised, kept) of each promise."""
    ours = found["palate"]
    over = ours["rate"] / found["beam per element"]["rate"]
    promises = [
        (
            "palate / beam per element",
            f"{over:.2f}",
            f">= {MIN_OVER_PER_ELEMENT}",
            over >= MIN_OVER_PER_ELEMENT,
        )
    ]
    for plain in ("polars", "duckdb"):
        share = ours["rate"] / found[plain]["rate"]
        promises.append(
            (f"palate / {plain}", f"{share:.2f}", f">= {MIN_SHARE_OF_PLAIN}", share >= MIN_SHARE_OF_PLAIN)
        )
    peak = ours["peak_gb"]
    promises.append(("peak memory of palate, GB", f"{peak:.2f}", f"<= {MAX_PEAK_GB}", peak <= MAX_PEAK_GB))
    same = all(
        shape["counts"] == ours["counts"] for shape in found.values() if shape["events"] == ours["events"]
    )
    return [*promises, ("row counts are equal", str(ours["counts"]), "equal", same)]


def main() -> int:
    """Measure, print, return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="measure every shape so often; the best counts")
    parser.add_argument("--per-element-max", type=int, default=100_000)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]), Path(options.child[2]))
        return 0
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "events.jsonl"
        size = write_events(path, options.events, options.seed)
        for _ in range(options.rounds):
            for shape in options.shapes:
                events = (
                    min(options.events, options.per_element_max)
                    if shape == "beam per element"
                    else options.events
                )
                given = path if events == options.events else shortened(path, events)
                measured = {"events": events, **measure(shape, given)}
                found[shape] = better(found.get(shape), measured)
    table = Table("shape", "events", "events/s", "events/cpu-s", "wall s", "imports s", "peak GB")
    for shape, m in found.items():
        per_cpu = m["events"] / m["cpu_s"]
        figures = (m["rate"], per_cpu)
        table.add_row(
            shape, f"{m['events']:,}", *(f"{x:,.0f}" for x in figures), f"{m['wall_s']:.2f}",
            f"{m['import_s']:.1f}", f"{m['peak_gb']:.2f}",
        )  # fmt: skip
    console = Console()
    console.print(
        f"{options.events:,} events of {size / options.events:,.0f} bytes, seed {options.seed}, "
        f"best of {options.rounds}"
    )
    console.print(table)
    promises = judge(found) if set(found) == set(SHAPES) else []
    verdict = Table("promise", "measured", "promised", "kept")
    for what, measured_text, promised, kept in promises:
        verdict.add_row(what, measured_text, promised, "yes" if kept else "NO")
    console.print(verdict)
    if options.json:
        checks = [
            {"what": what, "promised": promised, "measured": measured_text, "ok": kept}
            for what, measured_text, promised, kept in promises
        ]
        figures_found = {"checks": checks, "seed": options.seed, "bytes": size, "shapes": found}
        options.json.write_text(json.dumps(figures_found, indent=1))
    return 0 if all(promise[3] for promise in promises) else 1


if __name__ == "__main__":
    sys.exit(main())
