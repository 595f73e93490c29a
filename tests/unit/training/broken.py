"""Copies of losses, TRL trainers, scores and rollouts, each broken in one way; whole updates: broken_updates."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import trl
from torch import Tensor
from torch.nn.functional import logsigmoid

from training import kto, losses, online, tiny
from training.errors import TrainingError
from training.logprobs import token_logprobs
from training.rollout.decoding import drawn
from training.rollout.engine import Sampling, check
from training.rollout.transformers_engine import TransformersEngine
from training.sequences import Tokens

# Losses


def dpo_swapped(chosen: Tensor, rejected: Tensor, **given: Any) -> Tensor:
    """Prefers the rejected reply."""
    return losses.dpo(rejected, chosen, **given)


def dpo_without_offset(chosen: Tensor, rejected: Tensor, **given: Any) -> Tensor:
    return losses.dpo(chosen, rejected, **{**given, "offset": 0.0})


def dpo_robust_not_rescaled(chosen: Tensor, rejected: Tensor, **given: Any) -> Tensor:
    if given["kind"] != "robust":
        return losses.dpo(chosen, rejected, **given)
    h, e = given["beta"] * (chosen - rejected), given["label_noise"]
    return -(1 - e) * logsigmoid(h) + e * logsigmoid(-h)


def dpo_ipo_of_sums(chosen: Tensor, rejected: Tensor, **given: Any) -> Tensor:
    """IPO that grows with the length of replies."""
    one = torch.ones_like(chosen)
    return losses.dpo(chosen, rejected, **{**given, "chosen_tokens": one, "rejected_tokens": one})


def _kto(**changed: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"kto": losses.kto, "kto_kl": losses.kto_kl, **changed})


KTO_SIDES_SWAPPED = _kto(kto=lambda r, liked, kl, beta: losses.kto(r, ~liked, kl, beta=beta))
KTO_KL_WITH_GRADIENT = _kto(kto_kl=lambda others: others.mean().clamp(min=0))
KTO_KL_BELOW_ZERO = _kto(kto_kl=lambda others: others.detach().mean())
KTO_KL_OF_SUMS = _kto(kto_kl=lambda others: others.detach().sum().clamp(min=0))


def kto_of_the_micro_batch(config: Any) -> Any:
    """The KL of the first micro-batch."""
    own = kto.Objective(config)
    return SimpleNamespace(prepare=lambda model, items: own.prepare(model, items[: config.micro_batch_rows]))


def kto_of_its_own_reply(config: Any) -> Any:
    """The KL of a batch of one: of the reply that is judged by it."""
    own = kto.Objective(config)

    def prepare(model: Any, items: Any) -> Any:
        alone = [replace(i, sequences=(i.sequences[0],) * 2, reference=(i.reference[0],) * 2) for i in items]
        return own.prepare(model, alone)

    return SimpleNamespace(prepare=prepare)


def _online(**changed: Any) -> SimpleNamespace:
    names = ("policy_gradient", "kl_to_reference", "effective_sample_size")
    return SimpleNamespace(**{**{name: getattr(losses, name) for name in names}, **changed})


ONLINE_UNCLIPPED = _online(policy_gradient=lambda p, old, gain, **_: -torch.exp(p - old) * gain)
ONLINE_CLIPPED_BOTH_WAYS = _online(
    policy_gradient=lambda p, old, gain, clip_low, clip_high: (
        -torch.exp(p - old).clamp(1 - clip_low, 1 + clip_high) * gain
    )
)
ONLINE_DISTANCE_K1 = _online(kl_to_reference=lambda p, q: p - q)
ONLINE_SIZE_OF_SUMS = _online(effective_sample_size=lambda w: w.sum() / w.max())


def weights_uncut(items: Any, cap: float) -> Any:
    return online.importance(items, 1e9)


def weights_of_a_mean(items: Any, cap: float) -> Any:
    """Takes a reply's mean log-probability for its sum."""
    return online.importance([replace(i, reference=(i.reference[0].mean()[None],)) for i in items], cap)


def student_and_teacher_swapped(student: Tensor, teacher: Tensor) -> Tensor:
    return losses.self_distillation(teacher, student)


def teacher_is_pulled(student: Tensor, teacher: Tensor) -> Tensor:
    p, q = teacher.log_softmax(-1), student.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


# TRL's trainers


def trl_trainer(name: str, **methods: Any) -> type[Any]:
    """A subclass of a trainer of TRL with other methods; each is given the class's own first."""
    base: type[Any] = getattr(trl, name)

    def bound(method: str, changed: Any) -> Any:
        own = getattr(base, method)
        return lambda self, *given, **named: changed(own, self, *given, **named)

    return type(f"Broken{name}", (base,), {m: bound(m, changed) for m, changed in methods.items()})


def _loss_of(own: Any, self: Any, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
    return own(self, model, inputs, *more, **named)


def _beta_twice(own: Any, self: Any, *given: Any, **named: Any) -> Any:
    before = self.beta
    self.beta = before**2
    try:
        return own(self, *given, **named)
    finally:
        self.beta = before


def _padding_counts(own: Any, self: Any, model: Any, inputs: Any) -> Any:
    """Pad tokens in the mean: the mask of the loss is all ones, that of attention stays."""
    mask = inputs["completion_mask"]
    full = torch.ones_like(mask)
    return own(self, model, {**inputs, "tool_mask": full, "completion_mask": full})


def _old_from_elsewhere(own: Any, self: Any, model: Any, inputs: Any) -> Any:
    """Takes the sampler's log-probabilities, a little off, for those before the step."""
    old = torch.full_like(inputs["completion_mask"], -1.0, dtype=torch.float32)
    return own(self, model, {**inputs, "old_per_token_logps": old})


def _divided_again(own: Any, self: Any, *given: Any, **named: Any) -> Any:
    """The gradient divided by accumulation twice."""
    return own(self, *given, **named) / self.args.gradient_accumulation_steps


def _takes_one_row(own: Any, self: Any, *given: Any, **named: Any) -> Any:
    named["args"].per_device_train_batch_size = max(2, named["args"].per_device_train_batch_size)
    own(self, *given, **named)


def _blind_to_padding(own: Any, self: Any, model: Any, ids: Any, mask: Any, *more: Any, **named: Any) -> Any:
    return own(self, model, ids, torch.ones_like(mask), *more, **named)


def _references_shifted(own: Any, self: Any, *given: Any, **named: Any) -> Any:
    """Precomputed references that belong to the next row."""
    rows = own(self, *given, **named)
    column = rows["ref_chosen_logps"][1:] + rows["ref_chosen_logps"][:1]
    return rows.remove_columns("ref_chosen_logps").add_column("ref_chosen_logps", column)


DPO_BETA_TWICE = trl_trainer("DPOTrainer", _compute_loss=_beta_twice)
DPO_DIVIDED_AGAIN = trl_trainer("DPOTrainer", compute_loss=_divided_again)
DPO_REFERENCES_SHIFTED = trl_trainer("DPOTrainer", _precompute_ref_logps=_references_shifted)
SFT_DIVIDED_AGAIN = trl_trainer("SFTTrainer", compute_loss=_divided_again)
GRPO_DIVIDED_AGAIN = trl_trainer("GRPOTrainer", compute_loss=_divided_again)
GRPO_PADDING_COUNTS = trl_trainer("GRPOTrainer", _compute_loss=_padding_counts)
GRPO_OLD_FROM_ELSEWHERE = trl_trainer("GRPOTrainer", _compute_loss=_old_from_elsewhere)
GRPO_BLIND_TO_PADDING = trl_trainer("GRPOTrainer", _get_per_token_logps_and_entropies=_blind_to_padding)
GRPO_COUNTS_THE_MASKED = trl_trainer("GRPOTrainer", compute_loss=_loss_of)
KTO_BETA_TWICE = trl_trainer("KTOTrainer", _compute_loss=_beta_twice)
KTO_TAKES_ONE_ROW = trl_trainer("KTOTrainer", __init__=_takes_one_row)


# Scores and rollouts


def left_padded_without_a_mask(model: Any, sequences: Any) -> Any:
    """Log-probabilities side by side where padding is read like text."""
    width = max(len(s) for s in sequences)
    longer = [Tokens((0,) * (width - len(s)) + s.prompt, s.completion, s.trained) for s in sequences]
    return token_logprobs(model, longer)


def end_left_out(model: Any, sequences: Any) -> Any:
    """The padding token is the end of turn, and so the reply's own end is not scored."""
    found = token_logprobs(model, sequences)
    return [torch.cat([logps[:-1], 0 * logps[-1:]]) for logps in found]


def _own_refuses(top_p: float, top_k: int) -> bool:
    try:
        check(Sampling(8, (2,), top_p=top_p, top_k=top_k), [[1]])
    except Exception:
        return True
    return False


def samplers() -> dict[str, Any]:
    """Ways to draw: log-probabilities renormalised wrongly, a nucleus that is not told of, settings that are taken."""
    from training.oracles.sampling import Sampler

    def of_the_whole(logits: Tensor, uniform: Tensor, sampling: Any) -> tuple[Tensor, Tensor]:
        """Draws from the nucleus, and says what the token has in the whole distribution: the ratio looks like 1."""
        tokens, _ = drawn(logits, uniform, sampling)
        whole = torch.log_softmax(logits / sampling.temperature, -1)
        return tokens, whole.gather(1, tokens[:, None])[:, 0]

    def always_a_nucleus(logits: Tensor, uniform: Tensor, sampling: Any) -> tuple[Tensor, Tensor]:
        return drawn(logits, uniform, replace(sampling, top_p=min(sampling.top_p, 0.8)))

    def without_temperature(logits: Tensor, uniform: Tensor, sampling: Any) -> tuple[Tensor, Tensor]:
        tokens, _ = drawn(logits, uniform, sampling)
        return tokens, torch.log_softmax(logits, -1).gather(1, tokens[:, None])[:, 0]

    return {
        "says the whole distribution's": Sampler(of_the_whole, _own_refuses),
        "draws from a nucleus always": Sampler(always_a_nucleus, _own_refuses),
        "forgets the temperature": Sampler(without_temperature, _own_refuses),
        "refuses nothing": Sampler(drawn, lambda _p, _k: False),
    }


def forgetful_engine(*given: Any, **named: Any) -> Any:
    """Goes on sampling from the policy it was loaded with."""
    engine = TransformersEngine(*given, **named)
    load = engine.load
    engine.load = lambda _model: load(tiny.policy())  # type: ignore[method-assign]
    engine.update = lambda _adapter, version: setattr(engine, "_version", version)  # type: ignore[method-assign]
    return engine


# Reward models


def reads_the_first_end(model: Any, texts: list[list[int]], pad: int) -> Tensor:
    found = []
    for text in texts:
        place = text.index(pad) if pad in text else len(text) - 1
        found.append(model.score(model.model(torch.tensor([text])).last_hidden_state[:, place])[:, 0])
    return torch.cat(found)


def reads_the_last_column(model: Any, texts: list[list[int]], pad: int) -> Tensor:
    width = max(map(len, texts))
    ids = torch.tensor([text + [pad] * (width - len(text)) for text in texts])
    scores: Tensor = model.score(model.model(ids).last_hidden_state[:, -1])[:, 0]
    return scores


def never_starts(*_: Any, **__: Any) -> None:
    raise TrainingError("Whatever was asked for.")
