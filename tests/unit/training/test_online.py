"""Live replies: rewards, baselines and weights by hand; the policy moves to what users accept; refusals are clear."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from feedback.tables import PREFERENCES
from tests.unit.reward_models.made import text
from tests.unit.training.served import served_row, served_rows
from tests.unit.training.test_adapter import contents
from training import losses, online
from training.errors import NotEnoughPreferences
from training.policy_trainer import Item
from training.result import TrainResult
from training.sequences import Tokens
from training.update import Champion, Data, Run

CONFIG = online.Config(
    learning_rate=3e-3,
    epochs=3,
    batch_rows=8,
    micro_batch_rows=4,
    max_tokens=96,
    min_rows=8,
    save_every_steps=2,
)


def live(count: int) -> pa.Table:
    """Short replies are accepted, long ones rejected; every third reply meets silence."""
    dice = random.Random(3)
    rows = []
    for n in range(count):
        short = n % 2 == 0
        rows.append(
            served_row(
                n, text(3 if short else 14, dice), verdict=None if n % 3 == 2 else (1 if short else -1)
            )
        )
    return served_rows(rows)


def update(base: Path, champion: Path, output: Path, served: pa.Table, **changes: Any) -> TrainResult:
    on_step = changes.pop("on_step", None)
    return online.train(
        CONFIG.model_copy(update=changes),
        Champion(base, "test:tiny", champion, "champion"),
        Data(PREFERENCES.empty_table(), served),
        None,
        Run(output, 7, on_step=on_step),
    )


def item(logged: float, champion: float) -> Item:
    return Item((Tokens((1,), (2,)),), {"logged": logged, "weight": 1.0}, (torch.tensor([champion]),))


def test_rewards_less_style_and_the_mean_of_the_others() -> None:
    class One:
        def __init__(self, verdict: int | None, reply: str) -> None:
            self.row = served_row(0, reply, verdict=verdict)

    rows: Any = [One(1, "Yes."), One(-1, "No."), One(None, "Well.")]
    assert online.rewards_of(CONFIG, rows).tolist() == [0.75, -0.25, 0.0]
    costly = CONFIG.model_copy(update={"style_costs": {"log_words": 0.1}})
    assert online.rewards_of(costly, rows) == pytest.approx(
        [0.75 - 0.1 * math.log(2), -0.25 - 0.1 * math.log(2), -0.1 * math.log(2)]
    )
    # Two of agent a, one of b alone: a's baselines are each other, b's is the mean of all others.
    gains = online.advantages(np.array([1.0, 0.0, 0.5]), ["a", "a", "b"])
    assert gains.tolist() == [1.0, -1.0, 0.0]
    assert online.advantages(np.array([1.0]), ["a"]).tolist() == [0.0]


def test_importance_weights_are_cut_and_their_effective_size_is_bounded() -> None:
    items = [item(-2.0, -1.0), item(-1.0, -2.0), item(math.nan, -9.0)]
    assert online.importance(items, 2.0) == pytest.approx([2.0, math.exp(-1), 1.0])  # e is cut to 2
    found = online.effective(CONFIG, items)
    w = [2.0, math.exp(-1), 1.0]
    assert found["effective_sample_size"] == pytest.approx(sum(w) ** 2 / sum(x * x for x in w))
    far = [item(-1.0, -60.0)] * 9 + [item(-1.0, -1.0)]
    with pytest.raises(online.TooFewEffective, match=r"effective sample size of 1\.0 of 10") as caught:
        online.effective(CONFIG, far)
    assert caught.value.exit_code == 4


def test_the_surrogate_by_hand() -> None:
    # Ratios e^0.5 = 1.65 and e^-0.5 = 0.61; with A > 0 the first is cut at 1.2, with A < 0 the second at 0.8.
    logp, old = torch.tensor([-1.0, -2.0, -1.0, -2.0]), torch.tensor([-1.5, -1.5, -1.5, -1.5])
    gain = torch.tensor([1.0, 1.0, -1.0, -1.0])
    got = losses.policy_gradient(logp, old, gain)
    assert got.tolist() == pytest.approx([-1.2, -math.exp(-0.5), math.exp(0.5), 0.8])
    kl = losses.kl_to_reference(torch.tensor([-1.0]), torch.tensor([-1.5]))
    assert float(kl) == pytest.approx(math.exp(-0.5) - 1 + 0.5)


def test_the_policy_moves_to_what_users_accept(tiny_base: Path, moved_champion: Path, tmp_path: Path) -> None:
    from evaluation.logprobs import reply_logprobs
    from evaluation.replies import load_policy

    result = update(tiny_base, moved_champion, tmp_path, live(48))
    assert result.curve[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert result.metrics["rows"] == 48
    assert result.metrics["effective_share"] == 1.0
    dice = random.Random(9)
    prompt = [{"role": "user", "content": "What about number 77?"}]
    replies = [text(3, dice) for _ in range(20)] + [text(14, dice) for _ in range(20)]
    old, new = (load_policy(tiny_base, a) for a in (moved_champion, result.adapter))
    moved = (
        reply_logprobs(new, [prompt] * 40, replies).per_token
        - reply_logprobs(old, [prompt] * 40, replies).per_token
    )
    assert moved[:20].mean() > moved[20:].mean() + 0.01


def test_stopped_and_run_again_gives_the_same_adapter(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    rows = live(24)
    whole = update(tiny_base, moved_champion, tmp_path / "whole", rows)

    def stop(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update(tiny_base, moved_champion, tmp_path / "cut", rows, on_step=stop)
    steps: list[int] = []
    again = update(
        tiny_base, moved_champion, tmp_path / "cut", rows, on_step=lambda step, _total, _m: steps.append(step)
    )
    assert steps[0] == 5
    assert contents(again.adapter) == contents(whole.adapter)


def test_what_cannot_be_used_is_counted(tiny_base: Path, moved_champion: Path, tmp_path: Path) -> None:
    rows = [served_row(n, "Yes.", verdict=1, adapter_digest="another") for n in range(5)]
    rows += [served_row(10 + n, "Yes.") for n in range(4)]
    with pytest.raises(NotEnoughPreferences, match="0 usable replies") as caught:
        update(tiny_base, moved_champion, tmp_path, served_rows(rows), silence=None)
    assert "served_by_another_policy_without_logprob: 5, silence: 4" in str(caught.value)
    logged = served_rows([replace_logprob(row) for row in rows])
    items, left_out, _ = online.reply_items(
        CONFIG.model_copy(update={"min_rows": 5, "silence": None}),
        Champion(tiny_base, "test:tiny", moved_champion, "champion"),
        Data(PREFERENCES.empty_table(), logged),
        0,
    )
    assert len(items) == 5 and left_out == {"silence": 4}
    assert all(replace(i).values["logged"] == -3.5 for i in items)


def replace_logprob(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "logprob": -3.5}


def test_an_unknown_feature_is_named() -> None:
    with pytest.raises(ValueError, match="no text feature is called words; there are log_words"):
        online.Config(style_costs={"words": 1.0})
