"""Every oracle fails on a copy that was broken on purpose: what it says of the real thing is worth something."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.training import broken
from training.oracles import oracles

ALL = oracles()
BROKEN: dict[str, dict[str, Any]] = {
    "accumulation_trl_dpo": {"divided again": broken.DPO_DIVIDED_AGAIN},
    "accumulation_trl_grpo": {"divided again": broken.GRPO_DIVIDED_AGAIN},
    "accumulation_trl_sft": {"divided again": broken.SFT_DIVIDED_AGAIN},
    "dpo_loss": {
        "swapped": broken.dpo_swapped,
        "no offset": broken.dpo_without_offset,
        "robust not rescaled": broken.dpo_robust_not_rescaled,
        "ipo of sums": broken.dpo_ipo_of_sums,
    },
    "dpo_trl": {"beta twice": broken.DPO_BETA_TWICE},
    "fsdp_on_cpu": {
        "starts all the same": lambda *_, **__: None,
        "never starts": broken.never_starts,
    },
    "grpo_on_policy": {"old log-probabilities from elsewhere": broken.GRPO_OLD_FROM_ELSEWHERE},
    "grpo_trl": {"padding in the mean": broken.GRPO_PADDING_COUNTS},
    "grpo_truncated": {"truncated in the denominator": broken.GRPO_COUNTS_THE_MASKED},
    "kto_kl": {
        "of the micro-batch": broken.kto_of_the_micro_batch,
        "of its own reply": broken.kto_of_its_own_reply,
    },
    "kto_loss": {
        "sides swapped": broken.KTO_SIDES_SWAPPED,
        "gradient through the KL": broken.KTO_KL_WITH_GRADIENT,
        "KL below zero": broken.KTO_KL_BELOW_ZERO,
        "KL of sums": broken.KTO_KL_OF_SUMS,
    },
    "kto_trl": {"beta twice": broken.KTO_BETA_TWICE, "takes one row": broken.KTO_TAKES_ONE_ROW},
    "online_loss": {
        "unclipped": broken.ONLINE_UNCLIPPED,
        "clipped both ways": broken.ONLINE_CLIPPED_BOTH_WAYS,
        "distance k1": broken.ONLINE_DISTANCE_K1,
        "another sample size": broken.ONLINE_SIZE_OF_SUMS,
    },
    "online_weights": {"uncut": broken.weights_uncut, "of a mean": broken.weights_of_a_mean},
    "padding": {
        "padding read as text": broken.left_padded_without_a_mask,
        "the end left out": broken.end_left_out,
    },
    "padding_trl": {"padding read as text": broken.GRPO_BLIND_TO_PADDING},
    "reference_trl": {"of the next row": broken.DPO_REFERENCES_SHIFTED},
    "reward_place": {"first end": broken.reads_the_first_end, "last column": broken.reads_the_last_column},
    "rollout_logprobs": {"the old policy": broken.forgetful_engine},
    "sampling": broken.samplers(),
    "self_distillation": {
        "swapped": broken.student_and_teacher_swapped,
        "the teacher is pulled": broken.teacher_is_pulled,
    },
}


@pytest.mark.parametrize(("name", "how"), [(name, how) for name, copies in BROKEN.items() for how in copies])
def test_a_broken_copy_fails(name: str, how: str) -> None:
    found = ALL[name].check(BROKEN[name][how])
    assert not found.passed, found
    off = [c for c in found.comparisons if not c.holds and not c.avoided]
    assert any(c.what != "ran" for c in off), off  # it fails for its number, not because it does not run
