"""Losses and their derivatives by the papers' formulas, one number at a time, without torch.

A second way to the same numbers: whoever mistakes a formula here and in `training.losses` alike would have to do so
in two notations. The tests hold these against literal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, log1p
from typing import NamedTuple


class Slope(NamedTuple):
    """A loss and its derivatives, in the order of the arguments."""

    loss: float
    by: tuple[float, ...]


def sigmoid(x: float) -> float:
    """The logistic function."""
    return 1 / (1 + exp(-x))


def dpo(
    kind: str, better: float, worse: float, tokens: tuple[int, int], beta: float, noise: float, offset: float
) -> Slope:
    """One pair's loss by the log-ratios of the chosen and the rejected reply; see `training.losses.dpo`."""
    if kind == "ipo":
        gap = better / tokens[0] - worse / tokens[1] - 1 / (2 * beta)
        return Slope(gap * gap, (2 * gap / tokens[0], -2 * gap / tokens[1]))
    h = beta * (better - worse) - offset
    e = noise if kind == "robust" else 0.0
    loss = ((1 - e) * log1p(exp(-h)) - e * log1p(exp(h))) / (1 - 2 * e)
    slope = beta * (-(1 - e) * sigmoid(-h) - e * sigmoid(h)) / (1 - 2 * e)
    return Slope(loss, (slope, -slope))


def kto(ratio: float, liked: bool, kl: float, beta: float) -> Slope:
    """One reply's loss by its log-ratio; see `training.losses.kto`."""
    sign = 1.0 if liked else -1.0
    s = sigmoid(beta * sign * (ratio - kl))
    return Slope(1 - s, (-beta * sign * s * (1 - s),))


def surrogate(logp: float, old: float, advantage: float, low: float, high: float) -> Slope:
    """One token's clipped loss by its log-probability; see `training.losses.policy_gradient`."""
    ratio = exp(logp - old)
    clipped = min(max(ratio, 1 - low), 1 + high)
    if ratio * advantage <= clipped * advantage:
        return Slope(-ratio * advantage, (-ratio * advantage,))
    return Slope(-clipped * advantage, (0.0,))


def k3(logp: float, reference: float) -> Slope:
    """One token's estimate of the KL by its log-probability; see `training.losses.kl_to_reference`."""
    d = reference - logp
    return Slope(exp(d) - 1 - d, (1 - exp(d),))


def grpo(
    kind: str,
    logps: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]],
    reference: Sequence[Sequence[float]],
    advantages: Sequence[float],
    *,
    beta: float,
    clip: tuple[float, float],
    limit: int,
    kept: Sequence[bool],
) -> tuple[float, list[list[float]]]:
    """Loss of N replies, and its derivative by each of their tokens; see `training.grpo`.

    Args:
        kind: dr_grpo, dapo, grpo or bnpo; dapo and bnpo are the same where one micro-batch is the whole batch.
        logps: of each reply (T_i,) under the policy.
        old: under the policy that it was sampled from.
        reference: under the champion.
        advantages: (N,)
        beta: weight of the KL, which the ratio multiplies.
        clip: how far below and above 1 the ratio moves the loss.
        limit: `max_new_tokens`.
        kept: (N,) whether a reply is learned from.
    """
    tokens = sum(len(row) for row, keep in zip(logps, kept, strict=True) if keep)
    total, slopes = 0.0, []
    for row, before, ref, gain, keep in zip(logps, old, reference, advantages, kept, strict=True):
        divisor = {"dr_grpo": sum(kept) * limit, "grpo": sum(kept) * len(row)}.get(kind, tokens)
        by = []
        for logp, o, r in zip(row, before, ref, strict=True):
            ratio, pull, step = exp(logp - o), k3(logp, r), surrogate(logp, o, gain, *clip)
            total += keep * (step.loss + beta * ratio * pull.loss) / divisor
            by.append(keep * (step.by[0] + beta * ratio * (pull.loss + pull.by[0])) / divisor)
        slopes.append(by)
    return total, slopes


def divergence(teacher: Sequence[float], student: Sequence[float]) -> Slope:
    """KL(teacher || student) of two lists of logits, by each of the student's."""
    p, q = _softmax(teacher), _softmax(student)
    loss = sum(a * (log(a) - log(b)) for a, b in zip(p, q, strict=True))
    return Slope(loss, tuple(b - a for a, b in zip(p, q, strict=True)))


def _softmax(logits: Sequence[float]) -> list[float]:
    weights = [exp(x) for x in logits]
    return [w / sum(weights) for w in weights]
