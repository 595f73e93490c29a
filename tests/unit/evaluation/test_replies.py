"""Sampling replies from a tiny policy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from evaluation.replies import Chat, Policy, SamplingConfig, encode_prompt, load_policy, sample

GREEDY = SamplingConfig(max_new_tokens=12, temperature=0)


@pytest.fixture(scope="module")
def policy(tiny_base: Path) -> Policy:
    return load_policy(tiny_base, None)


def ask(text: str) -> Chat:
    return [{"role": "user", "content": text}]


PROMPTS = [
    ask("Which bridges rust?"),
    ask("Where do gulls mend nets before the harbour wakes, and who bakes the golden apples?"),
    ask("Hours?"),
    [*ask("How many months?"), {"role": "assistant", "content": "12."}, *ask("And days?")],
    ask("Winter roads close early, so which longer valley route do travellers choose?"),
]


def test_greedy_replies_are_the_same_every_time_and_whatever_the_seed(policy: Policy) -> None:
    wanted = sample(policy, PROMPTS, GREEDY, seed=1)
    assert len(wanted) == len(PROMPTS)
    assert sample(policy, PROMPTS, GREEDY, seed=2) == wanted
    assert len({r.token_ids for r in wanted}) == len(PROMPTS)  # they do depend on the prompt


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_greedy_text_does_not_depend_on_batches_or_order(batch_size: int, policy: Policy) -> None:
    wanted = sample(policy, PROMPTS, GREEDY, seed=1)
    config = GREEDY.model_copy(update={"batch_size": batch_size})
    done: list[int] = []
    mixed = sample(policy, PROMPTS[::-1], config, seed=1, progress=done.append)
    assert mixed[::-1] == wanted
    assert sum(done) == len(PROMPTS)
    assert max(done) <= batch_size


def test_greedy_equals_a_plain_argmax_loop(policy: Policy) -> None:
    ids = encode_prompt(policy.tokenizer, PROMPTS[0], 512)
    start = len(ids)
    with torch.inference_mode():
        for _ in range(12):
            ids.append(int(policy.model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == policy.tokenizer.eos_token_id:
                break
    assert sample(policy, PROMPTS[:1], GREEDY, seed=0)[0].token_ids == tuple(ids[start:])


def test_the_seed_fixes_sampled_replies(policy: Policy) -> None:
    config = SamplingConfig(max_new_tokens=12, temperature=1.0, top_p=1.0)
    first, again, other = (sample(policy, PROMPTS, config, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first != other


def _ending_with(policy: Policy, prompt: Chat, step: int) -> tuple[int, int]:
    """The token that greedy decoding puts at `step`, and where it first stands."""
    row = sample(policy, [prompt], GREEDY, seed=0)[0].token_ids
    return row[step], row.index(row[step])


def test_tokens_and_finished_count_the_end_of_turn_token(tiny_base: Path) -> None:
    policy = load_policy(tiny_base, None)
    plain = sample(policy, PROMPTS, GREEDY, seed=0)
    unfinished = [r for r in plain if not r.finished]
    assert unfinished and all(r.tokens == 12 == len(r.token_ids) for r in unfinished)
    # Let a token that greedy decoding reaches end the turn: through the model's own generation config, as
    # models with several end tokens do, the others of the batch going on and padding it.
    token, at = _ending_with(policy, PROMPTS[1], 4)
    policy.model.generation_config.eos_token_id = [policy.tokenizer.eos_token_id, token]
    stopped = sample(policy, PROMPTS, GREEDY, seed=0)
    assert stopped[1].finished
    assert stopped[1].tokens == at + 1
    assert stopped[1].token_ids == plain[1].token_ids[: at + 1]
    for now, before in zip(stopped, plain, strict=True):
        assert now.finished == (now.token_ids[-1] in (token, policy.tokenizer.eos_token_id))
        assert now.token_ids == before.token_ids[: now.tokens]
        assert now.tokens == len(now.token_ids)


def test_the_tokenizers_end_token_ends_a_turn_whatever_the_generation_config_says(tiny_base: Path) -> None:
    policy = load_policy(tiny_base, None)
    token, at = _ending_with(policy, PROMPTS[0], 3)
    policy.tokenizer.eos_token = policy.tokenizer.convert_ids_to_tokens(token)
    policy.model.generation_config.eos_token_id = None
    reply = sample(policy, PROMPTS[:1], GREEDY, seed=0)[0]
    assert (reply.finished, reply.tokens) == (True, at + 1)


def test_a_long_prompt_keeps_its_end(policy: Policy) -> None:
    long = ask("Add sugar. " * 200 + "Which bridges rust?")
    ids = encode_prompt(policy.tokenizer, long, 40)
    assert len(ids) == 40
    assert policy.tokenizer.decode(ids).endswith("Which bridges rust?<|im_end|>\n<|im_start|>assistant\n")
    same_end = ask("Pour milk. " * 200 + "Add sugar. " * 60 + "Which bridges rust?")
    config = GREEDY.model_copy(update={"max_prompt_tokens": 40})
    one, two = sample(policy, [long, same_end], config, seed=0)
    assert one.text == two.text


def test_no_prompts_are_no_replies(policy: Policy) -> None:
    assert sample(policy, [], GREEDY, seed=0) == []


def test_an_adapter_is_merged_in(tiny_base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from training.adapter import LoraSettings, new_adapter

    made = new_adapter(tiny_base, "test:tiny", tmp_path / "a", LoraSettings(r=4), seed=0)
    moved = tmp_path / "b"
    shutil.copytree(made, moved)
    file = moved / "adapter_model.safetensors"
    torch.manual_seed(0)
    save_file({k: v + 0.2 * torch.randn_like(v) for k, v in load_file(file).items()}, file, {"format": "pt"})
    base, same, other = (
        sample(load_policy(tiny_base, a), PROMPTS, GREEDY, seed=0) for a in (None, made, moved)
    )
    assert same == base
    assert other != base
