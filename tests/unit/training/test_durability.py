"""What an update survives: a full disk, a loss that is no number, a kill in the middle of a write."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from feedback.served import SERVED
from tests.unit.reward_models.made import shorter_wins
from tests.unit.training.full_disks import PAGE, fill
from tests.unit.training.test_adapter import contents
from tests.unit.training.test_dpo import CONFIG, update
from training import dpo
from training.errors import TrainingError
from training.fit import fit
from training.full_disk import no_room, stops_when_full
from training.policy_trainer import Item, Objective, Terms
from training.result import TrainResult
from training.update import Champion, Data, Run

ROOT = Path(__file__).parents[3]
FILES = (
    "adapter_model.safetensors",
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
)
"""Of a checkpoint, in the order in which they are written."""


@pytest.fixture(scope="module")
def undisturbed(
    tiny_base: Path, moved_champion: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainResult:
    return update(tiny_base, moved_champion, tmp_path_factory.mktemp("undisturbed"))


def pages_before(checkpoint: Path, target: str) -> int:
    """Pages that a checkpoint takes up to where `target` is written."""
    written = {f.name: f.stat() for f in checkpoint.iterdir()}
    before = [s for s in written.values() if s.st_mtime_ns < written[target].st_mtime_ns]
    return sum(-(-s.st_size // PAGE) for s in before)


@pytest.mark.parametrize("target", FILES)
def test_a_disk_that_fills_up_in_the_middle(
    target: str, small_disk: Path, undisturbed: TrainResult, tiny_base: Path, moved_champion: Path
) -> None:
    output = small_disk / "update"
    ballast: list[Path] = []

    def fills(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if (
            step == 3
        ):  # checkpoint-2 lies there; of checkpoint-4 all fits in that is written before the target
            ballast.append(fill(small_disk, leave=pages_before(output / "checkpoint-2", target)))

    with pytest.raises(TrainingError, match="disk is full") as caught:
        update(tiny_base, moved_champion, output, on_step=fills)
    assert "goes on from checkpoint-2" in str(caught.value.next_step)
    assert "0 MiB free" in str(caught.value.got)
    assert sorted(p.name for p in output.iterdir()) == ["checkpoint-2", "reference"]
    for _ in range(2):  # and again, as long as there is no room: the good one stays
        with pytest.raises(TrainingError, match="disk is full"):
            update(tiny_base, moved_champion, output)
        assert [p.name for p in output.glob("checkpoint-*")] == ["checkpoint-2"]
    ballast[0].unlink()
    steps: list[int] = []
    resumed = update(tiny_base, moved_champion, output, on_step=lambda step, _t, _m: steps.append(step))
    assert steps == [3, 4, 5, 6]
    assert contents(resumed.adapter) == contents(undisturbed.adapter)
    assert sorted(p.name for p in output.iterdir()) == ["adapter", "result.json"]


def test_a_disk_that_is_full_from_the_start(
    small_disk: Path, undisturbed: TrainResult, tiny_base: Path, moved_champion: Path
) -> None:
    ballast = fill(small_disk, leave=0)
    with pytest.raises(TrainingError, match="disk is full") as caught:
        update(tiny_base, moved_champion, small_disk / "update")
    assert "goes on from the start" in str(caught.value.next_step)
    ballast.unlink()
    result = update(tiny_base, moved_champion, small_disk / "update")
    assert contents(result.adapter) == contents(undisturbed.adapter)


def test_a_limit_on_the_size_of_files(
    tmp_path: Path, undisturbed: TrainResult, tiny_base: Path, moved_champion: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limits(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if step == 3:  # an adapter fits, the optimizer's two moments of it do not
            size = (tmp_path / "checkpoint-2/optimizer.pt").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, hard))

    try:
        with pytest.raises(TrainingError, match="disk is full") as caught:
            update(tiny_base, moved_champion, tmp_path, on_step=limits)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "goes on from checkpoint-2" in str(caught.value.next_step)
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    resumed = update(tiny_base, moved_champion, tmp_path)
    assert contents(resumed.adapter) == contents(undisturbed.adapter)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    assert no_room(OSError(errno.EDQUOT, "Disk quota exceeded")) == "the quota is used up"
    assert no_room(OSError(errno.EACCES, "Permission denied")) is None
    assert no_room(RuntimeError("Error: I/O error (os error 13)")) is None
    assert no_room(RuntimeError("shapes do not match, unexpected pos 3")) is None
    (tmp_path / "checkpoint-2").mkdir()
    with pytest.raises(PermissionError), stops_when_full(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert (tmp_path / "checkpoint-2").is_dir()  # nothing is tidied up for an error of another kind


class Poisoned:
    """The loss of DPO, which is not a number from the step `bad_from` of this process on."""

    def __init__(self, bad_from: int) -> None:
        self.objective, self.left = dpo.Objective(CONFIG), bad_from

    def prepare(self, _model: Any, _items: Sequence[Item]) -> None:
        self.left -= 1

    def terms(self, model: Any, items: Sequence[Item], step: Any) -> Terms:
        found = self.objective.terms(model, items, step)
        return found if self.left > 0 else replace(found, losses=found.losses * float("nan"))


@pytest.mark.parametrize("bad_from", [3, 4])
def test_after_a_loss_that_is_no_number_the_last_good_checkpoint_is_left(
    bad_from: int, tmp_path: Path, undisturbed: TrainResult, tiny_base: Path, moved_champion: Path
) -> None:
    from safetensors.torch import load_file

    champion = Champion(tiny_base, "test:tiny", moved_champion)
    data = Data(shorter_wins(24), SERVED.empty_table())
    items, left_out, _ = dpo.pair_items(CONFIG, champion, data, 7)

    def train(objective: Objective) -> TrainResult:
        sizes = {"per_step": CONFIG.batch_pairs, "micro_batch": CONFIG.micro_batch_pairs}
        run = Run(tmp_path, 7)
        return fit(CONFIG, champion, run, items, objective, metrics={}, left_out=left_out, **sizes)

    for bad in (
        bad_from,
        bad_from - 2,
    ):  # run again, it goes on from step 2, diverges again, and spoils nothing
        with pytest.raises(TrainingError, match="diverged") as caught:
            train(Poisoned(bad))
        assert "learning_rate" in str(caught.value.next_step)
        assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
        kept = load_file(tmp_path / "checkpoint-2/adapter_model.safetensors")
        assert all(bool(t.isfinite().all()) for t in kept.values())
        assert not (tmp_path / "adapter").exists()
    resumed = train(dpo.Objective(CONFIG))
    assert contents(resumed.adapter) == contents(undisturbed.adapter)


def test_weights_that_are_no_numbers_are_not_saved(
    tmp_path: Path, tiny_base: Path, fresh_champion: Path
) -> None:
    # The loss of step 1 is finite, its update is not: without a look at the weights checkpoint-1 would hold them.
    with pytest.raises(TrainingError, match="a weight that is not finite"):
        update(tiny_base, fresh_champion, tmp_path, learning_rate=1e39, warmup_share=0.0, save_every_steps=1)
    assert list(tmp_path.glob("checkpoint-*")) == []


def test_killed_in_the_middle_of_writing_a_checkpoint(
    tmp_path: Path, undisturbed: TrainResult, tiny_base: Path, moved_champion: Path
) -> None:
    pq.write_table(shorter_wins(24), tmp_path / "rows.parquet")
    spec = {
        "config": CONFIG.model_dump_json(),
        "base": str(tiny_base),
        "champion": str(moved_champion),
        "rows": str(tmp_path / "rows.parquet"),
        "output": str(tmp_path),
        "seed": 7,
        "files": FILES,
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.training.killed_writing", str(tmp_path / "spec.json")],
        cwd=ROOT,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]
    died = json.loads(ended.stdout.decode().strip().splitlines()[-1])
    assert died == dict.fromkeys(FILES, int(signal.SIGKILL))
    for target in FILES:
        output = tmp_path / target
        half, whole = (output / f"checkpoint-{k}" / target for k in (4, 2))
        assert 0 < half.stat().st_size < 0.8 * whole.stat().st_size
        steps: list[int] = []
        resumed = update(
            tiny_base, moved_champion, output, on_step=lambda step, _t, _m, to=steps: to.append(step)
        )
        assert steps == [3, 4, 5, 6], target
        assert contents(resumed.adapter) == contents(undisturbed.adapter), target
        assert resumed.curve == undisturbed.curve
