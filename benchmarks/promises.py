"""A promise beside what was measured: how the benchmarks say whether they kept theirs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Check(NamedTuple):
    """One promise."""

    what: str
    promised: str
    measured: str
    ok: bool


def finish(checks: Sequence[Check], path: Path | None, figures: Any) -> int:
    """Prints the promises and writes them with all figures to `path`; the exit code, 1 where one is not kept."""
    table = Table("what", "promised", "measured", "kept")
    for check in checks:
        table.add_row(check.what, check.promised, check.measured, "yes" if check.ok else "NO")
    Console().print(table)
    if path:
        # numpy's own booleans are no JSON: written as text, a promise that is not kept would read as true
        plain = [check._replace(ok=bool(check.ok))._asdict() for check in checks]
        content = {"checks": plain, "figures": figures}
        path.write_text(json.dumps(content, indent=1, default=str) + "\n")
    return 0 if all(check.ok for check in checks) else 1


def suite(title: str, parts: Mapping[str, Sequence[str]]) -> int:
    """Runs benchmark scripts one after the other, each in its own process, and prints all their promises.

    A part that fails to run is a promise that is not kept.

    Args:
        title: of the table.
        parts: name to script, beside this one, and its arguments; each takes `--json` and writes what `finish` does.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument(
        "--only", action="append", choices=list(parts), help="run only this part (repeatable)"
    )
    chosen = parser.parse_args().only or list(parts)
    console, table = Console(), Table("what", "promised", "measured", "kept", title=title)
    started, kept = time.monotonic(), True
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(chosen):
            console.rule(f"{name} ({time.monotonic() - started:.0f} s so far)")
            for check in _checks(name, parts[name], Path(folder) / f"{number}.json"):
                kept &= check.ok
                table.add_row(check.what, check.promised, check.measured, "yes" if check.ok else "NO")
    console.print(table)
    console.print(f"{time.monotonic() - started:.0f} s")
    return 0 if kept else 1


def _checks(name: str, command: Sequence[str], out: Path) -> list[Check]:
    script = Path(__file__).parent / command[0]
    done = subprocess.run([sys.executable, str(script), *command[1:], "--json", str(out)], check=False)
    if not out.is_file():
        return [Check(name, "runs", f"ended with {done.returncode}", False)]
    return [Check(**check) for check in json.loads(out.read_text())["checks"]]
