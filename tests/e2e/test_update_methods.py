"""Every method of update that learns from logs: from events to a candidate in one command."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Palate, Result, settings
from tests.e2e.test_run import events_of, run_settings
from tests.unit.reward_models.made import text

QUARTER = [
    f"prefer.split.{split}_{what}=0.25" for split in ("test", "evaluation") for what in ("users", "prompts")
]
SMALL = [
    f"train.{method}.{name}={value}"
    for method in ("kto", "online", "words", "mix.kto", "mix.words")
    for name, value in (
        ("learning_rate", "1e-3"), ("max_tokens", 192), ("min_rows", 4), ("batch_rows", 4), ("micro_batch_rows", 4)
    )
]  # fmt: skip


def logged(path: Path, count: int, digest: str | None = None) -> Path:
    """Each prompt answered once and met with a thumb, a correction, a next message or silence: no pair at all."""
    dice, start = random.Random(5), datetime(2026, 1, 1, tzinfo=UTC)
    events: list[dict[str, Any]] = []
    for n in range(count):
        when = (start + timedelta(minutes=n)).isoformat()
        short = n % 2 == 0
        interaction = {
            "type": "interaction", "interaction_id": f"i{n}", "user_id": f"u{n % 40}", "event_time": when,
            "prompt": [{"role": "user", "content": f"Question {n}: what about the {text(2, dice)}"}],
            "completion": {"role": "assistant", "content": text(4 if short else 12, dice)},
            "model": {"name": "m", "version": "1", "adapter_digest": digest},
        }  # fmt: skip
        if digest is None:
            interaction["logprob"], interaction["tokens"] = -30.0, 10
            del interaction["model"]
        events.append(interaction)
        said: dict[str, Any] = {
            "type": "feedback", "interaction_id": f"i{n}", "user_id": f"u{n % 40}", "event_time": when,
        }  # fmt: skip
        if n % 5 != 4:
            events.append({**said, "feedback_id": f"t{n}", "kind": "thumb", "value": 1 if short else -1})
        if not short:
            events.append(
                {
                    **said,
                    "feedback_id": f"m{n}",
                    "kind": "next_message",
                    "value": {"text": "Shorter, please."},
                }
            )
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


@pytest.mark.timeout(300)
def test_thumbs_alone_make_a_candidate_without_pairs_or_a_reward_model(
    palate: Palate, tiny_base: Path, tmp_path: Path
) -> None:
    events = logged(tmp_path / "events.jsonl", 160)
    options = settings(tiny_base, *QUARTER, *SMALL, "train.method=kto", 'prefer.rules=["unpaired"]')
    done = palate("run", "--json", "--input", str(events), *options)
    assert done.code == 4, done.err  # nobody can judge it: insufficient, and it says so
    assert "No reward model: 0 paired rows" in done.err + done.out
    status = palate("status", "--json").json["status"]
    assert status["candidate"]["version"] == 2
    assert status["champion"]["version"] == 1
    # Promotion of what nobody could judge takes a name and a reason.
    assert palate("promote").code != 0
    again = palate("run", "--json", "--input", str(events), *options)
    assert again.code == 5  # nothing new


@pytest.mark.timeout(300)
def test_live_replies_and_words_train_from_the_same_log(
    palate: Palate, tiny_base: Path, tmp_path: Path
) -> None:
    events = logged(tmp_path / "events.jsonl", 160)
    options = settings(
        tiny_base, *QUARTER, *SMALL, "train.online.min_effective_share=0", "train.mix.max_tokens=192"
    )
    assert palate("ingest", str(events), *options).code == 0
    assert palate("build", *options).code == 0
    for method, row, processes in (
        ("online", "reward", 1), ("words", "hindsight_loss", 2), ("mix", "words_rows", 1)
    ):  # fmt: skip
        how = ["--set", f"train.method={method}", "--set", f"train.hardware.processes={processes}"]
        done = palate("train", "--json", *options, *how)
        assert done.code == 0, done.err
        results = list((tmp_path / ".palate/updates").glob("*/update/result.json"))
        (result,) = [path for path in results if row in json.loads(path.read_text())["metrics"]]
        metrics = json.loads(result.read_text())["metrics"]
        assert metrics["rows"] >= 4
        assert metrics["steps"] >= 1
        assert metrics.get("render/mismatch", 0) == 0


@pytest.mark.timeout(300)
def test_sampled_replies_are_paid_by_the_reward_model_and_can_be_read(
    demo_workspace: tuple[Path, Result], palate: Palate, tiny_base: Path, tmp_path: Path
) -> None:
    small = {
        "steps": 2, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4, "max_new_tokens": 8, "min_prompts": 2
    }  # fmt: skip
    options = [*run_settings(tiny_base), "--set", "train.method=grpo"]
    options += [part for name, value in small.items() for part in ("--set", f"train.grpo.{name}={value}")]
    events = str(events_of(demo_workspace))
    assert palate("ingest", events, *options).code == 0
    assert palate("build", *options).code == 0
    done = palate("train", "--json", *options)
    assert done.code == 0, done.err
    (result,) = (tmp_path / ".palate/updates").glob("*/update/result.json")
    found = json.loads(result.read_text())
    assert len(found["curve"]) == 2
    assert "reward/reward_model" in found["curve"][0] or any(
        "reward_model" in name for name in found["curve"][0]
    )
    (table,) = (tmp_path / ".palate/mlflow").rglob("train/samples.json")
    assert len(json.loads(table.read_text())["data"]) >= 2
