"""The full reward model (TRL RewardTrainer) on a tiny base."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reward_models import preference_lm, scorer, ties
from reward_models.scorer import NotEnoughVotes, RewardModelError
from tests.unit.reward_models.made import row, shorter_wins, table

CONFIG = preference_lm.Config(learning_rate=3e-3, epochs=3, batch_pairs=8, max_tokens=64, lora_r=4)


@pytest.fixture(scope="module")
def fitted(tiny_base: Path) -> preference_lm.PreferenceLM:
    return preference_lm.fit(CONFIG, shorter_wins(40), base=tiny_base, seed=0)


def test_it_learns_that_shorter_wins_on_its_own_pairs(fitted: preference_lm.PreferenceLM) -> None:
    rows = shorter_wins(40).to_pydict()
    chosen, rejected = (fitted.score(rows["prompt"], rows[side]) for side in ("chosen", "rejected"))
    assert (chosen.mean > rejected.mean).mean() > 0.8
    assert np.isnan(chosen.std).all()  # one network says nothing about its own uncertainty
    assert fitted.trained_on == frozenset(rows["preference_id"])


def test_saved_and_loaded_it_scores_the_same(
    fitted: preference_lm.PreferenceLM, tiny_base: Path, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "scorer")
    loaded = scorer.load(tmp_path / "scorer", tiny_base)
    rows = shorter_wins(12, first=900).to_pydict()
    before, after = (s.score(rows["prompt"], rows["chosen"]).mean for s in (fitted, loaded))
    np.testing.assert_allclose(before, after, atol=1e-6)
    assert np.ptp(before) > 0
    assert loaded.trained_on == fitted.trained_on
    here = str(tiny_base.parent).encode()
    assert all(here not in f.read_bytes() for f in (tmp_path / "scorer").rglob("*") if f.is_file())


def test_a_score_does_not_depend_on_its_neighbours(fitted: preference_lm.PreferenceLM) -> None:
    rows = shorter_wins(20, first=900).to_pydict()
    prompts, texts = rows["prompt"], [*rows["chosen"][:10], *rows["rejected"][10:]]
    together = fitted.score(prompts, texts).mean
    alone = [fitted.score([p], [t]).mean[0] for p, t in zip(prompts, texts, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_share_of_ties_becomes_the_tie_parameter(tiny_base: Path) -> None:
    decided = shorter_wins(32).to_pylist()
    tied = [row(500 + n, chosen="A.", rejected=f"B {n}.", margin=0.0) for n in range(8)]
    config = CONFIG.model_copy(update={"epochs": 0.25})
    learned = preference_lm.fit(config, table(decided + tied), base=tiny_base, seed=0)
    assert learned.probabilities(np.zeros(1))[0, ties.TIE] == pytest.approx(8 / 40)
    assert len(learned.trained_on) == 40


def test_too_few_pairs_exit_with_code_4(tiny_base: Path) -> None:
    long = [row(700 + n, rejected="words and words " * 60) for n in range(20)]
    with pytest.raises(NotEnoughVotes, match="20 of 40 fit 64 tokens") as caught:
        preference_lm.fit(CONFIG, table(shorter_wins(20).to_pylist() + long), base=tiny_base, seed=0)
    assert caught.value.exit_code == 4


def test_a_damaged_adapter_is_a_clear_error(
    fitted: preference_lm.PreferenceLM, tiny_base: Path, tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(RewardModelError, match="cannot be read"):
        scorer.load(tmp_path, tiny_base)
