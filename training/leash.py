"""How far a policy may go from another one: a penalty whose weight adapts to a budget.

The distance of an item is the mean over the tokens of its replies of the estimate k3 of KL(policy || other), see
`losses.kl_to_reference`: taken where people's feedback is, on replies of the log, not on fresh samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from training.policy_trainer import Item

_RATE, _CLIP = 0.1, 0.2
_START = 0.05
"""Weight that a budget without one starts from."""
_RANGE = 100.0


@dataclass(frozen=True)
class Leash:
    """A bounded distance to one other policy."""

    name: Literal["kl", "kl_base"]
    """`kl` to the champion, `kl_base` to the base model."""
    start: float
    """Weight of the penalty at the first step; without a budget, at every step."""
    budget: float | None
    """Nats per token that the distance is led to; None leaves the weight as it is."""

    def weight(self, history: Sequence[Mapping[str, float]]) -> float:
        """The penalty's weight at the next step, from what was logged of the steps before.

        w <- w (1 + 0.1 clip(distance / budget - 1, -0.2, 0.2)): Ziegler et al. 2019 (arXiv 1909.08593), section 2.2.
        Read from the log and kept nowhere else, so that a run that is resumed goes on with the same weight.
        """
        if self.budget is None:
            return self.start
        first = self.start or _START
        last = next((entry for entry in reversed(history) if f"{self.name}_weight" in entry), None)
        if last is None:
            return first
        error = min(max(last[self.name] / self.budget - 1, -_CLIP), _CLIP)
        moved = last[f"{self.name}_weight"] * (1 + _RATE * error)
        return float(min(max(moved, first / _RANGE), first * _RANGE))

    def distance(self, item: Item, logps: Sequence[Tensor]) -> Tensor:
        """() nats per token of one item.

        Args:
            item: with log-probabilities under the other policy.
            logps: of its first sequences, under the policy.
        """
        import torch

        from training.losses import kl_to_reference

        others = item.reference if self.name == "kl" else item.base
        return torch.cat([kl_to_reference(p, q.to(p)) for p, q in zip(logps, others, strict=False)]).mean()
