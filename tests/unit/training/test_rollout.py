"""The rollout engine against one plain forward pass of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from training.errors import TrainingError
from training.rollout import decoding
from training.rollout.engine import Group, RolloutError, Sampling
from training.rollout.transformers_engine import TransformersEngine

END = 2  # <|im_end|> of the tiny tokenizer
SAMPLING = Sampling(max_new_tokens=12, ends=(END, *range(300, 400)), temperature=1.3)
PROMPTS = [[5, 9, 77, 30], [14, 3, 60, 61, 62, 63, 64, 65, 200], [8]]


def policy_of(base: Path, adapter: Path) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    return PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), str(adapter), is_trainable=True
    )


def adapter_of(policy: Any) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(policy, adapter_name="default", save_embedding_layers=False)


@pytest.fixture(scope="module")
def policy(tiny_base: Path, moved_champion: Path) -> Any:
    return policy_of(tiny_base, moved_champion).eval()


@pytest.fixture(scope="module")
def engine(tiny_base: Path, policy: Any) -> TransformersEngine:
    made = TransformersEngine(tiny_base, dtype=torch.float32)
    made.load(policy)
    made.update(adapter_of(policy), version=3)
    return made


def groups_of(
    engine: TransformersEngine, slots: int, prompts: Sequence[Sequence[int]] = PROMPTS
) -> list[Group]:
    engine.slots = slots
    return list(engine.generate(prompts, 4, SAMPLING, seed=17))


def by_prompt(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: g.prompt)


@pytest.fixture(scope="module")
def groups(engine: TransformersEngine) -> list[Group]:
    return groups_of(engine, slots=64)


def forward_logprobs(
    policy: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float
) -> torch.Tensor:
    with torch.inference_mode():
        logits = policy(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


def test_logprobs_are_those_of_one_forward_pass_of_the_policy(policy: Any, groups: list[Group]) -> None:
    assert sorted(g.prompt for g in groups) == [0, 1, 2]
    for group in groups:
        assert group.version == 3
        assert len(group.members) == 4
        for member in group.members:
            wanted = forward_logprobs(policy, PROMPTS[group.prompt], member.ids, SAMPLING.temperature)
            torch.testing.assert_close(torch.tensor(member.logprobs), wanted, rtol=0, atol=1e-4)
            plain = forward_logprobs(policy, PROMPTS[group.prompt], member.ids, 1.0)
            assert (plain - wanted).abs().max() > 0.01  # the comparison sees the temperature


def test_rows_end_at_an_end_token_or_at_the_limit(groups: list[Group]) -> None:
    members = [m for g in groups for m in g.members]
    for member in members:
        assert member.finished == (member.ids[-1] in SAMPLING.ends)
        assert not set(member.ids[:-1]) & set(SAMPLING.ends)
        assert len(member.ids) <= 12 and (member.finished or len(member.ids) == 12)
    assert len({m.finished for m in members}) == 2  # both kinds occurred
    assert len({m.ids for m in members}) == len(members)  # each member has draws of its own


@pytest.mark.parametrize("slots", [1, 4, 8])
def test_places_that_become_free_change_no_reply(
    slots: int, engine: TransformersEngine, groups: list[Group]
) -> None:
    other = by_prompt(groups_of(engine, slots))
    for got, wanted in zip(other, by_prompt(groups), strict=True):
        assert [m.ids for m in got.members] == [m.ids for m in wanted.members]
        for a, b in zip(got.members, wanted.members, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_dropping_finished_rows_changes_no_reply(
    engine: TransformersEngine, groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows decoded on to the end, ended or not, say the same up to where they ended."""
    widths: list[int] = []
    advance = decoding.advanced

    def watched(model: Any, rows: decoding.Rows, tokens: torch.Tensor) -> decoding.Rows:
        widths.append(len(rows.names))
        return advance(model, rows, tokens)

    monkeypatch.setattr("training.rollout.transformers_engine.advanced", watched)
    again = groups_of(engine, 64)
    assert widths == sorted(widths, reverse=True) and widths[-1] < widths[0]  # rows were dropped
    never = Sampling(max_new_tokens=12, ends=(), temperature=SAMPLING.temperature)
    whole = by_prompt(list(engine.generate(PROMPTS, 4, never, seed=17)))
    for group, long in zip(by_prompt(again), whole, strict=True):
        for a, b in zip(group.members, long.members, strict=True):
            assert a.ids == b.ids[: len(a.ids)]
            assert len(b.ids) == 12
    assert by_prompt(again) == by_prompt(groups)  # and the same seed gives the same groups


def test_a_shared_prefill_equals_separate_ones(engine: TransformersEngine, policy: Any) -> None:
    model = engine._loaded().model
    shared = decoding.prefilled(model, PROMPTS, [0, 1, 2], 4)
    assert shared.names == [(p, m) for p in range(3) for m in range(4)]
    for row, (place, _) in enumerate(shared.names):
        alone = decoding.prefilled(model, [PROMPTS[place]], [place], 1)
        torch.testing.assert_close(shared.logits[row], alone.logits[0], rtol=0, atol=1e-4)
        size = len(PROMPTS[place])
        for a, b in zip(shared.cache.layers, alone.cache.layers, strict=True):
            torch.testing.assert_close(a.keys[row, :, -size:], b.keys[0], rtol=0, atol=1e-4)
        with torch.inference_mode():
            plain = policy(torch.tensor([PROMPTS[place]])).logits[0, -1]
        torch.testing.assert_close(shared.logits[row], plain, rtol=0, atol=1e-4)


def test_a_prompt_is_read_once_for_its_group(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, read = engine._loaded().model, []
    forward = type(model).forward

    def watched(self: Any, *args: Any, **given: Any) -> Any:
        read.append(tuple(given["input_ids"].shape))
        return forward(self, *args, **given)

    monkeypatch.setattr(type(model), "forward", watched)
    groups_of(engine, 64)
    assert read[0] == (3, 9)  # three prompts, not twelve, as wide as the longest
    assert all(width == 1 for _, width in read[1:])


def test_groups_are_handed_over_while_others_are_sampled(engine: TransformersEngine) -> None:
    engine.slots = 4  # one group after the other
    running = engine.generate(PROMPTS, 4, SAMPLING, seed=17)
    first = next(running)
    assert first.prompt == 1  # the longest prompt goes first
    assert [g.prompt for g in running] == [0, 2]


def test_update_takes_over_new_weights_exactly_and_without_drift(
    tiny_base: Path, moved_champion: Path
) -> None:
    policy = policy_of(tiny_base, moved_champion).eval()
    engine = TransformersEngine(tiny_base, dtype=torch.float32)
    engine.load(policy)
    ids = torch.arange(3, 40)[None]
    before = {k: v.clone() for k, v in adapter_of(policy).items()}
    for round_ in range(3):
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if "lora_" in name:
                    weight.add_(
                        0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(round_))
                    )
        engine.update(adapter_of(policy), round_)
        with torch.inference_mode():
            torch.testing.assert_close(
                engine._loaded().model(ids).logits, policy(ids).logits, rtol=1e-4, atol=1e-3
            )
    engine.update(before, 9)
    fresh = TransformersEngine(tiny_base, dtype=torch.float32)
    fresh.load(policy)
    fresh.update(before, 0)
    with torch.inference_mode():
        torch.testing.assert_close(
            engine._loaded().model(ids).logits, fresh._loaded().model(ids).logits, rtol=0, atol=0
        )
    assert engine.version == 9


def test_what_no_adapter_touches_is_in_memory_once_and_the_rest_is_not_shared(
    engine: TransformersEngine, policy: Any
) -> None:
    model, base = engine._loaded().model, policy.get_base_model()
    assert model.model.embed_tokens.weight.data_ptr() == base.model.embed_tokens.weight.data_ptr()
    mine = model.model.layers[0].self_attn.q_proj.weight
    theirs = base.model.layers[0].self_attn.q_proj.base_layer.weight
    assert mine.data_ptr() != theirs.data_ptr()
    assert not torch.equal(mine, theirs)  # merged here, untouched there


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.2, 0.3])
    logits = probabilities.log().repeat(4000, 1)
    uniform = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    tokens, logp = decoding.drawn(logits, uniform, Sampling(1, ()))
    assert torch.bincount(tokens, minlength=4).tolist() == [2000, 0, 800, 1200]  # an even grid: exact
    torch.testing.assert_close(logp.exp(), probabilities[tokens])
    # Temperature 1/2 squares: 25 : 4 : 9.
    _, cold = decoding.drawn(
        logits[:1], torch.zeros(1, dtype=torch.float64), Sampling(1, (), temperature=0.5)
    )
    assert float(cold.exp()) == pytest.approx(25 / 38)


def test_the_ends_of_the_uniform_numbers_are_safe() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).repeat(2, 1)
    tokens, _ = decoding.drawn(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), Sampling(1, ()))
    assert tokens.tolist() == [1, 2]  # never a token of probability 0


def test_accepted_bias_is_sampled_with_the_probability_it_is_recorded_with() -> None:
    logits = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log().repeat(1000, 1)
    uniform = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    nucleus = Sampling(1, (), top_p=0.6, accept_bias=True)  # 0.5 alone is not enough: two tokens stay
    tokens, logp = decoding.drawn(logits, uniform, nucleus)
    assert sorted(set(tokens.tolist())) == [0, 1]
    assert float(logp[tokens == 0][0].exp()) == pytest.approx(5 / 7)
    tokens, logp = decoding.drawn(logits, uniform, Sampling(1, (), top_k=1, accept_bias=True))
    assert set(tokens.tolist()) == {0} and float(logp[0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (Sampling(4, (END,), top_p=0.9), "bias the importance ratio"),
        (Sampling(4, (END,), top_k=50), "bias the importance ratio"),
        (Sampling(4, (END,), temperature=0.0), "nothing to sample"),
    ],
)
def test_biased_sampling_is_refused(engine: TransformersEngine, sampling: Sampling, said: str) -> None:
    with pytest.raises(RolloutError, match=said) as caught:
        next(engine.generate(PROMPTS, 2, sampling, 0))
    assert isinstance(caught.value, TrainingError)


def test_what_cannot_be_sampled_is_said(tiny_base: Path, engine: TransformersEngine) -> None:
    with pytest.raises(RolloutError, match="prompt 1"):
        next(engine.generate([[4], []], 2, SAMPLING, 0))
    with pytest.raises(RolloutError, match="no policy"):
        next(TransformersEngine(tiny_base).generate(PROMPTS, 2, SAMPLING, 0))
    with pytest.raises(RolloutError, match="does not fit"):
        engine.update({"base_model.model.other.lora_A.weight": torch.zeros(1)}, 1)
    with pytest.raises(RolloutError, match="not finite"):
        decoding.drawn(torch.tensor([[0.0, float("nan")]]), torch.zeros(1, dtype=torch.float64), SAMPLING)
    assert list(engine.generate([], 2, SAMPLING, 0)) == []


def test_an_adapter_that_is_not_plain_lora_is_refused(tiny_base: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(r=2, use_dora=True, target_modules=["q_proj"], task_type="CAUSAL_LM")
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_base), config)
    with pytest.raises(RolloutError, match="plain LoRA"):
        TransformersEngine(tiny_base).load(policy)


def test_vllm_that_is_not_installed_is_said(tiny_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from training.rollout.vllm_engine import VLLMEngine

    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(RolloutError, match="not installed") as caught:
        VLLMEngine(tiny_base)
    assert "transformers" in str(caught.value.next_step)
