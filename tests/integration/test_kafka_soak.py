"""The short form of the soak: consumers die by SIGKILL again and again, and nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_forty_kills(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "benchmarks/streams_soak.py", "--kills", "40", "--minutes", "5"),
        *("--per-second", "60", "--json", str(tmp_path / "result.json")),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == 0, said
    result = json.loads((tmp_path / "result.json").read_text())["figures"]
    assert result["kills"] >= 40 and result["rows"] == result["written"] > 0, said
    assert result["lost"] == result["doubled"] == result["wrong"] == result["foreign"] == 0
    assert result["ledger_balances"] and result["same_dataset"]
