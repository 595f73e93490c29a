"""The fast reward model on a tiny base, and what every scorer is held to."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from feedback.errors import PalateError
from reward_models import bradley_terry, scorer, ties
from reward_models.heldout import Heldout, predict
from reward_models.representation import represent
from reward_models.scorer import NotEnoughVotes, RewardModelError, refuse_shared_rows
from tests.unit.reward_models.made import row, shorter_wins, table, text

CONFIG = bradley_terry.Config(components=4, max_tokens=64)
Fitted = bradley_terry.BradleyTerry


@pytest.fixture(scope="module")
def fitted(tiny_base: Path) -> Fitted:
    return bradley_terry.fit(CONFIG, shorter_wins(80), base=tiny_base, seed=0)


def test_it_learns_that_shorter_wins(fitted: Fitted) -> None:
    heldout = predict(fitted, shorter_wins(60, first=1000, seed=1))
    assert heldout.correct.mean() > 0.95
    assert heldout.log_loss.mean() < np.log(2) / 2
    assert fitted.explain()["log_words"] < 0


def test_shuffled_labels_leave_it_at_chance(tiny_base: Path) -> None:
    learned = bradley_terry.fit(CONFIG, shorter_wins(120, shuffled=True), base=tiny_base, seed=0)
    heldout = predict(learned, shorter_wins(200, first=1000, seed=1, shuffled=True))
    assert 0.38 < heldout.correct.mean() < 0.62  # 0.5 +- 3.4 standard deviations
    assert heldout.log_loss.mean() > np.log(2) * 0.95


def test_ties_are_learnt_from_margin_zero(tiny_base: Path) -> None:
    dice = random.Random(5)
    rows = [
        row(n, chosen=text(6, dice), rejected=text(6, dice), margin=float(n % 2)) for n in range(60)
    ]  # every second one a tie
    learned = bradley_terry.fit(CONFIG, table(rows), base=tiny_base, seed=0)
    assert 0.3 < learned.probabilities(np.zeros(1))[0, ties.TIE] < 0.7


def test_fit_does_not_depend_on_row_order(tiny_base: Path, fitted: Fitted) -> None:
    rows = shorter_wins(80)
    again = bradley_terry.fit(CONFIG, rows.take(list(reversed(range(80)))), base=tiny_base, seed=0)
    np.testing.assert_array_equal(again.fitted.weights, fitted.fitted.weights)
    assert again.trained_on == fitted.trained_on == frozenset(rows["preference_id"].to_pylist())


def test_saved_and_loaded_it_scores_the_same(tiny_base: Path, fitted: Fitted, tmp_path: Path) -> None:
    fitted.save(tmp_path / "scorer")
    loaded = scorer.load(tmp_path / "scorer", tiny_base)
    rows = shorter_wins(10, first=2000).to_pydict()
    before, after = (s.score(rows["prompt"], rows["chosen"]) for s in (fitted, loaded))
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.std, after.std)
    assert (before.std > 0).all()
    assert loaded.trained_on == fitted.trained_on
    np.testing.assert_array_equal(loaded.probabilities(np.ones(2)), fitted.probabilities(np.ones(2)))


def test_no_completions_are_no_scores(fitted: Fitted) -> None:
    assert fitted.score([], []).mean.shape == (0,)


def test_too_few_votes_exit_with_code_4(tiny_base: Path) -> None:
    rows = shorter_wins(11).to_pylist()
    unpaired = [row(100 + n, rejected=None, label=True) for n in range(20)]
    weightless = [row(200 + n, weight=0.0) for n in range(20)]
    with pytest.raises(NotEnoughVotes, match="at least 12") as caught:
        bradley_terry.fit(CONFIG, table(rows + unpaired + weightless), base=tiny_base, seed=0)
    assert caught.value.exit_code == 4
    assert caught.value.got == 11
    assert isinstance(caught.value, PalateError)


@pytest.mark.parametrize(
    "damage",
    [
        "absent",
        "no json",
        "json cut",
        "json is a list",
        "no weights",
        "weights cut",
        "weights empty",
        "unknown",
    ],
)
def test_an_unreadable_directory_is_a_clear_error(
    damage: str, tiny_base: Path, fitted: Fitted, tmp_path: Path
) -> None:
    directory = tmp_path / "scorer"
    fitted.save(directory)
    about, weights = directory / "reward_model.json", directory / "weights.npz"
    if damage == "absent":
        shutil.rmtree(directory)
    elif damage == "no json":
        about.unlink()
    elif damage == "json cut":
        about.write_text(about.read_text()[:40])
    elif damage == "json is a list":
        about.write_text("[1]")
    elif damage == "no weights":
        weights.unlink()
    elif damage == "weights cut":
        weights.write_bytes(weights.read_bytes()[:300])
    elif damage == "weights empty":
        weights.write_bytes(b"")
    else:
        about.write_text(json.dumps(json.loads(about.read_text()) | {"method": "oracle"}))
    with pytest.raises(RewardModelError) as caught:
        scorer.load(directory, tiny_base)
    assert caught.value.next_step


def test_a_save_over_an_older_one_that_breaks_leaves_the_older_one(
    tiny_base: Path, fitted: Fitted, tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    other = replace(fitted, fitted=replace(fitted.fitted, weights=fitted.fitted.weights + 1))
    unwritable = replace(other, trained_on=frozenset([object()]))  # type: ignore[list-item]
    for _ in range(2):  # the second finds what the first left
        with pytest.raises(TypeError):
            unwritable.save(tmp_path)
        found = bradley_terry.load(tmp_path, tiny_base)
        np.testing.assert_array_equal(found.fitted.weights, fitted.fitted.weights)
    for kept in (other, fitted, other):
        kept.save(tmp_path)
        found = bradley_terry.load(tmp_path, tiny_base)
        np.testing.assert_array_equal(found.fitted.weights, kept.fitted.weights)
        assert len(list(tmp_path.glob("weights*.npz"))) == 1 and len(list(tmp_path.iterdir())) == 2


def test_killed_between_any_two_writes_of_a_save_there_is_a_whole_model(
    tiny_base: Path, fitted: Fitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(fitted, fitted=replace(fitted.fitted, weights=fitted.fitted.weights + 1))
    rename, models = Path.replace, {float(m.fitted.weights[0]) for m in (fitted, other)}
    for survive in range(3):
        fitted.save(tmp_path / f"{survive}")
        left = survive

        def dying(self: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", dying)
        if survive < 2:  # one rename is of the weights, one of the JSON
            with pytest.raises(KeyboardInterrupt):
                other.save(tmp_path / f"{survive}")
        else:
            other.save(tmp_path / f"{survive}")
        monkeypatch.undo()
        found = bradley_terry.load(tmp_path / f"{survive}", tiny_base)
        assert float(found.fitted.weights[0]) in models
        wanted = fitted if survive < 2 else other
        np.testing.assert_array_equal(found.fitted.weights, wanted.fitted.weights)


@pytest.mark.parametrize("change", ["one less", "another name", "another order"])
def test_a_model_of_other_features_says_so_and_what_to_do(
    change: str, tiny_base: Path, fitted: Fitted, tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    about = json.loads((tmp_path / "reward_model.json").read_text())
    weights = list(about["feature_weights"].items())
    if change == "one less":
        assert weights.pop(3)[0] == "questions"
    elif change == "another name":
        weights[3] = ("exclamation_points", 0.0)
    else:
        weights.reverse()
    (tmp_path / "reward_model.json").write_text(json.dumps(about | {"feature_weights": dict(weights)}))
    with pytest.raises(RewardModelError) as caught:
        scorer.load(tmp_path, tiny_base)
    wanted = {"one less": "without questions", "another name": "without questions, with exclamation_points"}
    assert str(caught.value.got).endswith(wanted.get(change, "in another order"))
    assert str(len(weights)) in str(caught.value.got) and "questions" in str(caught.value.allowed)
    assert caught.value.next_step == "palate train" and str(tmp_path) in str(caught.value)


def test_names_of_reward_models() -> None:
    assert scorer.methods() == ["bradley_terry", "ensemble", "personal", "preference_lm"]
    assert scorer.method("bradley_terry") is bradley_terry
    with pytest.raises(RewardModelError, match="preference_lm"):
        scorer.method("ties")


def test_shared_rows_are_refused(fitted: Fitted) -> None:
    shared = min(fitted.trained_on)
    apart = replace(fitted, trained_on=frozenset(["another"]))
    refuse_shared_rows(fitted, apart)
    with pytest.raises(RewardModelError, match=shared):
        refuse_shared_rows(fitted, replace(fitted, trained_on=frozenset(["another", shared])))


def _texts(count: int) -> tuple[list[list[dict[str, str]]], list[str]]:
    rows = shorter_wins(count, first=3000).to_pydict()
    return rows["prompt"], rows["chosen"]


def test_cached_vectors_are_identical(tiny_base: Path, tmp_path: Path) -> None:
    base, cache = tmp_path / "base", tmp_path / "cache"
    shutil.copytree(tiny_base, base)
    prompts, replies = _texts(8)
    prompts, replies = prompts + prompts[:1], replies + replies[:1]  # a repeated text is embedded once
    fresh = represent(base, prompts, replies, max_tokens=64)
    first = represent(base, prompts, replies, max_tokens=64, cache_dir=cache)
    calls: list[tuple[int, int]] = []
    second = represent(
        base, prompts, replies, max_tokens=64, cache_dir=cache, progress=lambda *done: calls.append(done)
    )
    np.testing.assert_array_equal(fresh, first)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first[0], first[8])
    assert calls == []  # nothing was embedded again
    represent(
        base,
        prompts[:2],
        ["Quite new."] * 2,
        max_tokens=64,
        cache_dir=cache,
        progress=lambda *d: calls.append(d),
    )
    assert calls == [(2, 2)]


def test_another_base_of_the_same_name_has_its_own_vectors(tiny_base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / tiny_base.name
    shutil.copytree(tiny_base, other)
    tensors = load_file(other / "model.safetensors")
    save_file({k: v * 1.5 for k, v in tensors.items()}, other / "model.safetensors", {"format": "pt"})
    prompts, replies = _texts(2)
    one, two = (
        represent(b, prompts, replies, max_tokens=64, cache_dir=tmp_path / "cache")
        for b in (tiny_base, other)
    )
    assert not np.allclose(one, two)


def test_a_vector_does_not_depend_on_its_neighbours(tiny_base: Path) -> None:
    prompts, replies = _texts(6)
    replies[3] = text(40, random.Random(0))  # long: the others are padded beside it
    together = represent(tiny_base, prompts, replies, max_tokens=64)
    alone = represent(tiny_base, prompts[:1], replies[:1], max_tokens=64)
    np.testing.assert_allclose(together[0], alone[0], atol=1e-5)


def test_half_of_the_held_out_pairs_are_shown_loser_first(fitted: Fitted) -> None:
    rows = shorter_wins(400, first=5000)
    flat = replace(fitted, fitted=replace(fitted.fitted, weights=np.zeros_like(fitted.fitted.weights)))
    heldout = predict(flat, rows)
    share = (heldout.outcome == ties.WIN).mean()
    assert 0.42 < share < 0.58  # 0.5 +- 3.2 standard deviations
    assert heldout.correct.mean() == 0.5  # a scorer that cannot tell gets exactly half
    np.testing.assert_allclose(heldout.p_first_given_decided, 0.5)
    mixed = rows.take(np.random.default_rng(0).permutation(400))
    np.testing.assert_array_equal(predict(flat, mixed).outcome, heldout.outcome)


def test_held_out_figures_equal_hand_computed_ones() -> None:
    heldout = Heldout(
        probabilities=np.array([[0.5, 0.2, 0.3], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1]]),
        outcome=np.array([ties.WIN, ties.WIN, ties.TIE]),
        clusters=np.array(["a", "b", "c"], dtype=object),
    )
    np.testing.assert_array_equal(heldout.decided, [True, True, False])
    np.testing.assert_array_equal(heldout.correct[:2], [1, 0])
    np.testing.assert_allclose(heldout.log_loss, -np.log([0.5, 0.2, 0.8]))
    np.testing.assert_allclose(heldout.p_first_given_decided, [0.625, 2 / 7, 0.5])


def test_clusters_are_users_or_else_prompts(fitted: Fitted) -> None:
    rows = sorted((row(1, user_id="ada"), row(2, user_id=None)), key=lambda r: r["preference_id"])
    wanted = [r["user_id"] or r["prompt_key"] for r in rows]
    assert predict(fitted, table(rows)).clusters.tolist() == wanted


def test_an_update_is_a_fit_of_all_rows(tiny_base: Path, fitted: Fitted, tmp_path: Path) -> None:
    more = shorter_wins(30, first=500, seed=4)
    fitted.save(tmp_path / "m")
    loaded = bradley_terry.load(tmp_path / "m", tiny_base)
    after = loaded.update(more)
    batch = after.votes.fit(fitted.ridge)
    np.testing.assert_allclose(after.fitted.weights, batch.weights, atol=1e-6)
    assert len(after.votes.outcome) == 110
    assert after.trained_on == fitted.trained_on | frozenset(more["preference_id"].to_pylist())
    assert not np.allclose(after.fitted.weights, fitted.fitted.weights)
    assert after.update(more) is after  # a row is learned once
    halves = loaded.update(more.slice(0, 10)).update(more)
    np.testing.assert_allclose(halves.fitted.weights, batch.weights, atol=1e-6)


def test_a_verdict_that_comes_in_another_row_is_not_learned_again(fitted: Fitted, tiny_base: Path) -> None:
    rows = shorter_wins(80).to_pylist()
    changed = [
        {**r, "preference_id": row(9000 + i)["preference_id"], "weight": 0.5} for i, r in enumerate(rows)
    ]
    after = fitted.update(table(changed))
    assert after.votes is fitted.votes and after.fitted is fitted.fitted
    assert after.trained_on == fitted.trained_on | {r["preference_id"] for r in changed}
    assert after.update(table(changed)) is after


def test_vectors_of_another_base_are_refused(fitted: Fitted) -> None:
    with pytest.raises(RewardModelError, match="another base model"):
        fitted.projection(np.zeros((2, 7)))
