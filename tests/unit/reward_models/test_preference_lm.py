"""The full reward model (TRL RewardTrainer) on a tiny base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from reward_models import preference_lm, scorer, ties
from reward_models.preference_heads import heads_of_rows, pair_loss
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


def test_completions_of_one_prompt_score_as_each_does_alone_and_share_what_they_begin_with(
    fitted: preference_lm.PreferenceLM,
) -> None:
    import torch

    asked = [
        "What about the harbour?",
        "Ça va, 你好?",
        "And the bridges? " * 40,
    ]  # the last one is cut at the front
    replies = ["Yes.", "No.", "", "Yes, certainly. " * 30, "Да 🙂", "<|im_end|>" * 9, "Yes."]
    prompts = [[{"role": "user", "content": one}] for one in asked for _ in replies]
    ids, alone = [], []
    for prompt, reply in zip(prompts, replies * 3, strict=True):
        turns = [*prompt, {"role": "assistant", "content": reply}]
        one = fitted.tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
        ids.append(one[-CONFIG.max_tokens :])
        with torch.inference_mode():
            alone.append(fitted.model(input_ids=torch.tensor([ids[-1]])).logits[0, 0].item())
    read: list[int] = []
    hook = fitted.model.get_input_embeddings().register_forward_hook(
        lambda _m, given, _o: read.append(given[0].numel())
    )
    found = fitted.score(prompts, replies * 3).mean
    hook.remove()
    np.testing.assert_allclose(found, alone, atol=1e-5)
    assert np.ptp(found) > 0.1
    np.testing.assert_array_equal(found[::7], found[6::7])  # the same text twice
    assert sum(read) < 0.7 * sum(map(len, ids))


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


# --- margins, weights, and a head for each objective


def longer_wins(count: int, *, first: int, **changes: Any) -> pa.Table:
    rows = shorter_wins(count, first=first, seed=first).to_pylist()
    return table([r | {"chosen": r["rejected"], "rejected": r["chosen"]} | changes for r in rows])


def test_loss_by_hand() -> None:
    import torch

    logits = torch.tensor(
        [
            [1.0, 9.0],  # chosen reply of the first pair, which trains head 0
            [9.0, 0.5],  # chosen reply of the second, which trains head 1
            [0.2, -9.0],  # the rejected ones
            [-9.0, 1.5],
        ],
        requires_grad=True,
    )
    loss = pair_loss(
        logits,
        head=torch.tensor([0, 1]),
        margin=torch.tensor([0.3, 0.0]),
        weight=torch.tensor([2.0, 0.5]),
        center=0.1,
    )
    # First pair: log(1 + e^-(1.0 - 0.2 - 0.3)) + 0.1 * 1.2^2 = 0.474077 + 0.144, twice;
    # second: log(1 + e^1) + 0.1 * 2.0^2 = 1.313262 + 0.4, half; the mean of the two.
    assert loss.item() == pytest.approx((2 * 0.618077 + 0.5 * 1.713262) / 2, abs=1e-5)
    loss.backward()
    assert (logits.grad != 0).tolist() == [[True, False], [False, True], [True, False], [False, True]]


def test_margin_and_weight_reach_the_loss_and_without_weights_it_is_trls(
    tiny_base: Path, tmp_path: Path
) -> None:
    import torch
    from trl import RewardTrainer

    rows = shorter_wins(32).to_pylist()
    for number, made in enumerate(rows):
        made["margin"], made["weight"] = (1.0, 0.25)[number % 2], (3.0, 1.0)[number % 2]

    def losses(scale: float) -> tuple[float, float, float]:
        config = CONFIG.model_copy(update={"margin_scale": scale, "center": 0.05})
        trainer = preference_lm._trainer(config, table(rows), tiny_base, tmp_path, 0, None)
        batch = trainer.data_collator([trainer.train_dataset[n] for n in range(4)])
        assert batch["margin"].tolist() == [scale, scale / 4, scale, scale / 4]
        assert batch["weight"].tolist() == [1.5, 0.5, 1.5, 0.5]
        trainer.args.center_rewards_coefficient = 0.05  # read by TRL's own loss alone
        trainer.model.eval()
        with torch.no_grad():
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            chosen, rejected = trainer.model(**inputs).logits[:, 0].double().chunk(2)
            ours = trainer.compute_loss(trainer.model, dict(batch)).item()
            even = trainer.compute_loss(trainer.model, {**batch, "weight": torch.ones(4)}).item()
            theirs = RewardTrainer.compute_loss(
                trainer, trainer.model, {**inputs, "margin": batch["margin"]}
            ).item()
        gaps = (chosen - rejected - batch["margin"]).numpy()
        centred = 0.05 * ((chosen + rejected) ** 2).numpy()
        by_hand = (batch["weight"].numpy() * (np.log1p(np.exp(-gaps)) + centred)).mean()
        assert ours == pytest.approx(by_hand, abs=1e-5)
        assert even == pytest.approx(theirs, abs=1e-6)
        return ours, even, theirs

    without, with_margin = losses(0.0), losses(1.0)
    # At first rewards hardly differ, so a margin of m costs about m / 2: 1.5 * 1 and 0.5 * 0.25 on average.
    assert with_margin[0] - without[0] == pytest.approx((1.5 * 1 + 0.5 * 0.25) / 2 / 2, rel=0.3)
    assert with_margin[1] - without[1] == pytest.approx((1 + 0.25) / 2 / 2, rel=0.3)


def test_a_pair_trains_its_own_head_only(tiny_base: Path, tmp_path: Path) -> None:
    config = TWO.model_copy(update={"center": 0.01})
    trainer = preference_lm._trainer(config, both_objectives(), tiny_base, tmp_path, 0, None)
    examples = [e for e in trainer.train_dataset if e["head"] == 1][:4]
    trainer.compute_loss(trainer.model, trainer.data_collator(examples)).backward()
    heads = [p.grad for name, p in trainer.model.named_parameters() if "score" in name and p.requires_grad]
    assert len(heads) == 1 and heads[0].shape[0] == 2
    assert not heads[0][0].any() and heads[0][1].any()


TWO = CONFIG.model_copy(
    update={
        "objectives": {"helpful": 1.0, "sécurité": 0.5},
        "objective_of": {"guard": "sécurité", "rating": "helpful"},
    }
)


def both_objectives() -> pa.Table:
    """Shorter is more helpful, longer is safer."""
    return pa.concat_tables([shorter_wins(40), longer_wins(40, first=2000, agent="guard")])


@pytest.fixture(scope="module")
def two(tiny_base: Path) -> preference_lm.PreferenceLM:
    return preference_lm.fit(TWO, both_objectives(), base=tiny_base, seed=0)


def test_each_objective_is_learned_and_the_total_is_their_sum_by_weight(
    two: preference_lm.PreferenceLM,
) -> None:
    rows = shorter_wins(30, first=5000, seed=5).to_pydict()
    short, long = (two.score_objectives(rows["prompt"], rows[side]) for side in ("chosen", "rejected"))
    assert list(short) == ["helpful", "sécurité"] and short["helpful"].shape == (30,)
    assert (short["helpful"] > long["helpful"]).mean() > 0.8
    assert (short["sécurité"] < long["sécurité"]).mean() > 0.8
    total = two.score(rows["prompt"], rows["chosen"]).mean
    np.testing.assert_allclose(total, short["helpful"] + 0.5 * short["sécurité"], atol=1e-12)


def test_two_heads_saved_and_loaded_alone_or_in_a_batch_are_the_same(
    two: preference_lm.PreferenceLM, tiny_base: Path, tmp_path: Path
) -> None:
    rows = shorter_wins(20, first=900).to_pydict()
    prompts, texts = rows["prompt"], [*rows["chosen"][:10], *rows["rejected"][10:]]
    before = two.score_objectives(prompts, texts)
    two.save(tmp_path)
    loaded = scorer.load(tmp_path, tiny_base)
    assert isinstance(loaded, preference_lm.PreferenceLM) and loaded.config == two.config
    after = loaded.score_objectives(prompts, texts)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
        alone = [two.score_objectives([p], [t])[name][0] for p, t in zip(prompts, texts, strict=True)]
        np.testing.assert_allclose(before[name], alone, atol=1e-4)
    assert two.score([], []).mean.shape == (0,)


def test_a_model_saved_before_there_were_objectives_still_loads(
    fitted: preference_lm.PreferenceLM, tiny_base: Path, tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    about = json.loads((tmp_path / "reward_model.json").read_text())
    for name in ("objectives", "objective_of", "margin_scale"):
        del about["config"][name]
    (tmp_path / "reward_model.json").write_text(json.dumps(about))
    rows = shorter_wins(4, first=900).to_pydict()
    again = scorer.load(tmp_path, tiny_base).score(rows["prompt"], rows["chosen"]).mean
    np.testing.assert_array_equal(again, fitted.score(rows["prompt"], rows["chosen"]).mean)


def test_heavy_rows_win_over_light_ones(tiny_base: Path) -> None:
    light = longer_wins(40, first=3000, weight=0.01)
    rows = pa.concat_tables([shorter_wins(40), light])
    learned = preference_lm.fit(CONFIG, rows, base=tiny_base, seed=0)
    test = shorter_wins(30, first=5000, seed=5).to_pydict()
    short, long = (learned.score(test["prompt"], test[side]).mean for side in ("chosen", "rejected"))
    assert (short > long).mean() > 0.8


def test_which_head_a_row_trains() -> None:
    found = heads_of_rows(
        ["vote", "edit", None, "edit"], ["guard", "guard", None, "nobody"], ["a", "b", "c"],
        {"edit": "c", "guard": "b"},
    )  # fmt: skip
    assert found.tolist() == [1, 2, 0, 2]  # the rule goes before the agent; the first where neither is named


def test_an_objective_nobody_spoke_of_is_refused(tiny_base: Path) -> None:
    with pytest.raises(NotEnoughVotes, match="'sécurité'"):
        preference_lm.fit(TWO, shorter_wins(40), base=tiny_base, seed=0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"objectives": {}}, "above 0"),
        ({"objectives": {"safe": 0.0, "helpful": -1.0}}, "above 0"),
        ({"objectives": {"safe": float("nan")}}, "finite"),
        ({"objectives": {"safe": float("inf")}}, "finite"),
        ({"objective_of": {"vote": "safe"}}, "safe; known are helpful"),
        ({"margin_scale": -1}, "greater than or equal to 0"),
    ],
)
def test_objectives_that_make_no_sense_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        preference_lm.Config(**settings)
