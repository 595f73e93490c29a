"""Words teach: the student moves to the teacher that has read the next message, and to what users corrected."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from feedback.tables import PREFERENCES
from tests.unit.reward_models.made import text
from tests.unit.training.served import served_row, served_rows
from training import losses, words
from training.errors import NotEnoughPreferences
from training.result import TrainResult
from training.update import Champion, Data, Run

CONFIG = words.Config(
    learning_rate=3e-3, epochs=3, batch_rows=8, micro_batch_rows=4, max_tokens=192, min_rows=8, kl_weight=0.0
)


def update(base: Path, champion: Path, output: Path, served: pa.Table, **changes: Any) -> TrainResult:
    return words.train(
        CONFIG.model_copy(update=changes),
        Champion(base, "test:tiny", champion, "champion"),
        Data(PREFERENCES.empty_table(), served),
        None,
        Run(output, 7),
    )


def test_distillation_by_hand() -> None:
    # Teacher (0.75, 0.25), student (0.5, 0.5): KL = 0.75 log 1.5 + 0.25 log 0.5.
    student = torch.zeros(1, 2, requires_grad=True)
    teacher = torch.tensor([[0.75, 0.25]]).log().requires_grad_()
    loss = losses.self_distillation(student, teacher)
    assert loss.tolist() == pytest.approx([0.1308120], abs=1e-6)
    loss.sum().backward()
    assert student.grad is not None and student.grad[0].tolist() == pytest.approx([-0.25, 0.25])
    assert teacher.grad is None  # nothing is learned by the teacher


def test_hindsight_brings_the_student_nearer_to_the_teacher(
    tiny_base: Path, moved_champion: Path, tmp_path: Path
) -> None:
    dice = random.Random(1)
    rows = [served_row(n, text(6, dice), next_message="Shorter, please: nur kurz, 短く!") for n in range(16)]
    result = update(tiny_base, moved_champion, tmp_path, served_rows(rows))
    assert result.metrics["hindsight"] == 16
    assert result.metrics["edits"] == 0
    assert result.curve[-1]["hindsight_loss"] < 0.8 * result.curve[0]["hindsight_loss"]


def test_edits_become_likely(tiny_base: Path, moved_champion: Path, tmp_path: Path) -> None:
    from evaluation.logprobs import reply_logprobs
    from evaluation.replies import load_policy

    dice = random.Random(1)
    rows = [served_row(n, text(6, dice), edit="The bread, the nets and the wind.") for n in range(16)]
    result = update(tiny_base, moved_champion, tmp_path, served_rows(rows))
    assert result.metrics["edits"] == 16
    prompt = [{"role": "user", "content": "What about number 99?"}]
    before, after = (
        reply_logprobs(load_policy(tiny_base, a), [prompt], ["The bread, the nets and the wind."]).per_token[
            0
        ]
        for a in (moved_champion, result.adapter)
    )
    assert after > before + 0.3


def test_the_hint_is_put_in_as_text() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi {next} {0}"}]
    found = words.with_hint(prompt, 'Later: "{next}".', "{next} %s {x}")
    assert found == [prompt[0], {"role": "user", "content": 'Hi {next} {0}\n\nLater: "{next} %s {x}".'}]
    assert prompt[1]["content"] == "Hi {next} {0}"
    with pytest.raises(ValueError, match="must hold"):
        words.Config(hint="no place")


def test_rows_without_words_are_counted(tiny_base: Path, moved_champion: Path, tmp_path: Path) -> None:
    rows = [served_row(n, "Yes.") for n in range(4)] + [served_row(9, "Yes.", comment="Too short.")]
    with pytest.raises(NotEnoughPreferences, match=r"1 usable replies \(no_words: 4\)"):
        update(tiny_base, moved_champion, tmp_path, served_rows(rows))
