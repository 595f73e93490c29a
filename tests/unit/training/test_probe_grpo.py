"""Generations that are tried: the real loop of GRPO, and nothing of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedback.served import SERVED
from tests.unit.training.grpo_case import SMALL, ending_base, prompts
from tests.unit.training.test_probe import no_trace  # noqa: F401
from training import grpo, probe_grpo
from training.probe import duration
from training.update import Champion, Data


def test_generations_are_tried_with_the_longest_prompts_among_them(
    tiny_base: Path,
    moved_champion: Path,
    tmp_path: Path,
    no_trace: Path,  # noqa: F811
) -> None:
    base = ending_base(tiny_base, tmp_path / "base")
    champion = Champion(base, "test:tiny", moved_champion)
    config = grpo.Config.model_validate({**SMALL, "steps": 40, "iterations": 2, "prompts_per_step": 2})
    data = Data(prompts(12), SERVED.empty_table())
    chosen = probe_grpo.prompts_of(config, champion, data, 5)
    tried = probe_grpo.tried_prompts(config, chosen.prompts)
    longest = max(len(prompt.ids) for prompt in chosen.prompts)
    assert len(tried) == len(set(tried)) == 6
    assert [len(p.ids) for p in chosen.prompts if p.key == tried[0]] == [longest]
    made = probe_grpo.Sampled(config, champion, data, None, None, None, 5)
    told: list[int] = []
    found = probe_grpo.probe(made, chosen, lambda step, total, rate: told.append(step))
    assert told == [1, 2, 3]
    # 2 prompts of 4 replies, each of 1 to 12 tokens; a generation is counted once, however often it is learned from
    shortest = min(len(prompt.ids) for prompt in chosen.prompts)
    for step in found.steps:
        assert 2 * 4 * (shortest + 1) <= step.tokens <= 2 * 4 * (longest + 12)
        assert step.seconds > 0
    whole = probe_grpo.size(config, chosen, found)
    assert (whole.rows, whole.steps) == (12, 40)
    assert whole.tokens == pytest.approx(20 * (found.steps[1].tokens + found.steps[2].tokens) / 2, abs=1)
    mean = sum(step.seconds for step in found.steps[1:]) / 2
    assert duration(whole, found, 2).seconds == pytest.approx(found.start_s + 20 * mean)
    assert found.checkpoint_bytes > 0 and found.memory[0].optimizer > 0
    assert not list(no_trace.iterdir())
