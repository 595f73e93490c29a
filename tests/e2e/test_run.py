"""`palate run`: killed at any moment and run again it ends where an undisturbed run ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import PALATE, Palate, Result, environment, settings

KILLS = 10


def events_of(demo: tuple[Path, Result]) -> Path:
    return demo[0] / ".palate/demo/simulated/shuffled_events.jsonl"


def run_settings(base: Path) -> list[str]:
    quarter = [
        f"prefer.split.{split}_{what}=0.25"
        for split in ("test", "evaluation")
        for what in ("users", "prompts")
    ]
    small = ["train.dpo.max_tokens=192", "train.dpo.batch_pairs=4", "train.dpo.micro_batch_pairs=4"]
    return settings(base, *quarter, *small, "gates={length_drift={min_prompts=2}}")


def facts(palate: Palate) -> dict[str, object]:
    """What must be equal whether or not anything was killed."""
    dataset = palate("show", "dataset", "--json").json
    fates = palate("show", "fates", "--json").json
    status = palate("status", "--json").json["status"]
    champion, candidate = status["champion"], status["candidate"]
    return {
        "version": dataset["version"],
        "rows": dataset["manifest"]["rows"],
        "fates": fates["fates"],
        "balanced": fates["balanced"],
        "champion": (champion["version"], champion["adapter_sha256"]),
        "candidate": (candidate["version"], candidate["adapter_sha256"], candidate["gates"]),
    }


def assert_champion_serves(cwd: Path) -> None:
    """The champion is the first one and its files load; or there was none yet."""
    from rollout.adapters import check
    from rollout.connection import RegistryConfig, connect
    from rollout.promote import status
    from rollout.registry import download

    registry = connect(cwd / ".palate", RegistryConfig())
    champion = status(registry).champion
    if champion is not None:
        assert champion.version == 1
        check(download(registry, 1), champion.adapter_sha256)


@pytest.mark.timeout(900)
def test_kill_9_at_ten_random_moments(
    demo_workspace: tuple[Path, Result], tiny_base: Path, tmp_path: Path, palate: Palate
) -> None:
    command = ["run", "--json", "--input", str(events_of(demo_workspace)), *run_settings(tiny_base)]
    undisturbed_dir = tmp_path / "undisturbed"
    undisturbed_dir.mkdir()
    started = time.monotonic()
    undisturbed = palate(*command, cwd=undisturbed_dir)
    seconds = time.monotonic() - started
    assert undisturbed.code in (0, 3), undisturbed.err
    moments = random.Random(7)
    killed = 0
    for _ in range(KILLS):
        with (tmp_path / "killed.log").open("ab") as log:
            process = subprocess.Popen(
                [str(PALATE), *command],
                cwd=tmp_path,
                env=environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                process.wait(timeout=moments.uniform(0.2, 0.9 * seconds))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                killed += 1
        # Whatever was cut short, the champion is there to serve (or was never yet).
        assert_champion_serves(tmp_path)
    assert killed >= KILLS // 2
    last = palate(*command)
    assert last.code in (0, 3, 5), last.err

    def at(cwd: Path) -> Palate:
        return lambda *arguments: palate(*arguments, cwd=cwd)

    assert facts(at(tmp_path)) == facts(at(undisturbed_dir))
    again = palate(*command)
    assert again.code == 5 and again.json["error"]["type"] == "NothingNew"


def test_two_runs_at_once(demo_workspace: tuple[Path, Result], tiny_base: Path, tmp_path: Path) -> None:
    command = [
        str(PALATE),
        "run",
        "--json",
        "--input",
        str(events_of(demo_workspace)),
        *run_settings(tiny_base),
    ]
    both = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    outputs = [p.communicate(timeout=300) for p in both]
    codes = [p.returncode for p in both]
    assert codes.count(1) == 1 and set(codes) <= {0, 1, 3}, outputs
    loser = next(o for p, o in zip(both, outputs, strict=True) if p.returncode == 1)
    assert json.loads(loser[0].splitlines()[-1])["error"]["type"] == "WorkspaceBusy"


def test_real_rankings_run_through(
    tiny_base: Path, tmp_path: Path, palate: Palate, shared_data: Path
) -> None:
    conf = Path(__file__).parents[2] / "conf" / "oasst.toml"
    data = shared_data / "oasst_en_100" / "en_100_tree.jsonl"
    tiny = settings(
        tiny_base, "evaluation.max_pairs=20", "train.dpo.max_tokens=1024", "train.dpo.max_pairs=16"
    )
    result = palate("run", str(conf), "--json", "--input", str(data), *tiny)
    assert result.code in (0, 3, 4), result.err
    found = result.json
    assert found["candidate"] == 2
    learned = found["learned"]
    for name in (
        "Candidate: human pairs ranked right (likelihood accuracy)",
        "Reward model: accuracy on decided pairs",
    ):
        assert 0 <= learned[name]["low"] <= learned[name]["value"] <= learned[name]["high"] <= 1
    manifest = palate("show", "dataset", "--json", "--set", "workspace.dir=.palate/oasst").json["manifest"]
    assert manifest["balance"]["in"] == sum(manifest["balance"]["fates"].values())


def test_real_votes_train_a_reward_model_only(
    tiny_base: Path, tmp_path: Path, palate: Palate, shared_data: Path
) -> None:
    conf = Path(__file__).parents[2] / "conf" / "llmfao.toml"
    result = palate("run", str(conf), "--json", "--input", str(shared_data / "llmfao"), *settings(tiny_base))
    assert result.code == 0, result.err
    found = result.json
    assert found["candidate"] is None and found["verdicts"] == []
    gain = found["learned"]["Reward model: gain over knowing only the share of ties (nats)"]
    assert gain["n"] >= 15 and gain["low"] <= gain["value"] <= gain["high"]
    assert Path(found["report"]).is_file()
    again = palate("run", str(conf), "--json", "--input", str(shared_data / "llmfao"), *settings(tiny_base))
    assert again.code == 5
