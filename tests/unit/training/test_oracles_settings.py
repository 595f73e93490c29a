"""Arguments of TRL's trainers that run into a known fault are named; their neighbours are not."""

from __future__ import annotations

from typing import Any

import pytest

from training.errors import TrainingError
from training.library_faults import RULES, TRAINERS, Machine, faults_of_arguments

CPU, GPU = Machine(False, {}), Machine(True, {})
CASES: dict[str, list[tuple[str, dict[str, Any], Machine, bool]]] = {
    "sampling_bias": [
        ("grpo", {"top_p": 0.8}, GPU, True),
        ("rloo", {"top_k": 50}, GPU, True),
        ("grpo", {"min_p": 0.1}, GPU, True),
        ("grpo", {"repetition_penalty": 1.1}, GPU, True),
        ("grpo", {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}, GPU, False),
        ("grpo", {"top_p": None, "top_k": None}, GPU, False),
        ("grpo", {"top_k": -1}, GPU, False),
        ("dpo", {"top_p": 0.8}, GPU, False),
    ],
    "adapter_cast_to_bf16": [
        ("grpo", {"use_transformers_continuous_batching": True, "bf16": True}, CPU, True),
        ("grpo", {"use_transformers_continuous_batching": True}, CPU, True),  # TRL's default is bf16
        ("grpo", {"use_transformers_paged": True}, CPU, True),
        ("grpo", {"use_transformers_continuous_batching": True, "bf16": False}, CPU, False),
        ("grpo", {"use_transformers_continuous_batching": True, "fp16": True}, CPU, False),
        ("grpo", {"bf16": True}, CPU, False),
    ],
    "checkpoint_inside_a_generation": [
        ("grpo", {"num_iterations": 2, "save_steps": 3}, GPU, True),
        ("grpo", {"num_iterations": 2, "save_steps": 4}, GPU, False),
        ("grpo", {"num_iterations": 3}, GPU, True),  # a checkpoint every 500 steps by default
        ("grpo", {"num_iterations": 3, "save_strategy": "no"}, GPU, False),
        ("grpo", {"steps_per_generation": 8, "gradient_accumulation_steps": 4, "save_steps": 5}, GPU, True),
        ("grpo", {"steps_per_generation": 8, "gradient_accumulation_steps": 4, "save_steps": 6}, GPU, False),
        ("grpo", {"steps_per_generation": 4, "gradient_accumulation_steps": 4, "save_steps": 7}, GPU, False),
        ("grpo", {"num_iterations": 2, "save_steps": 0.1}, GPU, True),  # a share of the steps: nobody knows where
        ("grpo", {"save_steps": 7}, GPU, False),
    ],
    "bnpo_by_micro_batch": [
        ("grpo", {"loss_type": "bnpo", "gradient_accumulation_steps": 2}, GPU, True),
        ("grpo", {"loss_type": "bnpo"}, GPU, False),
        ("grpo", {"loss_type": "dapo", "gradient_accumulation_steps": 2}, GPU, False),
    ],
    "masked_replies_count": [
        ("grpo", {"loss_type": "dr_grpo", "mask_truncated_completions": True}, GPU, True),
        ("grpo", {"loss_type": "grpo", "mask_truncated_completions": True}, GPU, True),
        ("grpo", {"mask_truncated_completions": True}, GPU, False),  # dapo
        ("grpo", {"loss_type": "dr_grpo"}, GPU, False),
    ],
    "kl_of_one_row": [
        ("kto", {"per_device_train_batch_size": 1}, GPU, True),
        ("kto", {"per_device_train_batch_size": 1, "loss_type": "apo_zero_unpaired"}, GPU, False),
        ("kto", {"per_device_train_batch_size": 2}, GPU, False),
        ("kto", {}, GPU, False),
        ("dpo", {"per_device_train_batch_size": 1}, GPU, False),
    ],
    "kl_by_micro_batch": [
        ("kto", {"gradient_accumulation_steps": 4}, GPU, True),
        ("kto", {"gradient_accumulation_steps": 4, "loss_type": "apo_zero_unpaired"}, GPU, False),
        ("kto", {}, GPU, False),
    ],
    "padding_free_ignored": [
        ("dpo", {"padding_free": True}, GPU, True),
        ("dpo", {"padding_free": False}, GPU, False),
        ("sft", {"padding_free": True}, GPU, False),
    ],
    "fsdp_on_cpu": [
        ("sft", {"fsdp": "full_shard auto_wrap"}, CPU, True),
        ("dpo", {"fsdp": True, "use_cpu": True}, GPU, True),
        ("kto", {}, Machine(False, {"ACCELERATE_USE_FSDP": "True"}), True),
        ("grpo", {"fsdp": True}, GPU, False),
        ("grpo", {"fsdp": ""}, CPU, False),
        ("grpo", {}, Machine(False, {"ACCELERATE_USE_FSDP": "false"}), False),
    ],
    "precompute_under_fsdp2": [
        ("dpo", {"precompute_ref_log_probs": True, "fsdp": True}, GPU, True),
        ("dpo", {"precompute_ref_log_probs": True, "fsdp": True, "fsdp_config": {"version": 2}}, GPU, True),
        ("dpo", {"precompute_ref_log_probs": True, "fsdp": True, "fsdp_config": {"fsdp_version": 1}}, GPU, False),
        ("dpo", {"precompute_ref_log_probs": True}, Machine(True, {"ACCELERATE_USE_FSDP": "true"}), True),
        ("dpo", {"precompute_ref_log_probs": True}, GPU, False),
        ("dpo", {"fsdp": True}, GPU, False),
    ],
}  # fmt: skip
BY_NAME = {rule.name: rule for rule in RULES}


def test_every_rule_has_cases_on_both_sides() -> None:
    assert set(CASES) == set(BY_NAME) and len(BY_NAME) == len(RULES)
    for name, cases in CASES.items():
        assert {hit for *_, hit in cases} == {True, False}, name


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_a_fault_is_named_where_it_is_and_only_there(
    name: str, case: tuple[str, dict[str, Any], Machine, bool]
) -> None:
    trainer, arguments, machine, hit = case
    rule = BY_NAME[name]
    found = [f for f in faults_of_arguments(trainer, arguments, machine) if f.fault == rule.fault]
    assert bool(found) == hit
    for fault in found:
        assert fault.reference == rule.reference and fault.instead == rule.instead
        assert set(fault.setting.split(" / ")) <= set(rule.settings)


def test_what_was_given_is_shown_and_nothing_else() -> None:
    (fault,) = faults_of_arguments("grpo", {"top_p": 0.8, "top_k": None, "learning_rate": 1.0}, GPU)
    assert (fault.setting, fault.got) == ("top_p", 0.8)
    (fault,) = faults_of_arguments("grpo", {"num_iterations": 2, "save_steps": 5}, GPU)
    assert (fault.setting, fault.got) == ("save_steps / num_iterations", (5, 2))
    (fault,) = faults_of_arguments("sft", {}, Machine(False, {"ACCELERATE_USE_FSDP": "true"}))
    assert (fault.setting, fault.got) == ("fsdp", "not set")


def test_a_rule_says_what_is_wrong_where_it_was_seen_and_what_to_set() -> None:
    for rule in RULES:
        assert rule.fault and rule.reference and rule.instead and set(rule.trainers) <= set(TRAINERS)


def test_defaults_of_every_trainer_are_free_of_faults() -> None:
    for trainer in TRAINERS:
        assert faults_of_arguments(trainer, {}, CPU) == []


def test_an_unknown_trainer_is_refused() -> None:
    with pytest.raises(TrainingError, match="dpo, grpo, kto"):
        faults_of_arguments("ppo", {}, CPU)


def test_arguments_that_trl_itself_would_take() -> None:
    """What a configuration of the installed TRL holds can be handed over as it is."""
    from trl import GRPOConfig

    arguments = GRPOConfig(
        output_dir="unused", use_cpu=True, bf16=False, top_p=0.8, num_iterations=2, save_steps=5,
        loss_type="dr_grpo", mask_truncated_completions=True, per_device_train_batch_size=8,
    ).to_dict()  # fmt: skip
    found = [fault.setting for fault in faults_of_arguments("grpo", arguments, CPU)]
    assert [name.split(" / ")[0] for name in found] == ["top_p", "save_steps", "mask_truncated_completions"]
