"""GRPO updates end to end on a tiny base."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feedback.served import SERVED
from tests.unit.reward_models import made
from tests.unit.training.grpo_case import SMALL, Scores, ending_base, prompts, update
from tests.unit.training.test_adapter import contents
from training import grpo
from training.errors import NotEnoughPreferences, TrainingError
from training.grpo_rollout import NothingToLearn
from training.result import TrainResult
from training.reward_sources import Replies, RewardError
from training.rollout.engine import RolloutError
from training.update import method, methods

HERE = "tests.unit.training.test_grpo"


@pytest.fixture(scope="module")
def base(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_base(tiny_base, tmp_path_factory.mktemp("ending") / "base")


@pytest.fixture(scope="module")
def undisturbed(base: Path, moved_champion: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return update(base, moved_champion, tmp_path_factory.mktemp("undisturbed"), iterations=2)


def test_a_reward_for_brevity_rises(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    changes = {
        "steps": 8,
        "group_size": 8,
        "micro_batch": 8,
        "beta": 0.0,
        "loss": "dapo",
        "learning_rate": 3e-2,
    }
    result = update(base, fresh_champion, tmp_path, **changes)
    reward = [entry["reward"] for entry in result.curve]
    assert np.mean(reward[-3:]) > np.mean(reward[:3]) + 1.0  # a token and more
    assert all(entry["reward"] == pytest.approx(-entry["length"]) for entry in result.curve)
    assert "kl" not in result.metrics  # without the pull no reference is asked


def test_the_first_step_is_on_policy_at_the_champion(undisturbed: TrainResult) -> None:
    first, second, third = undisturbed.curve[:3]
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert first["clip_share"] == 0.0
    assert second["kl"] > 1e-5  # the second use of the generation: the policy has moved away
    assert "groups_sampled" in first and "groups_sampled" not in second  # nothing was sampled for it
    assert "groups_sampled" in third
    assert [entry["step"] for entry in undisturbed.curve] == [1, 2, 3, 4, 5, 6]


def test_the_engine_and_the_trainer_agree(base: Path, moved_champion: Path, tmp_path: Path) -> None:
    result = update(base, moved_champion, tmp_path, steps=2)
    for entry in result.curve:
        assert 0 < entry["engine_gap"] < 1e-5  # nats a token: the replica is the policy, after an update too


def test_the_adapter_is_plain_and_holds_no_path_of_this_machine(
    undisturbed: TrainResult, moved_champion: Path, base: Path
) -> None:
    assert sorted(contents(undisturbed.adapter)) == ["adapter_config.json", "adapter_model.safetensors"]
    for file in undisturbed.adapter.iterdir():
        for place in (base, moved_champion, undisturbed.adapter.parent):
            assert str(place).encode() not in file.read_bytes()
    about = json.loads((undisturbed.adapter / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == "test:tiny"
    assert sorted(p.name for p in undisturbed.adapter.parent.iterdir()) == ["adapter", "result.json"]


def test_a_finished_update_is_returned_as_it_is(
    undisturbed: TrainResult, moved_champion: Path, tmp_path: Path
) -> None:
    before = contents(undisturbed.adapter)
    assert update(tmp_path / "no base is needed", moved_champion, undisturbed.adapter.parent) == undisturbed
    assert contents(undisturbed.adapter) == before


def test_prompts_come_in_one_order_whatever_the_order_of_the_rows(
    base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    rows = prompts(9)
    seen: list[list[str]] = []
    for n, table in enumerate((rows, rows.take(list(reversed(range(9)))))):
        keys: list[str] = []
        update(
            base,
            fresh_champion,
            tmp_path / str(n),
            rows=table,
            steps=3,
            group_size=2,
            max_new_tokens=2,
            on_samples=lambda _, found, keys=keys: keys.extend(r["prompt_key"] for r in found[::2]),
        )
        seen.append(keys)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 12 and len(set(seen[0][:9])) == 9  # every prompt once before any comes again


def served_rows(count: int, **changes: Any) -> pa.Table:
    rows = [
        {
            "interaction_id": f"i{n}",
            "user_id": f"anna-{n}",
            "agent": "writer",
            "prompt": json.dumps([{"role": "user", "content": f"Wie geht's, Nr. {n}? ☂"}]),
            "prompt_key": f"served-{n}",
            **changes,
        }
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=SERVED)


def test_served_prompts_go_first_and_rewards_know_the_user(
    base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    scorer, heldout = Scores(len, ["a"]), Scores(len, ["b"])
    samples: list[dict[str, Any]] = []
    result = update(
        base,
        fresh_champion,
        tmp_path,
        served=served_rows(8, prompt_ids=[1, 5, 6]),
        scorer=scorer,
        heldout=heldout,
        steps=1,
        rewards={"sources": {"reward_model": 0.5, "finished": 2.0}, "guards": {"empty": 1.0}},
        on_samples=lambda step, rows: samples.extend(rows),
    )
    assert len(samples) == 16
    assert len(scorer.asked) >= 16 and len(heldout.asked) == 16
    for prompt, _, user, agent in scorer.asked:
        number = prompt[0]["content"].split("Nr. ")[1].split("?")[0]
        assert (user, agent) == (f"anna-{number}", "writer")
    for row in samples:
        paid = row["rewards"]
        assert set(paid) == {"reward_model", "finished", "guard_empty"}
        assert paid["reward_model"] == len(row["completion"])
        assert row["reward"] == pytest.approx(
            0.5 * paid["reward_model"] + 2 * paid["finished"] - paid["guard_empty"]
        )
    for name in ("reward_model", "finished", "guard_empty"):
        values = [row["rewards"][name] for row in samples]
        assert result.metrics[f"rewards/{name}"] == pytest.approx(np.mean(values), rel=1e-6)
        assert result.metrics[f"rewards/{name}_std"] == pytest.approx(np.std(values), rel=1e-6)
    assert result.metrics["reward"] == pytest.approx(np.mean([r["reward"] for r in samples]))
    assert result.metrics["heldout"] == pytest.approx(np.mean([len(r["completion"]) for r in samples]))
    assert result.metrics["prompt_ids_mismatched"] == 8  # what was logged is not what the template renders
    assert result.metrics["render/logged_prompt_differs"] == result.metrics["render/rendered"] == 8


def spiky(replies: Replies) -> list[float]:
    """Tells replies apart only for prompts of an even number."""
    return [
        float(tokens) if int(p[-1]["content"].split()[-1]) % 2 == 0 else 1.0
        for p, tokens in zip(replies.prompts, replies.tokens, strict=True)
    ]


def test_groups_that_teach_nothing_are_counted_and_refilled(
    base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    given = {"rewards": {"sources": {f"{HERE}:spiky": 1.0}, "guards": {}}, "steps": 3}
    without = update(base, fresh_champion, tmp_path / "0", refill_rounds=0, **given)
    refilled = update(base, fresh_champion, tmp_path / "3", refill_rounds=3, **given)
    assert sum(e["groups_teaching"] for e in without.curve) < 9
    for entry in without.curve:
        assert entry["zero_variance_share"] == (4 - entry["groups_teaching"]) / 4
        assert entry["groups_sampled"] == 4 and entry["groups_refilled"] == 0
    assert refilled.curve[0]["zero_variance_share"] == without.curve[0]["zero_variance_share"]
    for entry in refilled.curve:
        idle = 4 * entry["zero_variance_share"]
        assert entry["groups_teaching"] == 4 - idle + entry["groups_refilled"]
        assert 4 + idle <= entry["groups_sampled"] <= 4 + 3 * idle
    found = [sum(e["groups_teaching"] for e in run.curve) for run in (without, refilled)]
    assert found[1] > found[0] + 1
    assert (
        refilled.curve[0]["reward"] == without.curve[0]["reward"]
    )  # reported before refilling: no selection


def test_a_run_with_nothing_to_learn_says_so(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    given = {"rewards": {"sources": {"tests.unit.training.grpo_case:constant": 1.0}, "guards": {}}}
    steps: list[int] = []
    with pytest.raises(NothingToLearn, match="paid the same") as caught:
        update(
            base, fresh_champion, tmp_path / "a", dead_steps=2, on_step=lambda s, *_: steps.append(s), **given
        )
    assert "temperature" in str(caught.value.next_step) and steps == [1]  # stopped in the second
    with pytest.raises(NothingToLearn):  # a run shorter than dead_steps
        update(base, fresh_champion, tmp_path / "b", steps=1, **given)
    assert not list(tmp_path.glob("*/adapter"))


def failing(replies: Replies) -> list[float | None]:
    """Raises for one prompt, and has no number for another."""
    numbers = [int(p[-1]["content"].split()[-1]) for p in replies.prompts]
    if 3 in numbers:
        raise ValueError("three is too many")
    return [None if n == 5 else float(t) for n, t in zip(numbers, replies.tokens, strict=True)]


def broken(replies: Replies) -> list[float]:
    """Never works."""
    raise OSError("the judge is down")


def test_a_failing_reward_costs_its_group_and_is_counted(
    base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    samples: list[dict[str, Any]] = []
    result = update(
        base,
        fresh_champion,
        tmp_path,
        rows=prompts(8),  # each once in two generations
        steps=2,
        refill_rounds=0,
        rewards={"sources": {f"{HERE}:failing": 1.0, "length": 1.0}, "guards": {}},
        on_samples=lambda _, rows: samples.extend(rows),
    )
    name = f"{HERE}.failing"
    assert sum(e["groups_failed"] for e in result.curve) == 2
    assert sum(e.get(f"failed/{name}", 0) for e in result.curve) == 2
    faults = {r["prompt_key"]: r["fault"] for r in samples if r["fault"]}
    assert set(faults) == {"prompt-3", "prompt-5"}
    assert "three is too many" in faults["prompt-3"] and "finite" in faults["prompt-5"]
    assert all((r["reward"] is None) == (r["prompt_key"] in faults) for r in samples)
    assert all(math.isfinite(e["loss"]) for e in result.curve)


def test_a_group_that_failed_moves_nothing(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    """The loss of a generation with a failed group is that of the others: the denominator leaves it out too."""
    from tests.unit.training.test_grpo_loss import trainer_on

    for kind in ("dr_grpo", "dapo", "grpo"):
        trainer = trainer_on(
            base,
            fresh_champion,
            tmp_path / kind,
            loss=kind,
            beta=0.0,
            refill_rounds=0,
            prompts_per_step=24,
            rewards={"sources": {f"{HERE}:failing": 1.0}, "guards": {}},
        )
        trainer.model.train()
        made = trainer._generate_and_score_completions(
            [trainer.train_dataset[i] for i in range(24) for _ in range(4)]
        )
        failed = (made["completion_mask"] * made["tool_mask"]).sum(1) == 0
        assert int(failed.sum()) == 8 and not made["advantages"][failed].any()
        # On policy the ratio is 1: a token's loss is minus its advantage.
        tokens = made["completion_mask"].sum(1)[~failed]
        advantages = made["advantages"][~failed]
        wanted = {
            "dr_grpo": -(advantages * tokens).sum() / (88 * SMALL["max_new_tokens"]),
            "dapo": -(advantages * tokens).sum() / tokens.sum(),
            "grpo": -advantages.sum() / 88,
        }[kind]
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
        loss = trainer.compute_loss(trainer.model, made).item()
        assert loss == pytest.approx(float(wanted), rel=1e-4, abs=1e-6)


def test_a_reward_that_never_works_ends_the_run(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="failed in every group") as caught:
        update(
            base,
            fresh_champion,
            tmp_path,
            rewards={"sources": {f"{HERE}:broken": 1.0, "length": 1.0}, "guards": {}},
        )
    assert "the judge is down" in str(caught.value)
    assert not (tmp_path / "adapter").exists()


def test_truncated_replies_are_masked_when_asked(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    keep = update(base, fresh_champion, tmp_path / "keep", steps=1)
    mask = update(base, fresh_champion, tmp_path / "mask", steps=1, truncated="mask")
    assert 0 < keep.metrics["truncated_share"] < 1
    assert mask.metrics["truncated_share"] == keep.metrics["truncated_share"]
    assert mask.metrics["grad_norm"] != pytest.approx(keep.metrics["grad_norm"], rel=1e-3)


def test_too_few_prompts_exit_with_code_4(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    rows = pa.concat_tables([prompts(7), prompts(40, split="test"), prompts(0)])
    with pytest.raises(NotEnoughPreferences, match="7 distinct prompts") as caught:
        update(base, fresh_champion, tmp_path, rows=rows)
    assert caught.value.exit_code == 4 and isinstance(caught.value, TrainingError)
    with pytest.raises(NotEnoughPreferences, match="longer_than_max_prompt_tokens: 18"):
        update(base, fresh_champion, tmp_path, max_prompt_tokens=40)
    assert not (tmp_path / "adapter").exists()


def test_a_prompt_that_is_too_long_is_cut_and_counted(
    base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    said = [{"role": role, "content": "Tell me. " * 9} for role in ("user", "assistant")]
    asked = [*said, {"role": "user", "content": "And now? ☂"}]
    rows = made.table([made.row(n, prompt=asked) for n in range(8)])
    samples: list[dict[str, Any]] = []
    given = {"rows": rows, "steps": 1, "max_prompt_tokens": 40}
    result = update(
        base, fresh_champion, tmp_path, on_samples=lambda _, found: samples.extend(found), **given
    )
    assert result.metrics["render/cut"] == result.metrics["prompts"] == 8 and result.left_out == {}
    assert {len(row["prompt"]) for row in samples} == {1}  # what is paid is what was answered
    with pytest.raises(NotEnoughPreferences, match="longer_than_max_prompt_tokens: 8"):
        update(base, fresh_champion, tmp_path / "whole", overlong="leave_out", **given)


def test_a_diverged_run_stops_and_writes_no_adapter(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        update(base, fresh_champion, tmp_path, learning_rate=1e30)
    assert isinstance(caught.value, RolloutError) or "diverged" in str(caught.value)
    assert "learning_rate" in str(caught.value.next_step)
    assert not (tmp_path / "adapter").exists() and not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"micro_batch": 3}, "must divide prompts_per_step"),
        ({"iterations": 4}, "must divide steps"),
        ({"top_p": 0.9}, "bias the importance ratio"),
        ({"top_k": 50}, "bias the importance ratio"),
        ({"loss": "ppo"}, "dr_grpo"),
        ({"group_size": 1}, "greater than or equal to 2"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        grpo.Config.model_validate({**SMALL, **changes})


def test_nothing_paid_for_is_refused(base: Path, fresh_champion: Path, tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="Nothing is paid"):
        update(base, fresh_champion, tmp_path, rewards={"sources": {}, "guards": {}})


def test_it_is_found_by_its_name() -> None:
    assert "grpo" in methods()
    assert {"served", "scorer"} == method("grpo").NEEDS
