"""DPO updates end to end on a tiny base."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from feedback.served import SERVED
from tests.unit.reward_models.made import row, shorter_wins, table
from tests.unit.training.test_adapter import contents
from training import dpo, fit
from training.errors import NotEnoughPreferences, TrainingError
from training.result import TrainResult
from training.update import Champion, Data, Run

CONFIG = dpo.Config(
    learning_rate=3e-3,
    epochs=2,
    batch_pairs=8,
    micro_batch_pairs=4,
    max_tokens=96,
    save_every_steps=2,
)  # 24 pairs: 6 steps
ROOT = Path(__file__).parents[3]


def update(base: Path, champion: Path, output: Path, **changes: Any) -> TrainResult:
    """One small update; `changes` replace settings, `rows` and `on_step`."""
    rows, on_step = changes.pop("rows", None), changes.pop("on_step", None)
    return dpo.train(
        CONFIG.model_copy(update=changes),
        Champion(base, "test:tiny", champion),
        Data(shorter_wins(24) if rows is None else rows, SERVED.empty_table()),
        None,
        Run(output, 7, on_step=on_step),
    )


@pytest.fixture(scope="module")
def undisturbed(
    tiny_base: Path, moved_champion: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainResult:
    return update(tiny_base, moved_champion, tmp_path_factory.mktemp("undisturbed"))


def test_it_starts_at_the_champion_and_moves_the_margin_up(undisturbed: TrainResult) -> None:
    first, last = undisturbed.curve[0], undisturbed.curve[-1]
    # Reference = champion = starting point: margin 0, loss ln 2. Were the base the reference, neither would
    # be.
    assert first["margin"] == pytest.approx(0.0, abs=1e-4)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert last["margin"] > 0.1
    assert last["loss"] < first["loss"]
    assert [entry["step"] for entry in undisturbed.curve] == [1, 2, 3, 4, 5, 6]
    assert undisturbed.metrics["pairs"] == 24
    assert undisturbed.metrics["steps"] == 6
    assert undisturbed.left_out == {}


def test_held_out_pairs_of_the_same_taste_move_too(
    undisturbed: TrainResult, tiny_base: Path, moved_champion: Path
) -> None:
    from evaluation.logprobs import reply_logprobs
    from evaluation.replies import load_policy

    rows = shorter_wins(40, first=4000, seed=9).to_pydict()
    old, new = (load_policy(tiny_base, a) for a in (moved_champion, undisturbed.adapter))
    better, worse = (
        reply_logprobs(new, rows["prompt"], rows[s]).total
        - reply_logprobs(old, rows["prompt"], rows[s]).total
        for s in ("chosen", "rejected")
    )
    assert (better > worse).mean() > 0.7  # 0.5 + 2.5 standard deviations


def test_the_adapter_is_plain_and_holds_no_path_of_this_machine(
    undisturbed: TrainResult, moved_champion: Path, tiny_base: Path
) -> None:
    names = sorted(contents(undisturbed.adapter))
    assert names == ["adapter_config.json", "adapter_model.safetensors"]  # no copy of the reference either
    for file in undisturbed.adapter.iterdir():
        for place in (tiny_base, moved_champion, undisturbed.adapter.parent):
            assert str(place).encode() not in file.read_bytes()
    about = json.loads((undisturbed.adapter / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == "test:tiny"
    champion = json.loads((moved_champion / "adapter_config.json").read_text())
    assert {k: about[k] for k in ("r", "lora_alpha")} == {k: champion[k] for k in ("r", "lora_alpha")}
    assert sorted(p.name for p in undisturbed.adapter.parent.iterdir()) == ["adapter", "result.json"]


def test_a_finished_update_is_returned_as_it_is(
    undisturbed: TrainResult, moved_champion: Path, tmp_path: Path
) -> None:
    before = contents(undisturbed.adapter)
    started = time.perf_counter()
    again = update(tmp_path / "no base is needed", moved_champion, undisturbed.adapter.parent)
    assert time.perf_counter() - started < 0.5
    assert again == undisturbed
    assert contents(again.adapter) == before


def test_killed_and_run_again_gives_the_undisturbed_adapter(
    undisturbed: TrainResult, tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    output = tmp_path / "update"
    pq.write_table(shorter_wins(24), tmp_path / "rows.parquet")
    spec = {
        "config": CONFIG.model_dump_json(),
        "base": str(tiny_base),
        "champion": str(moved_champion),
        "rows": str(tmp_path / "rows.parquet"),
        "output": str(output),
        "seed": 7,
        "threads": torch.get_num_threads(),
        "kill_at": 5,
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.training.killed", str(tmp_path / "spec.json")],
        cwd=ROOT,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert sorted(p.name for p in output.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    assert not (output / "adapter").exists()
    # A process killed while it writes a checkpoint leaves one without its last file; power loss, empty files.
    shutil.copytree(output / "checkpoint-4", output / "checkpoint-5")
    (output / "checkpoint-5" / "trainer_state.json").unlink()
    shutil.copytree(output / "checkpoint-4", output / "checkpoint-6")
    (output / "checkpoint-6" / "optimizer.pt").write_bytes(b"")
    steps: list[int] = []
    resumed = update(tiny_base, moved_champion, output, on_step=lambda step, _total, _m: steps.append(step))
    assert steps == [5, 6]
    assert contents(resumed.adapter) == contents(undisturbed.adapter)
    assert resumed.curve == undisturbed.curve
    assert sorted(p.name for p in output.iterdir()) == ["adapter", "result.json"]


@pytest.mark.parametrize("after", ["last checkpoint", "adapter"])
def test_killed_after_the_last_step_it_only_finishes(
    after: str,
    undisturbed: TrainResult,
    tiny_base: Path,
    moved_champion: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = {"last checkpoint": "save_adapter", "adapter": "write_result"}[after]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fit, where, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        update(tiny_base, moved_champion, tmp_path)
    assert (tmp_path / "adapter").exists() == (after == "adapter")
    resumed = update(tiny_base, moved_champion, tmp_path)
    assert contents(resumed.adapter) == contents(undisturbed.adapter)
    assert resumed.curve == undisturbed.curve
    assert resumed.metrics["margin"] == undisturbed.metrics["margin"]


def test_an_unreadable_checkpoint_is_dropped_and_training_starts_again(
    undisturbed: TrainResult, tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4, "log_hist')
    steps: list[int] = []
    result = update(tiny_base, moved_champion, tmp_path, on_step=lambda step, _total, _m: steps.append(step))
    assert steps == [1, 2, 3, 4, 5, 6]
    assert contents(result.adapter) == contents(undisturbed.adapter)


def test_rows_of_other_splits_change_nothing(
    undisturbed: TrainResult, tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    other = [row(100 + n, chosen="Never read.", split=s) for n, s in enumerate(("test", "evaluation") * 5)]
    rows = table(other + list(reversed(shorter_wins(24).to_pylist())))
    result = update(tiny_base, moved_champion, tmp_path, rows=rows)
    assert contents(result.adapter) == contents(undisturbed.adapter)


def test_every_row_of_the_train_split_is_used_or_counted(
    tiny_base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    extra = [
        row(200, rejected="many words " * 80),
        row(201, rejected=None, label=False),
        row(202, margin=0.0),
    ]
    rows = table([*shorter_wins(20).to_pylist(), *extra])
    result = update(tiny_base, fresh_champion, tmp_path, rows=rows, epochs=0.5)
    assert result.left_out == {"unpaired": 1, "tie_or_zero_weight": 1, "not_rendered": 1}
    assert result.metrics["pairs"] + sum(result.left_out.values()) == rows.num_rows


def test_too_few_pairs_exit_with_code_4(tiny_base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughPreferences, match="15 usable pairs") as caught:
        update(tiny_base, fresh_champion, tmp_path, rows=shorter_wins(15))
    assert caught.value.exit_code == 4
    assert isinstance(caught.value, TrainingError)
    assert not (tmp_path / "adapter").exists()


def test_batch_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="must divide"):
        dpo.Config(batch_pairs=8, micro_batch_pairs=3)


def test_a_diverged_run_stops_and_writes_no_adapter(
    tiny_base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    losses: list[float] = []
    for _ in range(2):  # run again, it goes on from a checkpoint of the diverged run: still refused
        with pytest.raises(TrainingError, match="diverged") as caught:
            update(
                tiny_base,
                fresh_champion,
                tmp_path,
                learning_rate=1e30,
                on_step=lambda _step, _total, logs: losses.append(logs["loss"]),
            )
        assert "learning_rate" in str(caught.value.next_step)
        assert not (tmp_path / "adapter").exists()
        assert not (tmp_path / "result.json").exists()
    # Logged as it is, not as 0, and the six steps were not run to their end.
    assert math.isnan(losses[-1])
    assert len(losses) < 6


def test_weights_that_overflow_in_the_last_step_are_refused(
    tiny_base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="a weight that is not finite"):
        update(
            tiny_base,
            fresh_champion,
            tmp_path,
            learning_rate=1e39,
            rows=shorter_wins(16),
            batch_pairs=16,
            epochs=1,
            warmup_share=0.0,
            schedule="constant",
        )
    assert not (tmp_path / "adapter").exists()
