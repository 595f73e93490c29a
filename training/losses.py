"""Losses of policy updates on log-probabilities: pure functions, one value for each row, no mean taken.

Every function takes what a forward pass gave and what was stored, and returns tensors with a row's loss in each
place; the caller weighs and sums them, so that a batch and its micro-batches give the same gradient.
Log-probabilities are in nats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


def dpo(
    chosen: Tensor,
    rejected: Tensor,
    *,
    beta: float,
    kind: Literal["sigmoid", "ipo", "robust"] = "sigmoid",
    label_noise: float = 0.0,
    offset: Tensor | float = 0.0,
    chosen_tokens: Tensor | None = None,
    rejected_tokens: Tensor | None = None,
) -> Tensor:
    """(B,) losses of B pairs.

    With h = beta (chosen - rejected) - offset:

    - `sigmoid`: -log s(h). Rafailov et al. 2023 (arXiv 2305.18290), eq. 7; the offset is that of Amini et al. 2024
      (arXiv 2402.10571), eq. 4.
    - `robust`: (-(1 - e) log s(h) + e log s(-h)) / (1 - 2e), unbiased where a share e of the labels is flipped.
      Chowdhury et al. 2024 (arXiv 2403.00409), eq. 12.
    - `ipo`: (chosen / T_w - rejected / T_l - 1 / (2 beta))^2. Azar et al. 2023 (arXiv 2310.12036), eq. 17, on
      log-ratios per token as TRL has it.

    Args:
        chosen: (B,) log-ratio of policy to reference, summed over the chosen reply's tokens.
        rejected: (B,) likewise of the rejected reply.
        beta: strength of the pull towards the reference.
        kind: which loss.
        label_noise: e of `robust`, below one half.
        offset: by how much h must at least be positive; scalar or (B,).
        chosen_tokens: (B,) tokens of the chosen replies, for `ipo`.
        rejected_tokens: (B,) likewise.
    """
    from torch.nn.functional import logsigmoid

    if kind == "ipo":
        assert chosen_tokens is not None and rejected_tokens is not None
        per_token = chosen / chosen_tokens.clamp(min=1) - rejected / rejected_tokens.clamp(min=1)
        loss: Tensor = (per_token - 1 / (2 * beta)) ** 2
        return loss
    h = beta * (chosen - rejected) - offset
    if kind == "robust":
        clean, flipped = (1 - label_noise) * logsigmoid(h), label_noise * logsigmoid(-h)
        return (flipped - clean) / (1 - 2 * label_noise)
    return -logsigmoid(h)


def kto(ratio: Tensor, liked: Tensor, kl: Tensor | float, *, beta: float) -> Tensor:
    """(B,) losses of B single replies, before the weights of liked and disliked ones.

    Liked: 1 - s(beta (ratio - kl)); disliked: 1 - s(beta (kl - ratio)). Ethayarajh et al. 2024
    (arXiv 2402.01306), eq. 7 and 8, with `kl` the estimate that no gradient flows through.

    Args:
        ratio: (B,) log-ratio of policy to reference, summed over the reply's tokens.
        liked: (B,) of bool.
        kl: estimate of KL(policy || reference), not negative: see `kto_kl`.
        beta: risk aversion, and strength of the pull towards the reference.
    """
    import torch

    sign = torch.where(liked, 1.0, -1.0).to(ratio)
    return 1 - torch.sigmoid(beta * sign * (ratio - kl))


def kto_kl(ratio_of_others: Tensor) -> Tensor:
    """() estimate of KL(policy || reference): mean log-ratio of replies to other prompts, never below 0.

    Each prompt is paired with the reply to another one of the whole data set, not of its micro-batch: an odd batch or
    one of a single row has its estimate like any other. Ethayarajh et al. 2024, section 4.1.

    Args:
        ratio_of_others: (B,) log-ratios of mismatched replies; no gradient flows through them.
    """
    return ratio_of_others.detach().mean().clamp(min=0)


def policy_gradient(
    logp: Tensor,
    behaviour: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """(N,) clipped surrogate losses of N tokens: -min(r A, clip(r, 1 - low, 1 + high) A), r = exp(logp - behaviour).

    Schulman et al. 2017 (arXiv 1707.06347), eq. 7; two bounds after Yu et al. 2025 (arXiv 2503.14476), eq. 10.

    Args:
        logp: (N,) under the policy that is trained.
        behaviour: (N,) under the policy that sampled the tokens.
        advantage: (N,) of the reply each token belongs to.
        clip_low: how far below 1 the ratio may still move the loss.
        clip_high: how far above.
    """
    import torch

    ratio = torch.exp(logp - behaviour)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantage, clipped * advantage)


def kl_to_reference(logp: Tensor, reference: Tensor) -> Tensor:
    """(N,) estimates of KL(policy || reference) at N sampled tokens: exp(-d) - 1 + d with d = logp - reference.

    J. Schulman, "Approximating KL divergence" (2020), estimator k3: never negative, unbiased for sampled tokens.
    """
    import torch

    d = reference - logp
    return torch.expm1(d) - d


def self_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """(N,) KL(teacher || student) over the vocabulary at N tokens; no gradient flows into the teacher.

    The teacher is the policy itself that has also read what the user wrote next (hindsight), the student is the
    policy without it. After "hindsight" self-distillation from user interactions (arXiv 2603.12273).

    Args:
        student: (N, V) logits.
        teacher: (N, V) logits.
    """
    from torch.nn.functional import kl_div, log_softmax

    target = log_softmax(teacher.detach().float(), -1)
    return kl_div(log_softmax(student.float(), -1), target, log_target=True, reduction="none").sum(-1)


def effective_sample_size(weights: Tensor) -> Tensor:
    """() Kish's effective sample size (sum w)^2 / sum w^2 of importance weights; 0 without any weight."""
    import torch

    total = weights.sum()
    return torch.where(total > 0, total**2 / (weights**2).sum().clamp(min=1e-30), torch.zeros_like(total))
