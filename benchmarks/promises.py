"""A promise beside what was measured: how the benchmarks of streams say whether they kept theirs."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
        content = {"checks": [check._asdict() for check in checks], "figures": figures}
        path.write_text(json.dumps(content, indent=1, default=str) + "\n")
    return 0 if all(check.ok for check in checks) else 1
