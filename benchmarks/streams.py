"""Every figure promised of the streams, measured in one go; exit code 1 where one falls short of its promise.

Runs each `streams_*.py` in its own process, one after the other, because these machines are noisy and ratios within
one run are what counts. Each writes `{"checks": [{"what", "promised", "measured", "ok"}, …]}` to the file given with
`--json`; this script only collects them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
PARTS = {
    "soak": ["streams_soak.py", "--kills", "1000", "--minutes", "24", "--consumers", "4"],
    "throughput, 1e5 events": ["streams_throughput.py", "--events", "100000", "--rounds", "3"],
    "throughput, 1e6 events": ["streams_throughput.py", "--events", "1000000"],
    "broker": ["streams_broker.py"],
    "incremental": ["streams_incremental.py", "--events", "1000000"],
    "client": ["streams_client.py"],
}


def run(name: str, command: list[str], folder: Path) -> list[dict[str, Any]]:
    """One part; a part that fails to run is a check that fails."""
    out = folder / f"{name.replace(' ', '-').replace(',', '')}.json"
    done = subprocess.run(
        [sys.executable, str(HERE / command[0]), *command[1:], "--json", str(out)], check=False
    )
    if not out.is_file():
        return [{"what": name, "promised": "runs", "measured": f"ended with {done.returncode}", "ok": False}]
    checks: list[dict[str, Any]] = json.loads(out.read_text())["checks"]
    return checks


def main() -> int:
    """Run the parts, print the table, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), help="run only this part (repeatable)"
    )
    chosen = parser.parse_args().only or list(PARTS)
    console = Console()
    table = Table("what", "promised", "measured", "kept", title="Streams: promised against measured")
    started, kept = time.monotonic(), True
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            console.rule(f"{name} ({time.monotonic() - started:.0f} s so far)")
            for check in run(name, PARTS[name], Path(folder)):
                kept &= bool(check["ok"])
                table.add_row(
                    *(str(check[key]) for key in ("what", "promised", "measured")),
                    "yes" if check["ok"] else "NO",
                )
    console.print(table)
    console.print(f"{time.monotonic() - started:.0f} s")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
