"""The loss of the installed TRL against the paper's formula, log-probabilities computed token by token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.reward_models.made import row, shorter_wins, table
from training import trl_on_cpu
from training.dpo import Config, _choose, _trainer

PAIRS = 4
OTHER_WEIGHT = 0.7


def trainer_on(base: Path, champion: Path, output: Path, **settings: Any) -> Any:
    config = Config(batch_pairs=PAIRS, micro_batch_pairs=PAIRS, min_pairs=1, max_tokens=128, **settings)
    return _trainer(config, base, champion, shorter_wins(PAIRS), output, 0, None)


def batch_of(trainer: Any) -> dict[str, torch.Tensor]:
    return trainer.data_collator([trainer.train_dataset[k] for k in range(PAIRS)])


def move(trainer: Any) -> None:
    """Change the policy's adapter, not the reference's."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
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
    chosen_tokens = [t for reply in policy[:PAIRS] for t in reply]
    return total - sft * sum(chosen_tokens) / len(chosen_tokens)


@pytest.mark.parametrize(("beta", "sft_weight"), [(0.1, 0.0), (0.5, 0.0), (0.1, OTHER_WEIGHT)])
@pytest.mark.parametrize("patched", [False, True])
def test_loss_equals_the_papers(
    beta: float, sft_weight: float, patched: bool, tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    from peft import get_peft_model_state_dict

    trainer = trainer_on(tiny_base, moved_champion, tmp_path, beta=beta, sft_weight=sft_weight)
    move(trainer)
    moved = {
        k: v.clone() for k, v in get_peft_model_state_dict(trainer.model, adapter_name="default").items()
    }
    if patched:
        with trl_on_cpu.only_needed_positions():
            loss = float(trainer.compute_loss(trainer.model, batch_of(trainer)))
    else:
        loss = float(trainer.compute_loss(trainer.model, batch_of(trainer)))
    # The reference is the champion as it is on disk, not the bare base.
    policy = reply_logprobs(tiny_base, moved, moved_champion)
    reference = reply_logprobs(tiny_base, moved_champion, moved_champion)
    assert loss == pytest.approx(loss_by_hand(policy, reference, beta, sft_weight), rel=2e-5)
    assert abs(loss - math.log(2)) > 1e-3  # the policy has moved: the comparison can tell


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


def test_scoring_needed_positions_only_changes_neither_loss_nor_gradient(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    trainer = trainer_on(tiny_base, moved_champion, tmp_path, sft_weight=OTHER_WEIGHT)
    move(trainer)
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
    chosen = _choose(config, tiny_base, rows, 0)
    assert chosen.left_out == {"longer_than_max_tokens": 1}
    assert chosen.rows.num_rows == 2
    # A pair that is too long does not use up the limit.
    assert _choose(config.model_copy(update={"max_pairs": 2}), tiny_base, rows, 0).rows.num_rows == 2
