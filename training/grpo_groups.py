"""Groups of replies with what they are paid: which can be learned from, and what a step looked like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.grpo_prompts import Prompt
from training.reward_sources import Replies, Scored
from training.rollout.engine import Group

SAME = 1e-6
"""Rewards of a group that lie within this are equal: the rest is rounding."""


@dataclass(frozen=True)
class Paid:
    """One group, sampled and scored."""

    prompt: Prompt
    group: Group
    texts: tuple[str, ...]
    """G replies."""
    values: dict[str, np.ndarray]
    """(G,) by source."""
    total: np.ndarray
    """(G,) weighted sum, NaN where a source failed."""
    fault: tuple[str, str] | None
    """The source that failed the group, and how."""

    @property
    def flat(self) -> bool:
        """Whether all its members are paid the same: every advantage is 0, and it teaches nothing."""
        return self.fault is None and float(np.ptp(self.total)) <= SAME

    @property
    def teaches(self) -> bool:
        """Whether it can move the policy."""
        return self.fault is None and not self.flat


def replies_of(prompts: Sequence[Prompt], groups: Sequence[Group], texts: Sequence[Sequence[str]]) -> Replies:
    """Members of all groups side by side, as reward sources read them."""
    members = [m for g in groups for m in g.members]
    owners = [p for p, g in zip(prompts, groups, strict=True) for _ in g.members]
    return Replies(
        [p.messages for p in owners],
        [t for of_group in texts for t in of_group],
        np.array([len(m.ids) for m in members]),
        np.array([m.finished for m in members]),
        [p.user_id for p in owners],
        [p.agent for p in owners],
    )


def paid(
    prompts: Sequence[Prompt], groups: Sequence[Group], texts: Sequence[Sequence[str]], scored: Scored
) -> list[Paid]:
    """Each group with its share of what was scored."""
    size = len(groups[0].members) if groups else 0
    found = []
    for place, (prompt, group, said) in enumerate(zip(prompts, groups, texts, strict=True)):
        cut = slice(place * size, (place + 1) * size)
        values = {name: v[cut] for name, v in scored.values.items()}
        found.append(Paid(prompt, group, tuple(said), values, scored.total[cut], scored.faults.get(place)))
    return found


def summary(groups: Sequence[Paid]) -> dict[str, float]:
    """What a step's groups were like, as the policy sampled them: before any of them was replaced.

    Means and standard deviations are over single replies; groups that failed count in `failed_share` alone.
    """
    sound = [g for g in groups if g.fault is None]
    found = {
        "zero_variance_share": _share(g.flat for g in groups),
        "failed_share": _share(g.fault is not None for g in groups),
    }
    members = [m for g in groups for m in g.group.members]
    lengths = np.array([len(m.ids) for m in members], dtype=np.float64)
    found |= {"length": float(lengths.mean()), "length_std": float(lengths.std())}
    found["truncated_share"] = _share(not m.finished for m in members)
    if sound:
        total = np.concatenate([g.total for g in sound])
        found |= {"reward": float(total.mean()), "reward_std": float(total.std())}
        for name in sound[0].values:
            values = np.concatenate([g.values[name] for g in sound])
            found |= {f"rewards/{name}": float(values.mean()), f"rewards/{name}_std": float(values.std())}
    return found


def sample_rows(groups: Sequence[Paid], step: int) -> list[dict[str, Any]]:
    """Every reply as a plain row, for whoever wants to read what was sampled."""
    return [
        {
            "step": step,
            "prompt_key": g.prompt.key,
            "prompt": g.prompt.messages,
            "user_id": g.prompt.user_id,
            "agent": g.prompt.agent,
            "completion": text,
            "tokens": len(member.ids),
            "finished": member.finished,
            "reward": _number(g.total[i]),
            "rewards": {name: _number(v[i]) for name, v in g.values.items()},
            "fault": ": ".join(g.fault) if g.fault else None,
        }
        for g in groups
        for i, (text, member) in enumerate(zip(g.texts, g.group.members, strict=True))
    ]


def _share(flags: Any) -> float:
    flags = list(flags)
    return sum(flags) / len(flags) if flags else 0.0


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
