"""Several methods in one step: shares hold, replay has its share, budgets bound the distance, resume is exact."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from feedback.served import SERVED
from tests.unit.reward_models.made import row, shorter_wins, table, text
from tests.unit.training.served import served_row, served_rows
from tests.unit.training.test_adapter import contents
from tests.unit.training.test_kto import thumbs
from training import dpo, kto, mix
from training.errors import NotEnoughPreferences
from training.fit import load_champion
from training.leash import Leash
from training.logprobs import token_logprobs
from training.policy_trainer import Item
from training.result import TrainResult
from training.sequences import Tokens
from training.update import Champion, Data, Run

CONFIG = mix.Config(
    shares={"dpo": 0.5, "kto": 0.25, "words": 0.25},
    learning_rate=3e-3, epochs=1, batch_rows=8, micro_batch_rows=3, max_tokens=160, save_every_steps=2,
    dpo=dpo.Config(min_pairs=4), kto=kto.Config(min_rows=4), words={"min_rows": 4},
)  # fmt: skip


def rows() -> Data:
    dice = random.Random(2)
    both = pa.concat_tables([shorter_wins(16), thumbs(12, first=500)])
    said = [served_row(n, text(6, dice), next_message="Shorter, please.") for n in range(8)]
    return Data(both, served_rows(said))


def update(base: Path, champion: Path, output: Path, **changes: Any) -> TrainResult:
    on_step, data = changes.pop("on_step", None), changes.pop("data", None)
    return mix.train(
        CONFIG.model_copy(update=changes),
        Champion(base, "test:tiny", champion, "champion"),
        data or rows(),
        None,
        Run(output, 7, on_step=on_step),
    )


def test_every_step_has_all_methods_and_a_stopped_run_ends_alike(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    whole = update(tiny_base, moved_champion, tmp_path / "whole", kl_budget=0.01)
    assert whole.metrics["dpo_rows"] == 16
    assert whole.metrics["kto_rows"] == 12
    assert whole.metrics["words_rows"] == 8
    assert len(whole.curve) == 5  # 36 rows by 8
    for entry in whole.curve:
        assert {"dpo/loss", "kto/loss", "words/loss", "kl", "kl_weight"} <= set(entry)
        parts = 0.5 * entry["dpo/loss"] + 0.25 * entry["kto/loss"] + 0.25 * entry["words/loss"]
        assert entry["loss"] == pytest.approx(parts + entry["kl_weight"] * entry["kl"], rel=1e-3)

    def stop(step: int, _total: int, _metrics: dict[str, float]) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update(tiny_base, moved_champion, tmp_path / "cut", kl_budget=0.01, on_step=stop)
    again = update(tiny_base, moved_champion, tmp_path / "cut", kl_budget=0.01)
    assert again.curve == whole.curve
    assert contents(again.adapter) == contents(whole.adapter)


def test_a_method_without_rows_leaves_its_share_to_the_others(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    result = update(tiny_base, moved_champion, tmp_path, data=Data(shorter_wins(8), SERVED.empty_table()))
    assert result.metrics["dpo_rows"] == 8
    assert result.left_out["kto: too few rows"] == 1
    assert result.left_out["words: too few rows"] == 1
    entry = result.curve[0]
    assert entry["loss"] == pytest.approx(entry["dpo/loss"], rel=1e-4)
    with pytest.raises(NotEnoughPreferences, match="dpo: 0 usable pairs"):
        update(tiny_base, moved_champion, tmp_path / "none", data=Data(table([]), SERVED.empty_table()))


def test_replay_has_its_share_of_every_step() -> None:
    def item(number: int, old: bool) -> Item:
        return Item((Tokens((number,), (1,)),), {"old": float(old)}, part="dpo")

    items = [item(n, n < 10) for n in range(50)]
    config = CONFIG.model_copy(update={"replay": 0.25, "epochs": 2.0})
    steps = mix.put_together(items, {"dpo": 1.0}, config, 0)
    assert len(steps) == 13
    assert all(sum(i < 10 for i in step) == 2 and len(step) == 8 for step in steps)
    shown = [i for step in steps for i in step]
    assert {shown.count(i) for i in range(10, 50)} <= {1, 2}  # none again before all
    # Where all is new, or all is old, there is nothing to replay.
    assert all(len(step) == 8 for step in mix.put_together(items[10:], {"dpo": 1.0}, config, 0))
    assert all(len(step) == 8 for step in mix.put_together(items[:10], {"dpo": 1.0}, config, 0))


def test_what_the_champion_learned_from_is_old(tiny_base: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made = [row(n, event_time=start + timedelta(days=n)) for n in range(6)]
    data = Data(table(made), SERVED.empty_table(), learned_until=start + timedelta(days=2))
    config = CONFIG.model_copy(update={"shares": {"dpo": 1.0}})
    parts, _ = mix._parts(config, Champion(tiny_base, "b", tiny_base), data, 0)
    assert sorted(item.values["old"] for item in parts["dpo"]) == [0.0] * 3 + [1.0] * 3


def test_a_leash_pulls_harder_beyond_its_budget_and_goes_on_after_a_resume() -> None:
    leash = Leash("kl", 0.1, 0.5)
    assert leash.weight([]) == 0.1
    assert leash.weight([{"kl": 0.55, "kl_weight": 0.1}]) == pytest.approx(0.1 * 1.01)
    assert leash.weight([{"kl": 9.0, "kl_weight": 0.1}]) == pytest.approx(0.1 * 1.02)  # no more than a fifth
    assert leash.weight([{"kl": 0.0, "kl_weight": 0.1}, {"loss": 1.0}]) == pytest.approx(0.1 * 0.98)
    assert Leash("kl", 0.1, None).weight([{"kl": 9.0, "kl_weight": 0.3}]) == 0.1
    item = Item((), {}, (torch.tensor([-1.0, -1.0]), torch.tensor([-2.0])))
    far = leash.distance(item, [torch.tensor([-1.0, -2.0]), torch.tensor([-2.0])])
    assert float(far) == pytest.approx((0 + (2.718281828 - 2) + 0) / 3, rel=1e-5)


def test_the_base_can_be_the_other_end(tiny_base: Path, moved_champion: Path, tmp_path: Path) -> None:
    result = update(
        tiny_base, moved_champion, tmp_path, shares={"dpo": 1.0}, base_kl_budget=0.5, data=Data(
            shorter_wins(8), SERVED.empty_table()
        )
    )  # fmt: skip
    first = result.curve[0]
    assert first["kl"] == pytest.approx(0.0, abs=1e-5)
    model = load_champion(Champion(tiny_base, "b", moved_champion)).eval()
    items, _, _ = dpo.pair_items(
        CONFIG.dpo, Champion(tiny_base, "b", tiny_base), Data(shorter_wins(8), SERVED.empty_table()), 7
    )
    with torch.no_grad():
        own = [token_logprobs(model, item.sequences) for item in items]
        with model.disable_adapter():
            base = [token_logprobs(model, item.sequences) for item in items]
    leash = Leash("kl_base", 0.0, 0.5)
    far = [float(leash.distance(Item((), {}, (), tuple(b)), o)) for o, b in zip(own, base, strict=True)]
    assert first["kl_base"] == pytest.approx(sum(far) / len(far), rel=1e-3)
    assert first["kl_base"] > 1e-3
