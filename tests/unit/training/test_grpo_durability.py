"""What a GRPO update survives: a full disk, and weights that are no numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.full_disks import fill
from tests.unit.training.grpo_case import ending_base, update
from tests.unit.training.test_adapter import contents
from training.errors import TrainingError
from training.result import TrainResult

SHORT = {"steps": 4, "save_every_steps": 2, "prompts_per_step": 2, "group_size": 2}


@pytest.fixture(scope="module")
def base(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_base(tiny_base, tmp_path_factory.mktemp("ending") / "base")


@pytest.fixture(scope="module")
def undisturbed(base: Path, moved_champion: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return update(base, moved_champion, tmp_path_factory.mktemp("undisturbed"), **SHORT)


@pytest.mark.parametrize("leave", [2, 40])
def test_a_disk_that_fills_up_is_survived(
    leave: int, small_disk: Path, base: Path, moved_champion: Path, undisturbed: TrainResult
) -> None:
    output = small_disk / "update"
    ballast: list[Path] = []

    def fills(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if step == 3:  # checkpoint-2 lies there; checkpoint-4 finds no room
            ballast.append(fill(small_disk, leave=leave))

    for _ in range(2):  # and again, as long as there is no room: the good one stays
        with pytest.raises(TrainingError, match="disk is full") as caught:
            update(base, moved_champion, output, on_step=None if ballast else fills, **SHORT)
        assert "goes on from checkpoint-2" in str(caught.value.next_step)
        assert [p.name for p in output.glob("checkpoint-*")] == ["checkpoint-2"]
        assert not list(output.glob("*.partial")) and not (output / "result.json").exists()
    ballast[0].unlink()
    steps: list[int] = []
    resumed = update(base, moved_champion, output, on_step=lambda step, *_: steps.append(step), **SHORT)
    assert steps == [3, 4]
    assert contents(resumed.adapter) == contents(undisturbed.adapter)


def test_a_disk_that_is_full_when_the_adapter_is_written(
    small_disk: Path, base: Path, fresh_champion: Path
) -> None:
    def fills(step: int, total: int, _metrics: dict[str, float]) -> None:
        if step == total:
            fill(small_disk, leave=0)

    with pytest.raises(TrainingError, match="disk is full") as caught:
        update(base, fresh_champion, small_disk / "update", on_step=fills, **{**SHORT, "steps": 1})
    assert "goes on from the start" in str(caught.value.next_step)
    assert not (small_disk / "update/result.json").exists()


def test_weights_that_are_no_numbers_are_not_saved(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    # The loss of step 1 is finite, its update is not: without a look at the weights checkpoint-1 would hold them.
    with pytest.raises(TrainingError, match="a weight that is not finite"):
        update(base, fresh_champion, tmp_path, **{**SHORT, "learning_rate": 1e39, "save_every_steps": 1})
    assert list(tmp_path.glob("checkpoint-*")) == [] and not (tmp_path / "adapter").exists()
