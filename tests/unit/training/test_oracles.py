"""Every oracle passes on what is installed and fails on a copy that was broken on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from training import kto, losses, online
from training.adapter import save_adapter
from training.fit import fit, load_champion
from training.known_faults import faults_of, unverified
from training.logprobs import token_logprobs
from training.oracles import for_method, oracles
from training.oracles.adapter import Saver
from training.oracles.sampling import Sampler
from training.policy_trainer import make_trainer
from training.reference import reference_logprobs
from training.sequences import Tokens

ALL = oracles()


@pytest.mark.parametrize("name", list(ALL))
def test_what_is_installed_passes(name: str) -> None:
    found = ALL[name].check()
    assert found.passed, [c for c in found.comparisons if not c.holds and not c.avoided]
    assert found.comparisons
    for comparison in found.comparisons:  # a fault that is told must be avoided by somebody
        assert comparison.holds or comparison.avoided


def _as_trl(compute: Any, name: str) -> type[Any]:
    """A TRL trainer's class whose loss is changed by `compute`."""
    import trl

    base: type[Any] = getattr(trl, name)

    class Broken(base):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            return compute(super()._compute_loss(model, inputs, *more, **named), inputs)

    return Broken


def _flat_loss(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no loss today")


def _dpo_without_reference_sign(chosen: Tensor, rejected: Tensor, **given: Any) -> Tensor:
    return losses.dpo(rejected, chosen, **given)


def _half_the_gradient(*given: Any, **named: Any) -> Any:
    """A loop that divides by the micro-batches once more, as accumulation of means does."""
    trainer = make_trainer(*given, **named)
    own = trainer._part
    cut = 8 / trainer.micro_batch

    def part(*args: Any) -> Any:
        loss, sums = own(*args)
        return loss / cut, sums

    trainer._part = part  # type: ignore[method-assign]
    return trainer


def _mask_forgotten(model: Any, sequences: Any) -> Any:
    """Log-probabilities side by side where padding is read like text."""
    width = max(len(s) for s in sequences)
    longer = [Tokens((0,) * (width - len(s)) + s.prompt, s.completion, s.trained) for s in sequences]
    return token_logprobs(model, longer)


def _reference_of_training_mode(model: Any, sequences: Any, file: Path, **given: Any) -> Any:
    model.train()
    real = model.eval
    model.eval = lambda: model  # dropout stays on
    try:
        return reference_logprobs(model, sequences, file, **given)
    finally:
        model.eval = real


def _first_end(model: Any, texts: list[list[int]], pad: int) -> Tensor:
    """Reads the reward at the first end of turn."""
    found = []
    for text in texts:
        hidden = model.model(torch.tensor([text])).last_hidden_state
        place = text.index(pad) if pad in text else len(text) - 1
        found.append(model.score(hidden[:, place])[:, 0])
    return torch.cat(found)


def _saves_nothing(model: Any, base_id: str, output: Path) -> None:
    """Saves an adapter whose B is zero."""
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.zero_()
    save_adapter(model, base_id, output)


def _frozen(champion: Any) -> Any:
    """A champion whose adapter gets no gradient."""
    model = load_champion(champion)
    for name, weight in model.named_parameters():
        weight.requires_grad = "embed" in name
    return model


def _forgets_where_it_was(settings: Any, champion: Any, run: Any, items: Any, loss: Any, **given: Any) -> Any:
    import shutil

    for checkpoint in run.output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    return fit(settings, champion, run, items, loss, **given)


def _mean_of_batch(values: Tensor) -> Tensor:
    return values.detach().sum().clamp(min=0)


def _uncut(items: Any, cap: float) -> Any:
    return online.importance(items, 1e9)


def _unclipped(logp: Tensor, old: Tensor, gain: Tensor, **_: Any) -> Tensor:
    return -torch.exp(logp - old) * gain


def _of_the_micro_batch(config: Any) -> Any:
    """KTO whose KL is that of its first micro-batch."""
    own = kto.Objective(config)
    return SimpleNamespace(prepare=lambda model, items: own.prepare(model, items[: config.micro_batch_rows]))


def _blind_to_padding() -> type[Any]:
    from trl import GRPOTrainer

    class Blind(GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, ids: Any, mask: Any, *more: Any, **named: Any
        ) -> Any:
            return super()._get_per_token_logps_and_entropies(
                model, ids, torch.ones_like(mask), *more, **named
            )

    return Blind


def _trl() -> type[Any]:
    from trl import GRPOTrainer

    return GRPOTrainer  # divides by all replies, also by those that are masked out


def _accumulated(name: str) -> type[Any]:
    """A trainer whose gradient grows with accumulation."""
    import trl

    base: type[Any] = getattr(trl, name)

    class Broken(base):  # type: ignore[misc]
        def compute_loss(self, *given: Any, **named: Any) -> Any:
            return super().compute_loss(*given, **named) * self.args.gradient_accumulation_steps

    return Broken


def _twice(*given: Any, **named: Any) -> Any:
    from training.grpo_assembly import make_trainer as made

    trainer = made(*given, **named)
    own = trainer.compute_loss
    trainer.compute_loss = lambda *a, **k: 2 * own(*a, **k)
    return trainer


def _renormalised() -> Sampler:
    """Draws from a nucleus and says the nucleus's own probabilities, and takes every setting."""
    from training.rollout.decoding import drawn

    def draw(logits: Tensor, uniform: Tensor, settings: Any) -> tuple[Tensor, Tensor]:
        tokens, logged = drawn(logits, uniform, settings)
        return tokens, logged + 0.2

    return Sampler(draw, lambda _p, _k: False)


def _forgetful_engine(*given: Any, **named: Any) -> Any:
    """An engine that goes on sampling from the policy it was loaded with."""
    from training import tiny
    from training.rollout.transformers_engine import TransformersEngine

    engine = TransformersEngine(*given, **named)
    load = engine.load
    engine.load = lambda _model: load(tiny.policy())  # type: ignore[method-assign]
    engine.update = lambda *_: None  # type: ignore[method-assign]
    return engine


TELLS_ONLY = {"accumulation_trl_kto", "kto_trl", "sampling_trl", "fsdp_on_cpu"}
"""Oracles that say what a library does; where it is a fault, palate's own way around it is what can fail."""
BROKEN: dict[str, list[Any]] = {
    "dpo_loss": [_dpo_without_reference_sign, _flat_loss],
    "dpo_trl": [_as_trl(lambda loss, _: 2 * loss, "DPOTrainer")],
    "kto_loss": [
        SimpleNamespace(kto=losses.kto, kto_kl=_mean_of_batch),
        SimpleNamespace(
            kto=lambda r, liked, kl, beta: losses.kto(r, ~liked, kl, beta=beta), kto_kl=losses.kto_kl
        ),
    ],
    "kto_trl": [_as_trl(lambda loss, _: loss * 0.5, "KTOTrainer")],
    "grpo_trl": [_as_trl(lambda loss, _: loss * 1.5, "GRPOTrainer")],
    "grpo_on_policy": [_as_trl(lambda loss, _: loss + 1, "GRPOTrainer")],
    "accumulation": [_half_the_gradient],
    "accumulation_trl_dpo": [_accumulated("DPOTrainer")],
    "accumulation_trl_sft": [_accumulated("SFTTrainer")],
    "accumulation_trl_grpo": [_accumulated("GRPOTrainer")],
    "kto_kl": [_of_the_micro_batch],
    "online_loss": [
        SimpleNamespace(
            policy_gradient=_unclipped,
            kl_to_reference=losses.kl_to_reference,
            effective_sample_size=losses.effective_sample_size,
        )
    ],
    "padding_trl": [_blind_to_padding()],
    "grpo_truncated": [_trl()],
    "grpo_step": [_twice],
    "sampling": [_renormalised()],
    "rollout_logprobs": [_forgetful_engine],
    "padding": [_mask_forgotten],
    "online_weights": [_uncut],
    "self_distillation": [lambda student, teacher: losses.self_distillation(teacher, student)],
    "reference": [_reference_of_training_mode],
    "reward_place": [_first_end],
    "adapter": [Saver(load_champion, _saves_nothing), Saver(_frozen, save_adapter)],
    "resume": [_forgets_where_it_was],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, k) for name, made in BROKEN.items() for k in range(len(made))]
)
def test_a_broken_copy_fails(name: str, number: int) -> None:
    found = ALL[name].check(BROKEN[name][number])
    assert not found.passed, found


def test_every_oracle_was_seen_to_fail() -> None:
    assert set(ALL) - TELLS_ONLY <= set(BROKEN) <= set(ALL)


def test_an_oracle_that_cannot_run_fails() -> None:
    found = ALL["dpo_loss"].check(_flat_loss)
    assert not found.passed
    assert "no loss today" in found.measured


def test_every_method_has_oracles_and_all_is_all() -> None:
    assert {o.name for o in for_method("all")} == set(ALL)
    for method in ("dpo", "kto", "online", "words", "grpo"):
        assert {"adapter"} < {o.name for o in for_method(method)} < set(ALL)
    assert {o.name for o in for_method("dpo")} | {o.name for o in for_method("kto")} <= {
        o.name for o in for_method("mix")
    }


def test_settings_that_run_into_known_faults_are_named() -> None:
    good = {"top_p": 1.0, "top_k": 0, "loss": "dr_grpo"}
    assert faults_of("grpo", good) == []
    (fault,) = faults_of("grpo", {**good, "top_p": 0.9})
    assert "biased" in fault.fault and "trl#6789" in fault.reference
    (fault,) = faults_of("grpo", {**good, "loss": "bnpo"})
    assert "micro-batch" in fault.fault
    assert unverified({"trl": "1.16.0", "torch": "2.13.0+cpu"}) == {}
    assert unverified({"trl": "1.17.0"}) == {"trl": ("1.17.0", "1.16.0")}
    assert replace(fault, got=1).got == 1
