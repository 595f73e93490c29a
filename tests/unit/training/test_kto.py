"""KTO: thumbs go straight in, odd batches and single rows have their KL, a killed run ends as an undisturbed one."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from feedback.served import SERVED
from tests.unit.reward_models.made import row, table, text
from tests.unit.training.test_adapter import contents
from training import kto, losses
from training.errors import NotEnoughPreferences
from training.fit import load_champion
from training.logprobs import token_logprobs
from training.result import TrainResult
from training.sequences import Tokens
from training.update import Champion, Data, Run

CONFIG = kto.Config(
    learning_rate=3e-3,
    epochs=2,
    batch_rows=8,
    micro_batch_rows=4,
    max_tokens=96,
    save_every_steps=2,
    beta=0.5,
)
ROOT = Path(__file__).parents[3]


def thumbs(count: int, *, first: int = 0, liked: float = 0.5) -> pa.Table:
    """Short replies are liked, long ones disliked; `liked` is the share of the liked ones."""
    dice = random.Random(first)
    rows = []
    for n in range(first, first + count):
        up = dice.random() < liked
        reply = text(3 if up else 14, dice)
        rows.append(row(n, chosen=reply, rejected=None, label=up, rule="unpaired"))
    return table(rows)


def data_of(rows: pa.Table) -> Data:
    return Data(rows, SERVED.empty_table())


def update(base: Path, champion: Path, output: Path, **changes: Any) -> TrainResult:
    rows, on_step = changes.pop("rows", None), changes.pop("on_step", None)
    return kto.train(
        CONFIG.model_copy(update=changes),
        Champion(base, "test:tiny", champion),
        Data(thumbs(24) if rows is None else rows, SERVED.empty_table()),
        None,
        Run(output, 7, on_step=on_step),
    )


@pytest.fixture(scope="module")
def undisturbed(
    tiny_base: Path, moved_champion: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainResult:
    return update(tiny_base, moved_champion, tmp_path_factory.mktemp("undisturbed"))


def test_it_starts_at_the_champion_and_parts_liked_from_disliked(undisturbed: TrainResult) -> None:
    first, last = undisturbed.curve[0], undisturbed.curve[-1]
    assert first["loss"] == pytest.approx(0.5, abs=0.1)  # 1 - s(0), times weights that are 1 on average
    assert (first["reward_liked"], first["reward_disliked"]) == pytest.approx((0.0, 0.0), abs=1e-5)
    assert first["kl_of_others"] == pytest.approx(0.0, abs=1e-5)
    assert last["reward_liked"] - last["reward_disliked"] > 0.1
    assert undisturbed.metrics["rows"] == 24
    assert undisturbed.metrics["steps"] == 6


def test_killed_and_run_again_gives_the_undisturbed_adapter(
    undisturbed: TrainResult, tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    output = tmp_path / "update"
    pq.write_table(thumbs(24), tmp_path / "rows.parquet")
    spec = {
        "method": "kto", "config": CONFIG.model_dump_json(), "base": str(tiny_base), "champion": str(moved_champion),
        "rows": str(tmp_path / "rows.parquet"), "output": str(output), "seed": 7,
        "threads": torch.get_num_threads(), "kill_at": 5,
    }  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.training.killed", str(tmp_path / "spec.json")],
        cwd=ROOT, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    steps: list[int] = []
    resumed = update(tiny_base, moved_champion, output, on_step=lambda step, _total, _m: steps.append(step))
    assert steps == [5, 6]
    assert contents(resumed.adapter) == contents(undisturbed.adapter)
    assert resumed.curve == undisturbed.curve


def test_losses_by_hand() -> None:
    # beta 0.5, KL 0.4: liked at ratio 1: 1 - s(0.3); disliked at ratio 1: 1 - s(-0.3).
    got = losses.kto(torch.tensor([1.0, 1.0]), torch.tensor([True, False]), 0.4, beta=0.5)
    assert got.tolist() == pytest.approx([1 - 1 / (1 + math.exp(-0.3)), 1 - 1 / (1 + math.exp(0.3))])
    assert float(losses.kto_kl(torch.tensor([0.5, 0.1, 0.0]))) == pytest.approx(0.2)
    assert float(losses.kto_kl(torch.tensor([-3.0, 0.5]))) == 0.0
    assert float(losses.kto_kl(torch.tensor([0.25]))) == 0.25  # one row is a batch like any other


@pytest.mark.parametrize("cut", [1, 3])
def test_the_gradient_of_a_step_does_not_depend_on_its_micro_batches(
    cut: int, tiny_base: Path, moved_champion: Path
) -> None:
    items, _, _ = kto.reply_items(
        CONFIG.model_copy(update={"min_rows": 1}), Champion(tiny_base, "b", tiny_base), data_of(thumbs(5)), 0
    )
    model = load_champion(Champion(tiny_base, "test:tiny", moved_champion)).eval()
    with torch.no_grad():
        items = [replace(item, reference=tuple(token_logprobs(model, item.sequences))) for item in items]
        for name, weight in model.named_parameters():
            if ".default." in name:
                weight.add_(
                    0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name)))
                )
    gradients, kls = [], []
    for size in (5, cut):
        objective = kto.Objective(CONFIG.model_copy(update={"micro_batch_rows": size}))
        model.zero_grad()
        with torch.no_grad():
            step = objective.prepare(model, items)
        kls.append(float(step))
        for start in range(0, 5, size):
            (objective.terms(model, items[start : start + size], step).losses.sum() / 5).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert kls[1] == pytest.approx(kls[0], rel=1e-5)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-6)


def test_every_prompt_meets_another_prompts_reply_that_fits() -> None:
    replies = [Tokens((k, k), (10 + k,) * (k + 1)) for k in range(5)] + [Tokens((9,) * 6, (1,))]
    others = kto.mismatched(replies, [str(k) for k in range(6)], 7, 0)
    assert [o is not None for o in others] == [True] * 6
    for own, other in zip(replies, others, strict=True):
        assert other is not None
        assert other.prompt == own.prompt
        assert other.completion != own.completion
        assert len(other) <= 7
    assert kto.mismatched(replies[:1], ["0"], 7, 0) == [None]


def test_a_rare_side_weighs_as_much_as_the_common_one(tiny_base: Path) -> None:
    rows = thumbs(40, liked=0.9)
    up = sum(rows["label"].to_pylist())
    config = CONFIG.model_copy(update={"min_rows": 1})
    items, left_out, _ = kto.reply_items(config, Champion(tiny_base, "b", tiny_base), data_of(rows), 0)
    sums = {side: sum(i.values["weight"] for i in items if i.values["liked"] == side) for side in (0.0, 1.0)}
    assert sums[0.0] == pytest.approx(sums[1.0])
    assert sum(sums.values()) == pytest.approx(40) and up not in (0, 40)
    assert left_out == {}
    capped, _, _ = kto.reply_items(
        config.model_copy(update={"max_balance": 2.0}), Champion(tiny_base, "b", tiny_base), data_of(rows), 0
    )
    by_side = {i.values["liked"]: i.values["weight"] for i in capped}
    assert by_side[0.0] / by_side[1.0] == pytest.approx(2.0)


def test_pairs_and_too_few_rows(tiny_base: Path) -> None:
    rows = table([*thumbs(10).to_pylist(), row(900), row(901, rejected=None, label=None)])
    with pytest.raises(NotEnoughPreferences, match="10 usable rows") as caught:
        kto.reply_items(CONFIG, Champion(tiny_base, "b", tiny_base), data_of(rows), 0)
    assert caught.value.exit_code == 4
    _, left_out, _ = kto.reply_items(
        CONFIG.model_copy(update={"min_rows": 10}), Champion(tiny_base, "b", tiny_base), data_of(rows), 0
    )
    assert left_out == {"paired": 2}
