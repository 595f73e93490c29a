"""`palate doctor --method`: right numbers end with 0, a setting that runs into a known fault with 3 and its name."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Palate


@pytest.mark.timeout(120)
def test_numbers_are_checked_and_faulty_settings_refused(palate: Palate) -> None:
    good = palate("doctor", "--method", "words", "--json")
    assert good.code == 0, good.err
    assert {oracle["name"] for oracle in good.json["oracles"]} >= {
        "self_distillation",
        "adapter",
        "padding",
        "resume",
    }
    assert all(oracle["passed"] for oracle in good.json["oracles"])
    refused = palate("doctor", "--method", "grpo", "--json", "--set", "train.grpo.loss=bnpo")
    assert refused.code == 3
    (fault,) = refused.json["refused_settings"]
    assert fault["setting"] == "train.grpo.loss" and "micro-batch" in fault["fault"]
    unknown = palate("doctor", "--method", "ppo")
    assert unknown.code == 2 and "Allowed: dpo, grpo, kto, mix, online, words, all" in unknown.err
