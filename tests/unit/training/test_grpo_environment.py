"""Turns with an environment and tools, on a tiny base that was taught to call one."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.grpo_case import prompts, update
from training.adapter import LoraSettings, new_adapter
from training.errors import TrainingError
from training.reward_sources import Replies

HERE = "tests.unit.training.test_grpo_environment"
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
ANSWER = "It is blue."
ROWS = prompts(1)
SAID = 100
"""Tokens after the prompt, about."""


class Lamp:
    """A lamp of one colour, which one has to look at."""

    made: int = 0

    def __init__(self) -> None:
        Lamp.made += 1
        self.looked = 0

    def reset(self, **row: Any) -> None:  # noqa: ARG002
        """Nobody has looked yet."""
        self.looked = 0

    def look(self) -> str:
        """Look at the lamp.

        Returns:
            Its colour.
        """
        self.looked += 1
        return "blue"


class PayingLamp(Lamp):
    """One that pays for being looked at."""

    def get_reward(self) -> float:
        """One for each look."""
        return float(self.looked)


def look() -> str:
    """Look at the lamp.

    Returns:
        Its colour.
    """
    return "blue"


def last_words(replies: Replies) -> list[float]:
    """Pays for the answer after the look."""
    return [float(text == ANSWER) for text in replies.texts]


@pytest.fixture(scope="module")
def base(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny base with Qwen's chat template, taught by heart to look and then to answer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import get_json_schema

    directory = tmp_path_factory.mktemp("tools") / "base"
    shutil.copytree(tiny_base, directory)
    template = resources.files("trl").joinpath("chat_templates/qwen2_5.jinja").read_text()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(template)
    model = AutoModelForCausalLM.from_pretrained(directory)
    called = {"type": "function", "function": {"name": "look", "arguments": {}}}
    texts = [
        [
            *row["prompt"],
            {"role": "assistant", "content": "", "tool_calls": [called]},
            {"role": "tool", "name": "look", "content": "blue"},
            {"role": "assistant", "content": ANSWER},
        ]
        for row in ROWS.to_pylist()
    ]
    rendered = [
        tokenizer.apply_chat_template(t, tools=[get_json_schema(look)], tokenize=True, return_dict=False)
        for t in texts
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ids = torch.tensor(rendered)
    labels = ids.masked_fill(torch.arange(ids.shape[1]) < ids.shape[1] - SAID, -100)
    for _ in range(60):
        loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.05
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def champion(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_adapter(
        base, "test:tiny", tmp_path_factory.mktemp("champion") / "c", LoraSettings(r=4, alpha=8), 1
    )


RUN: dict[str, Any] = {
    "rows": ROWS,
    "min_prompts": 1,
    "prompts_per_step": 1,
    "group_size": 4,
    "micro_batch": 2,
    "steps": 2,
    "max_new_tokens": 200,
    "max_prompt_tokens": 900,
    "temperature": 0.2,
    "learning_rate": 1e-3,
    "rewards": {"sources": {f"{HERE}:last_words": 1.0, "length": 0.1}, "guards": {"empty": 1.0}},
}


def test_an_environment_answers_and_the_policy_goes_on(base: Path, champion: Path, tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = []
    Lamp.made = 0
    result = update(
        base,
        champion,
        tmp_path,
        environment=f"{HERE}:PayingLamp",
        on_samples=lambda _, rows: samples.extend(rows),
        **RUN,
    )
    assert Lamp.made == 4  # one for each rollout, used again in the next generation
    assert result.metrics["tools/call_frequency"] == 1.0
    assert result.metrics["tools/failure_frequency"] == 0.0
    assert result.metrics["rewards/PayingLamp"] == 1.0  # each was looked at once
    assert result.metrics[f"rewards/{HERE}.last_words"] == 1.0  # the second turn, after the tool's answer
    assert {row["completion"] for row in samples} == {ANSWER}
    assert len(samples) == 8
    # The total is TRL's, which alone knows what the environment pays.
    expected = 1.0 + 1.0 + 0.1 * result.metrics["rewards/length"]
    assert result.metrics["reward"] == pytest.approx(expected, rel=1e-5)


def test_what_the_environment_wrote_is_not_trained_on(
    base: Path, champion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.grpo_trainer import Trainer

    seen: list[Any] = []
    compute = Trainer.compute_loss

    def watched(self: Any, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        seen.append((self.processing_class, inputs))
        return compute(self, model, inputs, *given, **named)

    monkeypatch.setattr(Trainer, "compute_loss", watched)
    update(base, champion, tmp_path, environment=f"{HERE}:Lamp", **RUN)
    for tokenizer, inputs in seen:
        for ids, mask, own in zip(
            inputs["completion_ids"], inputs["completion_mask"], inputs["tool_mask"], strict=True
        ):
            written = tokenizer.decode(ids[(mask * own).bool()])
            assert written == f"{CALL}<|im_end|>{ANSWER}<|im_end|>"
            assert "blue" in tokenizer.decode(ids[(mask * (1 - own)).bool()])


def test_tools_alone(base: Path, champion: Path, tmp_path: Path) -> None:
    result = update(base, champion, tmp_path, tools=[f"{HERE}:look"], **RUN)
    assert result.metrics["tools/call_frequency"] == 1.0
    assert result.metrics[f"rewards/{HERE}.last_words"] == 1.0
    assert result.metrics["zero_variance_share"] == 1.0  # counted; such groups are not refilled with turns


def test_one_turn_ends_before_the_tool(base: Path, champion: Path, tmp_path: Path) -> None:
    result = update(base, champion, tmp_path, tools=[f"{HERE}:look"], max_turns=1, **RUN)
    assert result.metrics[f"rewards/{HERE}.last_words"] == 0.0


def test_a_template_without_tool_calls_is_refused(
    tiny_base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="tool call") as caught:
        update(tiny_base, fresh_champion, tmp_path, environment=f"{HERE}:Lamp", **RUN)
    assert "environment" in str(caught.value.next_step)


@pytest.mark.parametrize("name", ["no.such:thing", f"{HERE}:Nothing", "nothing"])
def test_an_environment_that_cannot_be_imported_is_refused(
    name: str, tiny_base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="cannot be imported"):
        update(tiny_base, fresh_champion, tmp_path, environment=name, **RUN)
