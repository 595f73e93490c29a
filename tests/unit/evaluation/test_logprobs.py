"""Log-probabilities of replies against one plain forward pass each."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluation.logprobs import ReplyLogprobs, kl_per_token, reply_logprobs
from evaluation.replies import Chat, Policy, SamplingConfig, load_policy, sample
from tests.unit.reward_models.made import shorter_wins, text


@pytest.fixture(scope="module")
def policy(tiny_base: Path) -> Policy:
    return load_policy(tiny_base, None)


def chats(count: int) -> tuple[list[Chat], list[str]]:
    rows = shorter_wins(count).to_pydict()
    dice = random.Random(1)
    return rows["prompt"], [text(dice.randint(1, 40), dice) for _ in range(count)]


def naive(policy: Policy, prompt: Chat, reply: str) -> tuple[float, int]:
    tokenizer = policy.tokenizer
    head = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    start = len(tokenizer(head, add_special_tokens=False)["input_ids"])
    ids = tokenizer(head + reply + "<|im_end|>\n", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logp = torch.log_softmax(policy.model(torch.tensor([ids])).logits[0], -1)
    return sum(float(logp[k - 1, ids[k]]) for k in range(start, len(ids))), len(ids) - start


@pytest.mark.parametrize("tokens_per_batch", [1, 200, 4096])
def test_they_equal_a_naive_computation_whatever_the_batches(tokens_per_batch: int, policy: Policy) -> None:
    prompts, replies = chats(12)
    replies[3] = ""
    done: list[int] = []
    got = reply_logprobs(policy, prompts, replies, tokens_per_batch=tokens_per_batch, progress=done.append)
    wanted = [naive(policy, p, r) for p, r in zip(prompts, replies, strict=True)]
    np.testing.assert_array_equal(got.tokens, [n for _, n in wanted])
    np.testing.assert_allclose(got.total, [t for t, _ in wanted], rtol=1e-5)
    np.testing.assert_allclose(got.per_token, [t / n for t, n in wanted], rtol=1e-5)
    assert sum(done) == 12
    assert (len(done) == 12) == (tokens_per_batch == 1)
    assert got.tokens[3] == 2  # the end mark and the line break after it


def test_kl_of_a_policy_with_itself_is_zero(policy: Policy, tiny_base: Path) -> None:
    prompts, _ = chats(8)
    replies = [r.text for r in sample(policy, prompts, SamplingConfig(max_new_tokens=10), seed=0)]
    other = load_policy(tiny_base, None)
    one, two = (reply_logprobs(p, prompts, replies) for p in (policy, other))
    np.testing.assert_array_equal(kl_per_token(one, two), np.zeros(8))


def test_kl_to_another_policy_is_positive(policy: Policy, tiny_base: Path) -> None:
    other = load_policy(tiny_base, None)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.add_(0.03 * torch.randn_like(weight))
    prompts, _ = chats(40)
    config = SamplingConfig(max_new_tokens=10, temperature=1.0, top_p=1.0)
    replies = [r.text for r in sample(policy, prompts, config, seed=0)]
    one, two = (reply_logprobs(p, prompts, replies) for p in (policy, other))
    assert kl_per_token(one, two).mean() > 0.01


def test_a_long_prompt_loses_its_start_and_a_long_reply_its_end(policy: Policy) -> None:
    prompt = [{"role": "user", "content": "Add sugar. " * 60 + "Which bridges rust?"}]
    whole = reply_logprobs(policy, [prompt], ["Most bridges."])
    cut = reply_logprobs(policy, [prompt], ["Most bridges."], max_tokens=60)
    assert cut.tokens[0] == whole.tokens[0]  # every reply token is still scored
    assert np.isfinite(cut.total[0]) and cut.total[0] != whole.total[0]
    long = reply_logprobs(policy, [prompt], ["Most bridges rust. " * 40], max_tokens=60)
    assert long.tokens[0] == 59  # one token of context is kept


def test_no_replies_are_no_logprobs(policy: Policy) -> None:
    assert reply_logprobs(policy, [], []).total.shape == (0,)


def test_the_divergence_is_that_of_hand_computed_numbers_and_never_negative() -> None:
    ours = ReplyLogprobs([np.log([0.5, 0.2]), np.log([0.1]), np.zeros(0)])
    theirs = ReplyLogprobs([np.log([0.25, 0.4]), np.log([0.9]), np.zeros(0)])
    # d = ln 2 and -ln 2: (1/2 - 1 + ln 2) and (2 - 1 - ln 2), their mean is 1/4; d = -ln 9: 9 - 1 - ln 9; no token: 0.
    np.testing.assert_allclose(kl_per_token(ours, theirs), [0.25, 8 - np.log(9), 0.0])
    np.testing.assert_allclose(kl_per_token(ours, ours), 0.0)


def test_its_mean_is_the_divergence() -> None:
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    drawn = np.random.default_rng(0).choice(3, 200_000, p=p)
    found = kl_per_token(ReplyLogprobs([np.log(p)[drawn]]), ReplyLogprobs([np.log(q)[drawn]]))
    np.testing.assert_allclose(found, (p * np.log(p / q)).sum(), atol=0.005)
