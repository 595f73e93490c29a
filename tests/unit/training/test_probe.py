"""What an update would take: counted by hand, measured on the real loop, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from feedback.served import SERVED
from tests.unit.reward_models.made import shorter_wins
from tests.unit.training.test_kto import thumbs
from training import dpo, grpo, kto, mix
from training.errors import NotEnoughPreferences, TrainingError
from training.probe import (
    STEPS,
    Duration,
    Probe,
    ProbeFailed,
    Size,
    Step,
    Told,
    Work,
    apart,
    duration,
    probe,
    size,
    tried_steps,
)
from training.probe_memory import Memory, available_bytes
from training.probe_work import work_of
from training.sequences import Tokens
from training.update import Champion, Data, Run

MEBI = 2**20
DPO = dpo.Config(batch_pairs=4, micro_batch_pairs=2, max_tokens=96, min_pairs=4, save_every_steps=3)
HOST = Memory("cpu", 100, 50, 10, 200, 400)


def item(*lengths: int, referenced: int | None = None, mark: int = 0) -> Any:
    from training.policy_trainer import Item

    sequences = tuple(Tokens((1, mark), (k + 3,) * (n - 2)) for k, n in enumerate(lengths))
    return Item(sequences, {"weight": 1.0}, referenced=referenced)


def work(items: list[Any], **changes: Any) -> Work:
    made = Work(DPO, Champion(Path(), "", Path()), items, dpo.Objective(DPO), 4, 2, 0)
    return replace(made, **changes)


def test_what_is_read_is_counted_by_hand() -> None:
    items = [item(10, 20, mark=1), item(30, 6, mark=2), item(5, 5, referenced=1, mark=3)]
    found = size(work(items, per_step=2, settings=DPO.model_copy(update={"epochs": 1.5})))
    assert found == Size(
        3, 3, 114, 76, 71, 30
    )  # 1.5 epochs of 2 steps; the last item's second needs no reference
    twice = size(work(items, settings=DPO.model_copy(update={"base_kl_budget": 0.1})))
    assert twice.reference_tokens == 142
    again = size(work([items[0], items[0]]))
    assert (again.tokens, again.reference_tokens) == (60, 30)  # the same text is scored once
    given = size(work(items, per_step=1, steps=[[0, 1], [1, 2], [0, 2]]))
    assert (given.steps, given.tokens) == (3, 66 + 46 + 40)


def test_time_is_loading_references_steps_and_checkpoints() -> None:
    tried = Probe((Step(50, 8.0), Step(100, 1.0), Step(100, 3.0)), 10.0, 0.001, 0.5, 1, (HOST,))
    found = duration(Size(8, 10, 1000, 1000, 2000, 9), tried, save_every_steps=4)
    # 10 to load, 7 to warm up, 2 for references, 2 checkpoints of half a second; 10 to 30 for the steps, 20 on average
    assert found == Duration(40.0, 30.0, 50.0)
    quick = replace(tried, steps=(Step(50, 0.1), *tried.steps[1:]))
    assert duration(Size(8, 10, 1000, 1000, 2000, 9), quick, 4).seconds == 33.0  # nothing is taken off


def test_one_tried_step_holds_the_longest_rows_and_none_a_row_twice() -> None:
    items = [item(4, 4, mark=n) for n in range(9)] + [item(3, 40, mark=9), item(25, 25, mark=10)]
    steps = tried_steps(work(items))
    assert steps[0][:2] == [9, 10]  # a batch is as wide as its longest sequence, not as its rows have tokens
    assert [len(step) for step in steps] == [4] * STEPS
    assert all(len(set(step)) == 4 for step in steps)
    assert len({*steps[1], *steps[2]}) == 8
    few = tried_steps(work(items[:3]))
    assert [sorted(step) for step in few] == [[0, 1, 2]] * STEPS
    given = tried_steps(work(items, steps=[[0, 1], [9, 2], [3, 4]]))
    assert given[0] == [9, 2]
    with pytest.raises(TrainingError, match="without rows"):
        tried_steps(work([]))


def test_what_is_left_of_the_peak_are_activations_and_it_fits_or_not() -> None:
    assert (HOST.activations, HOST.fits) == (40, True)
    assert replace(HOST, free=221).fits is True and replace(HOST, free=219).fits is False  # a tenth to spare
    assert replace(HOST, free=None).fits is None


def test_a_control_group_leaves_less_than_the_machine_has(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert available_bytes(tmp_path) is None
    write("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    4096 kB\n")
    assert available_bytes(tmp_path) == 4 * MEBI
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(3 * MEBI))
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", str(2 * MEBI))
    assert available_bytes(tmp_path) == MEBI
    write("sys/fs/cgroup/memory/memory.stat", f"total_inactive_file 7\ninactive_file {MEBI // 2}\n")
    assert available_bytes(tmp_path) == MEBI + MEBI // 2
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))  # what no limit looks like
    assert available_bytes(tmp_path) == 4 * MEBI
    write("sys/fs/cgroup/memory.max", "max\n")
    write("sys/fs/cgroup/memory.current", "1\n")
    assert available_bytes(tmp_path) == 4 * MEBI


@pytest.fixture
def no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_three_real_steps_are_measured_and_thrown_away(
    tiny_base: Path, moved_champion: Path, no_trace: Path
) -> None:
    champion = Champion(tiny_base, "test:tiny", moved_champion)
    before = {file: file.read_bytes() for file in moved_champion.iterdir()}
    made, left_out = work_of("dpo", DPO, champion, Data(shorter_wins(30), SERVED.empty_table()), 3)
    told: list[tuple[int, int]] = []
    found = probe(made, lambda step, total, rate: told.append((step, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    expected = sorted(sum(made.items[i].tokens for i in step) for step in tried_steps(made))
    assert sorted(step.tokens for step in found.steps) == expected
    assert all(step.seconds > 0 for step in found.steps)
    assert found.start_s > 0 and found.reference_s_per_token > 0 and found.save_s > 0
    (host,) = found.memory
    adapter = (moved_champion / "adapter_model.safetensors").stat().st_size
    weights = (tiny_base / "model.safetensors").stat().st_size + adapter
    assert host.weights == pytest.approx(weights, rel=0.05)
    assert (
        2 * adapter * 0.9 < host.optimizer < 2 * adapter + 32 * 1024
    )  # two moments of the adapter, and names
    assert host.libraries + host.weights < host.peak < 3_000 * MEBI
    assert found.checkpoint_bytes > 3 * adapter * 0.9
    assert host.fits
    assert not list(no_trace.iterdir())
    assert {file: file.read_bytes() for file in moved_champion.iterdir()} == before
    assert left_out == {}


def test_the_steps_and_rows_counted_before_are_those_of_the_training(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    champion = Champion(tiny_base, "test:tiny", moved_champion)
    rows = pa.concat_tables([shorter_wins(7), thumbs(9, first=100)])
    data = Data(rows, SERVED.empty_table())
    own = kto.Config(epochs=2, batch_rows=4, micro_batch_rows=4, max_tokens=96, min_rows=2)
    shares = {"dpo": 0.5, "kto": 0.5}
    both = mix.Config(shares=shares, dpo=DPO, kto=own, epochs=2, batch_rows=4, max_tokens=96)
    for name, module, config in (("dpo", dpo, DPO), ("kto", kto, own), ("mix", mix, both)):
        made, left_out = work_of(name, config, champion, data, 0)
        trained = module.train(config, champion, data, None, Run(tmp_path / name, 0))
        assert trained.metrics["steps"] == size(made).steps, name
        assert trained.left_out == left_out, name
        assert trained.metrics["pairs" if name == "dpo" else "rows"] == size(made).rows, name


def test_too_few_rows_are_refused_in_the_words_of_the_training(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    champion = Champion(tiny_base, "test:tiny", moved_champion)
    data = Data(shorter_wins(3), SERVED.empty_table())
    said = []
    for attempt in (
        lambda: work_of("dpo", DPO, champion, data, 0),
        lambda: dpo.train(DPO, champion, data, None, Run(tmp_path, 0)),
    ):
        with pytest.raises(NotEnoughPreferences) as refused:
            attempt()
        said.append(str(refused.value))
    assert said[0] == said[1]
    with pytest.raises(TrainingError, match="does not learn from rows"):
        work_of("grpo", grpo.Config(), champion, data, 0)


def _killed(_work: None, folder: Path, _started: float, _tell: Told) -> Probe:
    (folder / "left").write_text("behind")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _failing(_work: None, _folder: Path, _started: float, _tell: Told) -> Probe:
    raise ValueError("a reason, naïve")


def test_a_probe_that_is_killed_or_fails_is_told_and_leaves_nothing(no_trace: Path) -> None:
    with pytest.raises(ProbeFailed, match="memory is short") as killed:
        apart(_killed, None)
    assert "exit code -9" in str(killed.value)
    with pytest.raises(ProbeFailed, match="ValueError: a reason, naïve"):
        apart(_failing, None)
    assert not list(no_trace.iterdir())
