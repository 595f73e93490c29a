"""Two processes and sharded weights learn what one process learns; what would silently be something else is refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from tests.unit.reward_models.made import shorter_wins, text
from tests.unit.training.processes import update
from tests.unit.training.served import served_row, served_rows
from tests.unit.training.test_kto import thumbs
from training.errors import TrainingError
from training.hardware import Hardware, refuse_unfit, refuse_whole
from training.sequences import own_batches

ROOT = Path(__file__).parents[3]
SHARED = {"learning_rate": 3e-3, "epochs": 2, "max_tokens": 192, "save_every_steps": 2}
TOLERANCE = 1e-6
"""Of a weight, after steps of 3e-3 in single precision: sums are taken in another order."""


def _cases(folder: Path) -> dict[str, dict[str, Any]]:
    """A method with its rows; of pairs an odd number, so that the last step has one row for two processes."""
    dice = random.Random(1)
    words = [
        served_row(n, text(6, dice), **({"next_message": "Shorter"} if n % 3 else {"edit": "The bread."}))
        for n in range(32)
    ]
    tables = {"pairs": shorter_wins(25), "thumbs": thumbs(26), "words": served_rows(words)}
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    at = {name: str(folder / f"{name}.parquet") for name in tables}
    rows = {"batch_rows": 8, "micro_batch_rows": 2}
    mix = {"shares": {"dpo": 0.5, "words": 0.5}, "dpo": {"min_pairs": 4}, "words": {"min_rows": 4}}
    return {
        "dpo": {
            "method": "dpo",
            "preferences": at["pairs"],
            "config": {**SHARED, "batch_pairs": 8, "micro_batch_pairs": 2},
        },
        "kto": {"method": "kto", "preferences": at["thumbs"], "config": {**SHARED, **rows, "beta": 0.5}},
        "words": {"method": "words", "served": at["words"], "config": {**SHARED, **rows, "min_rows": 8}},
        "mix": {
            "method": "mix",
            "preferences": at["pairs"],
            "served": at["words"],
            "config": {**SHARED, **rows, **mix, "epochs": 1, "kl_weight": 0.1},
        },
    }


HARDWARE: dict[str, dict[str, Any]] = {
    "one": {"bf16": "off"},
    "two": {"bf16": "off", "processes": 2},
    "sharded": {"bf16": "off", "processes": 2, "fsdp_size": 2},
}


@pytest.fixture(scope="module")
def ran(tiny_base: Path, moved_champion: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case by one process, by two, and sharded over two; also a sharded one that goes on from its middle."""
    folder = tmp_path_factory.mktemp("hardware")
    given = {"base": str(tiny_base), "champion": str(moved_champion), "seed": 7}
    cases = _cases(folder)

    def on(name: str, hardware: str, output: str = "", **more: Any) -> dict[str, Any]:
        place = folder / (output or f"{name}-{hardware}")
        return {**cases[name], "hardware": HARDWARE[hardware], "output": str(place), **more}

    both = [
        *(on(name, "two") for name in cases),
        on("dpo", "sharded", copy_at=5, copy_to=str(folder / "resumed")),
        on("dpo", "sharded", "resumed"),
        on("kto", "sharded"),
        on("words", "sharded"),
        on("dpo", "one", "too-many"),
    ]
    (folder / "spec.json").write_text(json.dumps({**given, "cases": both}))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, "-m", "tests.unit.training.processes", str(folder / "spec.json")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()[-3000:]
    for name in cases:
        update(on(name, "one"), given)
    return folder


def _same(folder: Path, name: str, other: str, tolerance: float = TOLERANCE) -> None:
    alone, shared = (
        load_file(folder / f"{run}/adapter/adapter_model.safetensors") for run in (f"{name}-one", other)
    )
    assert alone.keys() == shared.keys()
    assert max(float((alone[key] - shared[key]).abs().max()) for key in alone) < tolerance
    curves = [
        json.loads((folder / run / "result.json").read_text())["curve"] for run in (f"{name}-one", other)
    ]
    assert [sorted(entry) for entry in curves[0]] == [sorted(entry) for entry in curves[1]]
    for one, two in zip(*curves, strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", ["dpo", "kto", "words", "mix"])
def test_two_processes_learn_what_one_learns(name: str, ran: Path) -> None:
    _same(ran, name, f"{name}-two")


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_sharded_weights_learn_what_whole_ones_learn(name: str, ran: Path) -> None:
    _same(ran, name, f"{name}-sharded")


def test_a_sharded_update_goes_on_where_it_stopped(ran: Path) -> None:
    first = json.loads((ran / "resumed/result.json").read_text())["curve"]
    assert len(first) == 8
    _same(ran, "dpo", "resumed")


def test_what_cannot_be_sharded_is_refused(ran: Path) -> None:
    assert "over sharded weights" in (ran / "words-sharded/error.txt").read_text()
    assert "not as many processes" in (ran / "too-many/error.txt").read_text()
    assert not (ran / "words-sharded/adapter").exists()


def test_sharding_that_accelerate_would_ignore_is_refused() -> None:
    asked = {"ACCELERATE_USE_FSDP": "true"}
    with pytest.raises(TrainingError, match="ignores in silence") as caught:
        refuse_unfit(Hardware(), processes=1, method="dpo", environment=asked)
    assert "ACCELERATE_USE_FSDP=true" in str(caught.value)
    refuse_unfit(Hardware(), processes=1, method="dpo", environment={"ACCELERATE_USE_FSDP": "false"})


def test_a_model_that_is_not_split_is_refused() -> None:
    import torch

    model = torch.nn.Linear(8, 8).requires_grad_(False)
    refuse_whole(model, Hardware())
    with pytest.raises(TrainingError, match="was to be sharded and is not"):
        refuse_whole(model, Hardware(processes=2, fsdp_size=2))


@pytest.mark.parametrize("sizes", [{"fsdp_size": 2}, {"processes": 4, "fsdp_size": 4, "ep_size": 3}])
def test_sizes_that_do_not_divide_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must divide"):
        Hardware(**sizes)


def test_one_process_can_try_what_several_are_to_do() -> None:
    """`palate plan` tries its steps in one process, whatever the update is to run on."""
    alone = Hardware(processes=8, fsdp_size=4, ep_size=2, bf16="off").alone()
    assert alone == Hardware(bf16="off")
    refuse_unfit(alone, processes=1, method="words", environment={})


def test_each_process_has_as_many_passes_and_every_row_counts_once() -> None:
    lengths = [5, 9, 1, 7, 3, 8, 2]
    shares = [own_batches(lengths, 2, rank, 3) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 2, 2]
    counted = sorted(i for share in shares for batch, counts in share if counts for i in batch)
    assert counted == list(range(7))
    assert own_batches([], 2, 0, 3) == []
    assert own_batches(lengths, 2, 0, 1) == [([1, 5], True), ([3, 0], True), ([4, 6], True), ([2], True)]
