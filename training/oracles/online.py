"""The policy gradient of live replies: its surrogate by hand, its importance weights on a known distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, log, nan
from typing import Any

from training.oracles import hand
from training.oracles.finding import Comparison, near, oracle, same

LOW, HIGH = 0.2, 0.28
_RATIOS = (0.5, 0.95, 1.0, 1.2, 1.6)
_ADVANTAGES = (1.5, -0.5)
_DISTANCES = (-0.7, 0.0, 0.4)


@oracle(
    "online",
    protects="a step that is larger than the clip allows, or one that is not taken at all",
    reference="arXiv 1707.06347 eq. 7, 2503.14476 eq. 10; J. Schulman 2020, k3; SkyRL#1315",
)
def online_loss(subject: Any) -> Iterator[Comparison]:
    """Surrogate, distance and sample size; the subject has these functions of `training.losses`."""
    import torch

    from training import losses

    of = subject or losses
    cases = [(ratio, gain) for ratio in _RATIOS for gain in _ADVANTAGES]
    old = torch.full((len(cases),), -1.5)
    logp = torch.tensor([-1.5 + log(ratio) for ratio, _ in cases], requires_grad=True)
    found = of.policy_gradient(logp, old, torch.tensor([a for _, a in cases]), clip_low=LOW, clip_high=HIGH)
    found.sum().backward()
    right = [hand.surrogate(-1.5 + log(ratio), -1.5, gain, LOW, HIGH) for ratio, gain in cases]
    assert logp.grad is not None
    yield same("surrogate", found.detach(), torch.tensor([r.loss for r in right]), rel=1e-5)
    yield same("its gradient", logp.grad, torch.tensor([r.by[0] for r in right]), rel=1e-5)

    logp = torch.tensor([-1.5 + d for d in _DISTANCES], requires_grad=True)
    found = of.kl_to_reference(logp, torch.full((3,), -1.5))
    found.sum().backward()
    right = [hand.k3(-1.5 + d, -1.5) for d in _DISTANCES]
    assert logp.grad is not None
    yield same("distance to the champion", found.detach(), torch.tensor([r.loss for r in right]), rel=1e-5)
    yield same("its gradient", logp.grad, torch.tensor([r.by[0] for r in right]), rel=1e-5)

    yield near(
        "sample size of weights 1, 1, 2", of.effective_sample_size(torch.tensor([1.0, 1.0, 2.0])), 16 / 6
    )


_SERVED = (0.5, 0.25, 0.125, 0.125)
"""Probabilities with which four replies were served, …"""
_CHAMPION = (0.25, 0.25, 0.3, 0.2)
"""… and those that the champion gives them."""
_REWARDS = (0.75, -0.25, 0.0, 0.5)


@oracle(
    "online",
    protects="learning from replies of another policy as if the champion had given them",
    reference="Ionides 2008, truncated importance sampling; slime#1800",
)
def online_weights(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """Weights of four replies served with known probabilities; the subject is called as `online.importance`."""
    import numpy as np
    import torch

    from training import online
    from training.policy_trainer import Item
    from training.sequences import Tokens

    def item(champion: float, logged: float) -> Item:
        # Two tokens, so that whoever takes a mean where the sum belongs is found out.
        parts = torch.tensor([0.25, 0.75]) * log(champion)
        return Item((Tokens((1,), (3, 4)),), {"logged": logged}, (parts,))

    weigh = subject or online.importance
    items = [item(p, log(q)) for p, q in zip(_CHAMPION, _SERVED, strict=True)]
    weights = torch.tensor(np.asarray(weigh(items, 1e9)), dtype=torch.float64)
    right = torch.tensor([p / q for p, q in zip(_CHAMPION, _SERVED, strict=True)], dtype=torch.float64)
    yield same("weights", weights, right, rel=1e-5)
    served, rewards = torch.tensor(_SERVED).double(), torch.tensor(_REWARDS).double()
    yield near("mean weight of what is served", (served * weights).sum(), 1.0)
    value = sum(p * r for p, r in zip(_CHAMPION, _REWARDS, strict=True))
    yield near("champion's mean reward, from the served", (served * weights * rewards).sum(), value)
    cut = np.asarray(weigh([item(0.9, log(0.1)), item(0.9, nan), item(0.9, -exp(7.0))], 2.0))
    yield same(
        "cut at 2, without a log, impossible", torch.tensor(cut), torch.tensor([2.0, 1.0, 2.0]), rel=1e-6
    )
