"""What the sides of `updates_speed.py` learn from: people's rankings, as rows that both sides can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from rewards_data import ROOT, shared

PAIRS, PROMPTS = 16, 2
SHORT = {"role": "system", "content": "You are a personal assistant. Answer in one or two short sentences."}


def trees(folder: Path) -> Any:
    """The dataset of people's rankings, built in `folder` as a run builds it."""
    from pipelines.dataset import load

    options = ["--config", str(ROOT / "conf/oasst.toml"), "--set", f"workspace.dir={folder}"]
    command = str(Path(sys.executable).with_name("palate"))
    source = shared("oasst_en_100") / "en_100_tree.jsonl"
    for part in (["ingest", "--input", str(source)], ["build"]):
        subprocess.run([command, *part, *options], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return load(folder, None)


def dataset(folder: Path) -> Path:
    """The first short pairs of people's rankings, as a Parquet file of PREFERENCES."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = trees(folder).rows("train")
    short = pc.less(pc.add(pc.utf8_length(rows["chosen"]), pc.utf8_length(rows["rejected"])), 900)
    decided = pc.and_(pc.is_valid(rows["rejected"]), pc.greater(rows["margin"], 0))
    asked = pa.array([sum(len(m["content"]) for m in p) < 300 for p in rows["prompt"].to_pylist()])
    rows = rows.filter(pc.and_(pc.and_(short, decided), asked)).sort_by("preference_id").slice(0, PAIRS)
    assert rows.num_rows == PAIRS, rows.num_rows
    # Alike in weight and margin, as TRL's trainer knows neither.
    for name in ("weight", "margin"):
        alike = pa.repeat(pa.scalar(1.0), rows.num_rows)
        rows = rows.set_column(rows.schema.get_field_index(name), name, alike)
    file = folder / "pairs.parquet"
    pq.write_table(rows, file)
    return file


def unpaired(rows: Any) -> Any:
    """Each pair's chosen reply as liked and its rejected one as disliked."""
    import pyarrow as pa

    single = [
        {**row, "preference_id": f"{row['preference_id']}-{side}", "chosen": row[side], "rejected": None, "label": good}
        for row in rows.to_pylist()
        for side, good in (("chosen", True), ("rejected", False))
    ]  # fmt: skip
    return pa.Table.from_pylist(single, schema=rows.schema)


def questions(rows: Any) -> Any:
    """The first PROMPTS different prompts, each asking for a short answer, so that replies end and differ in length."""
    import pyarrow as pa

    distinct = {row["prompt_key"]: row for row in rows.to_pylist()}
    asked = [{**row, "prompt": [SHORT, *row["prompt"]]} for row in list(distinct.values())[:PROMPTS]]
    assert len(asked) == PROMPTS, len(asked)
    return pa.Table.from_pylist(asked, schema=rows.schema)
