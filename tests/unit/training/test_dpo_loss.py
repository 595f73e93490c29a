"""The loss of the installed TRL against the paper's formula, log-probabilities computed token by token."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from feedback.served import SERVED
from tests.unit.reward_models.made import row, shorter_wins, table
from training import losses, trl_on_cpu
from training.dpo import Config, Objective, pair_items
from training.fit import load_champion
from training.logprobs import token_logprobs
from training.pairs import choose_pairs
from training.policy_trainer import Item
from training.update import Champion, Data

PAIRS, SIDES = 4, ("chosen", "rejected")
OTHER_WEIGHT = 0.7


def trl_trainer(base: Path, champion: Path, output: Path, **settings: Any) -> Any:
    """TRL's own trainer with its defaults, on the pairs that the loss here is given."""
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), str(champion), is_trainable=True
    )
    rows = [
        {"prompt": r["prompt"], **{side: [{"role": "assistant", "content": r[side]}] for side in SIDES}}
        for r in shorter_wins(PAIRS).to_pylist()
    ]
    return DPOTrainer(
        model=model,
        args=DPOConfig(
            output_dir=str(output),
            per_device_train_batch_size=PAIRS,
            use_cpu=True,
            report_to="none",
            bf16=False,
            **settings,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(base),
    )


def batch_of(trainer: Any) -> dict[str, torch.Tensor]:
    return trainer.data_collator([trainer.train_dataset[k] for k in range(PAIRS)])


def ours(base: Path, champion: Path, **settings: Any) -> tuple[Any, Objective, list[Item]]:
    """A policy that has moved away from the champion, the loss, and its pairs with the champion's log-probabilities."""
    config = Config(min_pairs=1, max_tokens=128, **settings)
    items, _, _ = pair_items(config, Champion(base, "test:tiny", champion), data_of(shorter_wins(PAIRS)), 0)
    model = load_champion(Champion(base, "test:tiny", champion)).eval()
    with torch.no_grad():
        items = [replace(item, reference=tuple(token_logprobs(model, item.sequences))) for item in items]
    move(model)
    return model, Objective(config), items


def data_of(rows: pa.Table) -> Data:
    """Preference rows of which nothing that was served is known."""
    return Data(rows, SERVED.empty_table())


def move(model: Any) -> None:
    """Change the policy's adapter, not the reference's."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".default." in name:
                weight.add_(0.05 * torch.randn_like(weight))


def reply_logprobs(base: Path, adapter: Path | dict[str, torch.Tensor], champion: Path) -> list[list[float]]:
    """Per reply (all chosen, then all rejected), log p of each of its tokens; one plain forward pass each."""
    from peft import PeftModel, set_peft_model_state_dict
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(champion)).eval()
    if isinstance(adapter, dict):
        set_peft_model_state_dict(model, adapter)
    rows = shorter_wins(PAIRS).to_pylist()
    out = []
    for side in ("chosen", "rejected"):
        for r in rows:
            head = tokenizer.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True)
            start = len(tokenizer(head, add_special_tokens=False)["input_ids"])
            ids = tokenizer(head + r[side] + "<|im_end|>\n", add_special_tokens=False)["input_ids"]
            with torch.inference_mode():
                logp = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
            out.append([float(logp[k - 1, ids[k]]) for k in range(start, len(ids))])
    return out


def loss_by_hand(policy: list[list[float]], reference: list[list[float]], beta: float, sft: float) -> float:
    total = 0.0
    for k in range(PAIRS):
        better = sum(policy[k]) - sum(reference[k])
        worse = sum(policy[PAIRS + k]) - sum(reference[PAIRS + k])
        total += math.log(1 + math.exp(-beta * (better - worse))) / PAIRS
    return total - sft * sum(sum(reply) / len(reply) for reply in policy[:PAIRS]) / PAIRS


@pytest.mark.parametrize(("beta", "sft_weight"), [(0.1, 0.0), (0.5, 0.0), (0.1, OTHER_WEIGHT)])
def test_loss_equals_the_papers_formula(
    beta: float, sft_weight: float, tiny_base: Path, moved_champion: Path
) -> None:
    from peft import get_peft_model_state_dict

    model, objective, items = ours(tiny_base, moved_champion, beta=beta, sft_weight=sft_weight)
    moved = {k: v.clone() for k, v in get_peft_model_state_dict(model, adapter_name="default").items()}
    loss = float(objective.terms(model, items, None).losses.mean())
    # The reference is the champion as it is on disk, not the bare base.
    policy = reply_logprobs(tiny_base, moved, moved_champion)
    reference = reply_logprobs(tiny_base, moved_champion, moved_champion)
    assert loss == pytest.approx(loss_by_hand(policy, reference, beta, sft_weight), rel=2e-5)
    assert abs(loss - math.log(2)) > 1e-3  # the policy has moved: the comparison can tell


@pytest.mark.parametrize(
    "settings",
    [{"loss": "sigmoid"}, {"loss": "ipo"}, {"loss": "robust", "label_noise": 0.2}],
    ids=lambda settings: settings["loss"],
)
def test_loss_and_gradient_are_those_of_trl(
    settings: dict[str, Any], tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    model, objective, items = ours(tiny_base, moved_champion, **settings)
    loss = objective.terms(model, items, None).losses.mean()
    loss.backward()
    trainer = trl_trainer(
        tiny_base,
        moved_champion,
        tmp_path,
        loss_type=[settings["loss"]],
        label_smoothing=settings.get("label_noise", 0.0),
    )
    move(trainer.model)
    theirs = trainer.compute_loss(trainer.model.eval(), batch_of(trainer))
    theirs.backward()
    assert float(loss) == pytest.approx(float(theirs), rel=2e-5)
    expected = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert set(found) == set(expected) and len(found) == 28
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("cut", [1, 3])
def test_the_gradient_of_a_step_does_not_depend_on_its_micro_batches(
    cut: int, tiny_base: Path, moved_champion: Path
) -> None:
    model, objective, items = ours(tiny_base, moved_champion, sft_weight=OTHER_WEIGHT)
    gradients = []
    for size in (PAIRS, cut):
        model.zero_grad()
        for start in range(0, PAIRS, size):
            (objective.terms(model, items[start : start + size], None).losses.sum() / PAIRS).backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-7)


def test_weights_and_margins_of_rows_count(tiny_base: Path, moved_champion: Path) -> None:
    rows = table(
        [row(1, weight=1.0, margin=1.0), row(2, weight=0.5, margin=1.0), row(3, weight=1.0, margin=0.5)]
    )
    by_margin = {0.5: 0.5, 1.0: 1.0}
    for margins in ("weight", "ignore", "offset"):
        items, _, _ = pair_items(
            Config(min_pairs=1, margins=margins), Champion(tiny_base, "b", tiny_base), data_of(rows), 0
        )
        chosen = choose_pairs(rows, most=9, seed=0).rows.to_pylist()
        raw = [r["weight"] * (by_margin[r["margin"]] if margins == "weight" else 1) for r in chosen]
        assert [i.values["weight"] for i in items] == pytest.approx([w * 3 / sum(raw) for w in raw])
    # Drawn by weight, they do not count by weight again.
    few, left_out, _ = pair_items(
        Config(min_pairs=1, max_pairs=2, margins="ignore"),
        Champion(tiny_base, "b", tiny_base),
        data_of(rows),
        0,
    )
    assert left_out == {"over_max_rows": 1}
    assert [item.values["weight"] for item in few] == [1.0, 1.0]
    asked = losses.dpo(torch.tensor([2.0]), torch.tensor([0.0]), beta=0.5, offset=torch.tensor([0.25]))
    assert float(asked) == pytest.approx(math.log(1 + math.exp(-0.75)))


def test_hand_computed_loss_itself() -> None:
    # beta 0.5; log-ratios: chosen -1 - -2 = 1, rejected -3 - -1 = -2; -log s(0.5 * 3) = log(1 + e^-1.5).
    policy = [[-0.4, -0.6]] * PAIRS + [[-3.0]] * PAIRS
    reference = [[-2.0]] * PAIRS + [[-0.5, -0.5]] * PAIRS
    assert loss_by_hand(policy, reference, 0.5, 0) == pytest.approx(0.2014132779)
    assert loss_by_hand(policy, reference, 0.5, 1) == pytest.approx(0.2014132779 + 0.5)


def _loss_and_gradients(trainer: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch_of(trainer))
    loss.backward()
    grads = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
    return loss.detach(), grads


def test_scoring_needed_positions_only_changes_neither_loss_nor_gradient_of_trl(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    trainer = trl_trainer(tiny_base, moved_champion, tmp_path)
    move(trainer.model)
    loss, gradients = _loss_and_gradients(trainer)
    with trl_on_cpu.only_needed_positions() as switched:
        assert switched
        faster_loss, faster = _loss_and_gradients(trainer)
    torch.testing.assert_close(faster_loss, loss, rtol=1e-5, atol=0)
    assert set(faster) == set(gradients) and len(gradients) == 28
    assert all(".default." in name for name in gradients)  # the reference is never trained
    for name, gradient in gradients.items():
        torch.testing.assert_close(faster[name], gradient, rtol=1e-3, atol=1e-7)
        assert gradient.abs().max() > 0


def _library() -> tuple[Any, ...]:
    import trl.kernels.chunked_logprob as kernel
    import trl.trainer.utils as utils

    return utils._use_triton, utils._CHUNKED_LOGPROB_CHUNK_SIZE, kernel.TOKEN_CHUNK_SIZE


def test_the_library_is_as_it_was_afterwards() -> None:
    before = _library()
    with pytest.raises(KeyError), trl_on_cpu.only_needed_positions() as switched:
        assert switched
        assert _library() != before
        raise KeyError
    assert _library() == before


def test_another_trl_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _library()
    monkeypatch.setattr(trl_on_cpu, "PATCHED_TRL", "1.15.0")
    with trl_on_cpu.only_needed_positions() as switched:
        assert not switched
        assert _library() == before


def test_pairs_longer_than_max_tokens_are_left_out_whole(tiny_base: Path) -> None:
    rows = table([row(1), row(2, rejected="many words " * 80), row(3)])
    config = Config(min_pairs=2, max_tokens=64)
    items, left_out, _ = pair_items(config, Champion(tiny_base, "b", tiny_base), data_of(rows), 0)
    assert left_out == {"not_rendered": 1}
    assert len(items) == 2
    # A pair that is too long does not use up the limit.
    assert (
        len(
            pair_items(
                config.model_copy(update={"max_pairs": 2}),
                Champion(tiny_base, "b", tiny_base),
                data_of(rows),
                0,
            )[0]
        )
        == 2
    )
