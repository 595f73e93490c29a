"""Log-probabilities of replies under a policy: for KL to the champion and for held-out preference accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.replies import Chat, Policy, encode_prompt


@dataclass(frozen=True)
class ReplyLogprobs:
    """Log-probability of each token of each reply given its prompt."""

    by_token: Sequence[np.ndarray]
    """B arrays of (T,) nats: of each reply's tokens, the end-of-turn token included."""

    @property
    def total(self) -> np.ndarray:
        """(B,) nats of the whole reply."""
        return np.array([logp.sum() for logp in self.by_token], dtype=float)

    @property
    def tokens(self) -> np.ndarray:
        """(B,) reply tokens scored."""
        return np.array([len(logp) for logp in self.by_token], dtype=np.int64)

    @property
    def per_token(self) -> np.ndarray:
        """(B,) nats per token."""
        return self.total / np.maximum(self.tokens, 1)


def kl_per_token(sampled: ReplyLogprobs, other: ReplyLogprobs) -> np.ndarray:
    """KL(sampled || other) in nats per token, estimated on each of B replies of the sampled policy.

    With d = log p_sampled - log p_other of a token, the mean of exp(-d) - 1 + d. Its expectation is that of the
    plain mean of d, it is never negative, and where the policies are close it varies far less (J. Schulman,
    "Approximating KL divergence", 2020, estimator k3). Replies sampled with top-k bias any estimate made of
    sampled tokens; the plain mean was even below zero there.

    Returns:
        (B,) nats per token, 0 for a reply without tokens.
    """
    found = []
    for ours, theirs in zip(sampled.by_token, other.by_token, strict=True):
        d = (ours - theirs).astype(float)
        found.append(float(np.mean(np.expm1(-d) + d)) if len(d) else 0.0)
    return np.array(found)


def reply_logprobs(
    policy: Policy,
    prompts: Sequence[Chat],
    replies: Sequence[str],
    *,
    token_ids: Sequence[Sequence[int]] | None = None,
    max_tokens: int = 1024,
    tokens_per_batch: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> ReplyLogprobs:
    """Score replies under `policy`, longest together, reply tokens only.

    Args:
        prompts: B chats.
        replies: B reply texts; each is scored as an assistant turn with its end mark.
        token_ids: the tokens of the B replies as they were sampled; when given, exactly these are scored, so that
            a reply cut short is not charged with an end mark that nobody sampled.
        max_tokens: a longer prompt loses its start; a reply that alone is longer loses its end.
        tokens_per_batch: padded tokens per forward pass: bounds memory.
    """
    import torch

    if token_ids is None:
        encoded = [_encode(policy, p, r, max_tokens) for p, r in zip(prompts, replies, strict=True)]
    else:
        encoded = [_as_sampled(policy, p, ids, max_tokens) for p, ids in zip(prompts, token_ids, strict=True)]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i][0]))
    by_token: list[np.ndarray] = [np.zeros(0, np.float32)] * len(encoded)
    pad = policy.tokenizer.pad_token_id
    for batch in _batches(order, [len(e[0]) for e in encoded], tokens_per_batch):
        width = max(len(encoded[i][0]) for i in batch)
        ids = torch.full((len(batch), width), pad)
        mask = torch.zeros((len(batch), width), dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(encoded[i][0])] = torch.tensor(encoded[i][0])
            mask[row, : len(encoded[i][0])] = 1
        for row, logp in enumerate(_row_logprobs(policy, ids, mask, [encoded[i][1] for i in batch])):
            by_token[batch[row]] = logp
        if progress:
            progress(len(batch))
    return ReplyLogprobs(by_token)


def _row_logprobs(policy: Policy, ids: object, mask: object, starts: list[int]) -> list[np.ndarray]:
    """Per row, log p of every token from `start` on; logits are made for those positions alone."""
    import torch

    assert isinstance(ids, torch.Tensor) and isinstance(mask, torch.Tensor)
    device = policy.model.device
    with torch.inference_mode():
        decoder = policy.model.get_decoder()
        hidden = decoder(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
        head = policy.model.get_output_embeddings()
        rows = []
        for row, start in enumerate(starts):
            end = int(mask[row].sum())
            logits = head(hidden[row, start - 1 : end - 1]).float()
            targets = ids[row, start:end].to(device)
            rows.append(torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0].cpu().numpy())
    return rows


def _encode(policy: Policy, prompt: Chat, reply: str, max_tokens: int) -> tuple[list[int], int]:
    """Token ids of prompt and reply, and where the reply starts."""
    template = policy.tokenizer.apply_chat_template
    before = list(template(prompt, tokenize=True, add_generation_prompt=True, return_dict=False))
    chat = [*prompt, {"role": "assistant", "content": reply}]
    whole = list(template(chat, tokenize=True, return_dict=False))
    start = len(before)
    while whole[:start] != before[:start]:
        start -= 1
    if len(whole) > max_tokens:
        cut = min(len(whole) - max_tokens, start - 1)
        whole, start = whole[cut : cut + max_tokens], start - cut
    return whole, max(1, start)


def _as_sampled(policy: Policy, prompt: Chat, ids: Sequence[int], max_tokens: int) -> tuple[list[int], int]:
    """Prompt and sampled tokens, the prompt cut at its start where both are too long."""
    before = encode_prompt(policy.tokenizer, prompt, max(1, max_tokens - len(ids)))
    return before + list(ids), len(before)


def _batches(order: list[int], lengths: list[int], tokens_per_batch: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * lengths[i] <= tokens_per_batch:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
