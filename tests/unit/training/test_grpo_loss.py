"""The loss of the installed TRL against the papers' formulas, and our micro-batches against TRL's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.training.grpo_case import BASE_ID, ENDS, SMALL, ending_base, prompts
from training import grpo, grpo_micro_batches
from training.grpo_assembly import assembled
from training.grpo_micro_batches import length_sorted, order_of, reordered, trimmed
from training.reward_sources import sources_of
from training.update import Champion, Data, Run

PROMPTS = [[5, 9, 77], [14, 3, 60, 61, 62]]
REPLIES = [[40, 41, 42, 2], [50, 51], [60, 61, 62], [70, 71, 72, 73, 74, 75]]  # two of each prompt
ADVANTAGES = [1.5, -0.5, 0.25, -2.0]
PAD = 2


@pytest.fixture(scope="module")
def base(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_base(tiny_base, tmp_path_factory.mktemp("ending") / "base")


@pytest.fixture(scope="module")
def trainer(base: Path, moved_champion: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One that is asked for losses only; tests set the kind of loss."""
    output = tmp_path_factory.mktemp("loss")
    made = trainer_on(base, moved_champion, output, beta=0.3, temperature=1.7, iterations=2, max_new_tokens=6)
    made.current_gradient_accumulation_steps = made.args.steps_per_generation = 1
    return made


def trainer_on(base: Path, champion: Path, output: Path, **changes: Any) -> Any:
    config = grpo.Config.model_validate({**SMALL, **changes})
    at, run = Champion(base, BASE_ID, champion), Run(output, 7)
    tokenizer = grpo._tokenizer(at)
    from feedback.served import SERVED

    chosen = grpo._chosen(config, tokenizer, Data(prompts(24), SERVED.empty_table()), run)
    return assembled(config, at, chosen, sources_of(config.rewards, None), tokenizer, run)


def batch(**more: Any) -> dict[str, Any]:
    """The four replies padded as TRL pads them."""
    width, longest = max(map(len, PROMPTS)), max(map(len, REPLIES))
    heads = [PROMPTS[i // 2] for i in range(4)]
    return {
        "prompt_ids": torch.tensor([[PAD] * (width - len(p)) + p for p in heads]),
        "prompt_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in heads]),
        "completion_ids": torch.tensor([r + [PAD] * (longest - len(r)) for r in REPLIES]),
        "completion_mask": torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in REPLIES]),
        "advantages": torch.tensor(ADVANTAGES),
        "num_items_in_batch": torch.tensor(sum(map(len, REPLIES))),
        **more,
    }


def logprobs(model: Any, temperature: float) -> list[list[float]]:
    """Per reply, log p of each of its tokens: one plain forward pass each, no padding."""
    out = []
    for i, reply in enumerate(REPLIES):
        ids = PROMPTS[i // 2] + reply
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0].double() / temperature
        logp = torch.log_softmax(logits, -1)
        start = len(PROMPTS[i // 2])
        out.append([float(logp[k - 1, ids[k]]) for k in range(start, len(ids))])
    return out


def padded(rows: list[list[float]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([r + [0.0] * (longest - len(r)) for r in rows])


def loss_by_hand(
    kind: str,
    new: list[list[float]],
    old: list[list[float]],
    reference: list[list[float]],
    beta: float,
    limit: int,
    kept: list[bool],
) -> float:
    """The formula of `training.grpo`, token by token."""
    rows = []
    for i, reply in enumerate(new):
        terms = []
        for t, logp in enumerate(reply):
            w, a = math.exp(logp - old[i][t]), ADVANTAGES[i]
            clipped = min(max(w, 1 - 0.2), 1 + 0.28)
            d = reference[i][t] - logp
            terms.append(-min(w * a, clipped * a) + beta * w * (math.exp(d) - 1 - d))
        rows.append(terms if kept[i] else [])
    tokens = sum(map(len, rows))
    if kind == "dr_grpo":
        return sum(map(sum, rows)) / (sum(kept) * limit)
    if kind in ("dapo", "bnpo"):
        return sum(map(sum, rows)) / tokens
    return sum(sum(r) / len(r) for r in rows if r) / sum(kept)


def shifted(rows: list[list[float]], by: float) -> list[list[float]]:
    """As if another policy had said it: some tokens beyond either bound, some within."""
    return [[x + by * math.sin(3 * i + t) for t, x in enumerate(r)] for i, r in enumerate(rows)]


@pytest.mark.parametrize("kind", ["dr_grpo", "dapo", "grpo", "bnpo"])
@pytest.mark.parametrize("masked", [False, True])
def test_loss_equals_the_papers(kind: str, masked: bool, trainer: Any) -> None:
    trainer.loss_type, trainer.rollouts.kept_share = kind, 1.0
    new = logprobs(trainer.model, 1.7)
    old, reference = shifted(new, 0.4), shifted(new, -0.2)
    kept = [True, not masked, True, True]
    inputs = batch(old_per_token_logps=padded(old), ref_per_token_logps=padded(reference))
    if masked:  # as TRL masks a reply that was cut off
        inputs["completion_mask"][1] = 0
        inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
        trainer.rollouts.kept_share = 3 / 4
    wanted = loss_by_hand(kind, new, old, reference, 0.3, 6, kept)
    assert trainer.compute_loss(trainer.model, inputs).item() == pytest.approx(wanted, rel=2e-5)
    # The comparison can tell: without clipping or without the KL it would be another number.
    ratios = [math.exp(n - o) for r, s in zip(new, old, strict=True) for n, o in zip(r, s, strict=True)]
    assert any(r > 1.28 for r in ratios) and any(r < 0.8 for r in ratios)
    assert abs(loss_by_hand(kind, new, old, reference, 0.0, 6, kept) - wanted) > 1e-4


def test_hand_computed_losses_themselves() -> None:
    # Ratio 1 and no KL: a token's loss is -A. Replies of 4, 2, 3 and 6 tokens:
    # -(1.5 * 4 - 0.5 * 2 + 0.25 * 3 - 2 * 6) = 6.25.
    same = [[-1.0] * len(r) for r in REPLIES]
    all_of_them = [True] * 4
    assert loss_by_hand("dr_grpo", same, same, same, 0.0, 10, all_of_them) == pytest.approx(6.25 / 40)
    assert loss_by_hand("dapo", same, same, same, 0.0, 10, all_of_them) == pytest.approx(6.25 / 15)
    assert loss_by_hand("grpo", same, same, same, 0.0, 10, all_of_them) == pytest.approx(0.75 / 4)
    # Without the last reply: -5.75 over 9 tokens, 3 replies.
    three = [True, True, True, False]
    assert loss_by_hand("dr_grpo", same, same, same, 0.0, 10, three) == pytest.approx(-5.75 / 30)
    assert loss_by_hand("dapo", same, same, same, 0.0, 10, three) == pytest.approx(-5.75 / 9)
    assert loss_by_hand("grpo", same, same, same, 0.0, 10, three) == pytest.approx(-1.25 / 3)


def one_step(trainer: Any, *, sort: bool) -> tuple[float, dict[str, torch.Tensor], list[int]]:
    """Loss and gradient of one optimizer step, and the columns of its micro-batches."""
    from transformers import TrainerCallback

    gradients: dict[str, torch.Tensor] = {}
    columns: list[int] = []

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(
            self,
            args: Any,  # noqa: ARG002
            state: Any,  # noqa: ARG002
            control: Any,  # noqa: ARG002
            model: Any = None,
            **_: Any,
        ) -> None:
            gradients.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

    compute = trainer._compute_loss

    def watched(model: Any, inputs: Any) -> Any:
        columns.append(inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1])
        return compute(model, inputs)

    trainer._compute_loss = watched
    trainer.add_callback(Keep())
    if sort:
        with length_sorted(trainer) as switched:
            assert switched
            trainer.train()
    else:
        trainer.train()
    return trainer.state.log_history[0]["loss"], gradients, columns


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("dr_grpo", {}),
        ("dr_grpo", {"truncated": "mask"}),
        ("dapo", {"truncated": "mask"}),
        ("grpo", {"beta": 0.0}),
        ("dapo", {"iterations": 2, "steps": 2}),
    ],
)
def test_sorted_micro_batches_change_neither_loss_nor_gradient(
    kind: str, changes: dict[str, Any], base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    given = {"steps": 1, "loss": kind, "beta": 0.2, "learning_rate": 1e-4, "max_grad_norm": 1e9, **changes}
    plain, gradients, wide = one_step(trainer_on(base, moved_champion, tmp_path / "a", **given), sort=False)
    sorted_, faster, narrow = one_step(trainer_on(base, moved_champion, tmp_path / "b", **given), sort=True)
    assert len(narrow) == len(wide) and sum(narrow) < sum(wide)  # the same replies in fewer columns
    assert sorted_ == pytest.approx(plain, rel=1e-4, abs=1e-7)
    assert set(faster) == set(gradients) and len(gradients) == 28
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0
        scale = float(gradient.abs().max())
        torch.testing.assert_close(faster[name], gradient, rtol=1e-3, atol=1e-4 * scale)


def test_a_pass_for_old_logprobs_is_run_only_where_a_generation_is_used_twice(
    base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    def passes(**changes: Any) -> tuple[int, int]:
        trainer = trainer_on(base, fresh_champion, tmp_path / str(changes), steps=2, **changes)
        count = [0, 0]
        compute = trainer._get_per_token_logps_and_entropies

        def counted(*given: Any, **named: Any) -> Any:
            count[torch.is_grad_enabled()] += 1
            return compute(*given, **named)

        trainer._get_per_token_logps_and_entropies = counted
        trainer.train()
        return count[0], count[1]

    # 16 completions in micro-batches of 4: 2 steps of 4 passes with gradients.
    assert passes(beta=0.0) == (0, 8)
    assert passes(beta=0.1) == (2, 8)  # the reference's, one for each generation
    assert passes(beta=0.0, iterations=2) == (1, 8)  # one generation, read twice


def test_the_library_is_as_it_was_afterwards(trainer: Any) -> None:
    import trl.trainer.grpo_trainer as module

    trainer.loss_type = "dr_grpo"
    before = (module.shuffle_sequence_dict, module.split_tensor_dict)
    method = trainer._get_per_token_logps_and_entropies
    with pytest.raises(KeyError), length_sorted(trainer) as switched:
        assert switched
        assert module.shuffle_sequence_dict is not before[0]
        raise KeyError
    assert (module.shuffle_sequence_dict, module.split_tensor_dict) == before
    assert trainer._get_per_token_logps_and_entropies == method


def test_another_version_and_another_loss_are_left_alone(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.loss_type = "bnpo"
    with length_sorted(trainer) as switched:
        assert not switched
    trainer.loss_type = "dapo"
    monkeypatch.setattr(grpo_micro_batches, "PATCHED_TRL", "1.15.0")
    with length_sorted(trainer) as switched:
        assert not switched


def test_order_and_trimming_on_a_literal_batch() -> None:
    inputs = batch(tool_mask=torch.ones((4, 6), dtype=torch.long), nothing=None)
    order = order_of(inputs, parts=2)
    # Rows: prompt + reply tokens 3+4, 3+2, 5+3, 5+6. By prompt: {3: 5+6, 2: 5+3}, {0, 1}: 11 + 7 columns;
    # by reply {3, 0}: 5+6, {2, 1}: 5+3: 19; by the sum {3, 2}, {0, 1}: 18.
    assert order == [3, 2, 0, 1]
    moved = reordered(inputs, order)
    assert moved["advantages"].tolist() == [-2.0, 0.25, 1.5, -0.5]
    assert moved["nothing"] is None and int(moved["num_items_in_batch"]) == 15
    cut = trimmed({k: v[2:] if isinstance(v, torch.Tensor) and v.ndim else v for k, v in moved.items()})
    assert cut["prompt_ids"].tolist() == [[5, 9, 77], [5, 9, 77]]
    assert cut["completion_ids"].tolist() == [[40, 41, 42, 2], [50, 51, PAD, PAD]]
    # Columns that only masked rows have go as well; something always stays.
    inputs["tool_mask"][3] = 0
    assert trimmed(inputs)["completion_ids"].shape == (4, 4)
    inputs["completion_mask"][:] = 0
    assert trimmed(inputs)["completion_ids"].shape == (4, 1)


def test_replies_end_where_trl_thinks_they_end(trainer: Any) -> None:
    assert sorted(trainer.eos_token_ids) == sorted(trainer.rollouts.sampling.ends) == sorted(ENDS)
