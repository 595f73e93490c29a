"""A taste that turns round: is it relearned within one update, and is what did not change kept?

A model that has learned people's tastes answers; then the same people come to dislike what they liked (the weight of
one taste changes its sign) and say so in votes on its replies, two side by side. The next update continues that model
on these votes alone: nothing of before is shown again, so that what is kept is kept by the update itself. What people
truly feel is read twice: with the changed taste, and with that taste left out, which is what they did not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from updates_simulated import Served, World, answers, events, feelings, learnable, update, with_taste

from palate.simulation.text import notice
from palate.simulation.users import TASTES, User

TASTE = "warmth"
QUESTIONS = 80
METHOD = "dpo"
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "schedule": "linear",
    "warmup_share": 0.0,
    "batch_pairs": 4,
    "micro_batch_pairs": 4,
    "max_pairs": 64,
    "max_tokens": 192,
}


def turned(user: User) -> User:
    """The same person, to whom one taste now means the opposite. They vote; the corrections of people who were made up
    to like warmth would say nothing of it."""
    return replace(with_taste(user, **{TASTE: -_weight(user)}), edits=0.0)


def unchanged(user: User) -> User:
    """The same person without that taste: what was not changed."""
    return with_taste(user, **{TASTE: 0.0})


def _weight(user: User) -> float:
    return user.tastes[TASTES.index(TASTE)]


def relearned(
    before: World,
    after: World,
    model: Path,
    texts: Sequence[str],
    replies: Sequence[tuple[str, int]],
    output: Path,
) -> dict[str, float]:
    """One update after the change, and what people feel.

    Args:
        before: the people as they were.
        after: a workspace of its own for what they say from now on.
        model: the one that has learned their earlier tastes.
        texts: prompts that are never trained on.
        replies: the model's to these.
        output: folder of the update.
    """
    from rollout.adapters import digest

    people, prompts = before.people("train"), before.prompts("train")
    asked = [
        (people[i % len(people)], *prompts[i % len(prompts)]) for i in range(QUESTIONS) for _ in range(2)
    ]
    given = answers(before, model, [text for _, _, text in asked], before.seed + 2)
    served = [
        Served(turned(user), agent, text, reply, tokens, f"turned-{before.seed}-{n // 2:05d}")
        for n, ((user, agent, text), (reply, tokens)) in enumerate(zip(asked, given, strict=True))
    ]
    data = learnable(after, events(after, served, digest(model), 30), "turned")
    result = update(after, METHOD, SETTINGS, model, data, output)
    new = answers(before, result.adapter, texts, before.seed + 1)
    judges = before.people("test")
    found = {"interactions": float(len(served)), "pairs": result.metrics["pairs"], "kl": result.metrics["kl"]}
    for name, people_now in (
        ("changed", [turned(u) for u in judges]),
        ("kept", [unchanged(u) for u in judges]),
    ):
        found[name] = float(np.mean(feelings(people_now, texts, new) - feelings(people_now, texts, replies)))
    for name, said in (("taste_before", replies), ("taste_after", new)):
        found[name] = float(np.mean([getattr(notice("", text), TASTE) for text, _ in said]))
    found["length_ratio"] = sum(t for _, t in new) / sum(t for _, t in replies)
    return found
