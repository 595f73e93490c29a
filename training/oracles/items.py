"""Eight rows as the items of palate's own updates, with the log-probabilities of a champion that is not the policy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from training.sequences import Tokens

if TYPE_CHECKING:
    from training.policy_trainer import Item, Objective

MOVED_BY = 0.05
"""How far the policy is from the champion, in standard deviations of noise on its adapter."""


@functools.cache
def _encoded() -> tuple[tuple[Tokens, Tokens], ...]:
    """Chosen and rejected reply of each row."""
    from training import tiny
    from training.oracles.texts import pairs

    tokens = tiny.tokenizer()

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokens(text, add_special_tokens=False)["input_ids"])

    end = (tokens.eos_token_id,)
    return tuple(
        (
            Tokens(ids(row["prompt"]), ids(row["chosen"]) + end),
            Tokens(ids(row["prompt"]), ids(row["rejected"]) + end),
        )
        for row in pairs()
    )


def policy() -> Any:
    """A policy that has moved away from the champion."""
    from training import tiny

    model = tiny.policy()
    tiny.move(model, MOVED_BY)
    return model


def objective(method: str) -> tuple[Objective, list[Item]]:
    """The loss of one of palate's own methods, and eight items of it.

    Args:
        method: dpo, kto, online or words.
    """
    from training import dpo, kto, online, words

    made: Any = {
        "dpo": dpo.Objective(dpo.Config(sft_weight=0.3)),
        "kto": kto.Objective(kto.Config(beta=0.5, micro_batch_rows=2)),
        "online": online.Objective(online.Config()),
        "words": words.Objective(words.Config()),
    }[method]
    return made, _referenced([_item(method, k) for k in range(8)])


def _item(method: str, k: int) -> Item:
    from dataclasses import replace

    from training.policy_trainer import Item
    from training.words import EDIT, HINDSIGHT

    better, worse = _encoded()[k]
    weight = 0.5 + k / 7
    if method == "dpo":
        return Item((better, worse), {"weight": weight, "margin": 1.0})
    if method == "kto":
        other = replace(better, completion=_encoded()[(k + 3) % 8][0].completion)
        return Item((better, other), {"weight": weight, "liked": float(k % 3 != 0)})
    if method == "online":
        logged = -2.0 * len(better.completion) if k % 2 else float("nan")
        return Item(
            (better,), {"advantage": 0.4 * k - 1, "reward": 0.1 * k, "weight": weight, "logged": logged}
        )
    if k % 2:
        return Item((better,), {"weight": weight}, part=EDIT)
    taught = replace(better, prompt=better.prompt + worse.prompt)
    return Item((better, taught), {"weight": weight}, part=HINDSIGHT, referenced=1)


def _referenced(items: Sequence[Item]) -> list[Item]:
    from dataclasses import replace

    import torch

    from training import tiny
    from training.oracles.plain import logprobs

    champion = tiny.policy()
    with torch.no_grad():
        return [
            replace(item, reference=tuple(logprobs(champion, s) for s in item.sequences[: item.referenced]))
            for item in items
        ]
