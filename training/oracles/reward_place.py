"""Where a reward model reads its reward: at the last token of the text, whatever stands inside it or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from training.oracles.finding import Comparison, oracle, same
from training.oracles.given import quiet

Score = Callable[[Any, list[list[int]], int], Any]
"""From (model, texts as token ids, padding token) to (B,) rewards."""


def _together(model: Any, texts: list[list[int]], pad: int) -> Any:
    import torch

    width = max(map(len, texts))
    ids = torch.tensor([text + [pad] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    return model(input_ids=ids, attention_mask=mask).logits[:, 0]


def _last(model: Any, texts: list[list[int]]) -> Any:
    """(B,) rewards at each text's last token, one text at a time."""
    import torch

    last = [model.model(torch.tensor([text])).last_hidden_state[:, -1] for text in texts]
    return torch.cat([model.score(state)[:, 0] for state in last])


@oracle(
    "grpo",
    protects="rewards read in the middle of a prompt, where the padding token is also an end of turn",
    reference="trl PR#6952",
)
def reward_place(subject: Score | None) -> Iterator[Comparison]:
    """Texts with ends of turn inside, side by side and each alone; transformers' sequence classifier."""
    import torch
    from transformers import LlamaForSequenceClassification

    from training import tiny

    with quiet():
        tokens = tiny.tokenizer()
        end = tokens.eos_token_id
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            model = LlamaForSequenceClassification(tiny.config(tokens, num_labels=1, pad_token_id=end)).eval()
        texts = [[5, 6, end, 7, 8, 9], [10, end, 11], [12, 13, end, 14, end, 15, 16, 17]]
        ended = [[*text, end] for text in texts]
        with torch.no_grad():
            alone, of_ended = (_last(model, each) for each in (texts, ended))
            found = (subject or _together)(model, texts, end)
            at_end = (subject or _together)(model, ended, end)
        yield same("rewards of texts with ends of turn inside", found, alone, rel=1e-4)
        yield same(
            "rewards of texts whose last token is the padding token",
            at_end,
            of_ended,
            avoided="read one token early, in training and in scoring alike",
        )
        yield Comparison("rewards differ", "yes" if float(alone.std()) > 1e-3 else "no", "yes")
