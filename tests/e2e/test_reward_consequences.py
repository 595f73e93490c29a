"""A candidate judged by a reward model that failed its gates is not promotable, whatever its own gates say."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import Palate, Result
from tests.e2e.test_run import events_of, run_settings


def test_a_candidate_falls_with_the_scorer_that_judged_it(
    demo_workspace: tuple[Path, Result], tiny_base: Path, palate: Palate
) -> None:
    command = ["run", "--json", "--input", str(events_of(demo_workspace)), *run_settings(tiny_base)]
    # The demo's people wrote at a fixed date, long ago by any measure of a day.
    old = ["--set", "gates={reward_models={}}", "--set", "reward_gates={data_freshness={max_age_days=1}}"]
    failed = palate(*command, *old)
    assert failed.code == 3, failed.err
    (verdict,) = failed.json["verdicts"]
    assert (verdict["gate"], verdict["verdict"], verdict["value"]) == ("reward_models", "fail", 1.0)
    assert verdict["why"].startswith(
        "The evaluation scorer, which judged it, fails data_freshness: Its newest row"
    )
    assert "training scorer" not in verdict["why"]  # DPO learns from people's pairs, not from its scores
    refused = palate("promote", "--json")
    assert refused.code == 3 and "data_freshness" in refused.err
    # The same work judged by gates that cannot decide: what they are is said, and they stop nothing.
    unsure = [
        "--set",
        "gates={reward_models={}}",
        "--set",
        "reward_gates={heldout_accuracy={min_users=9999}}",
    ]
    passed = palate(*command, *unsure)
    assert passed.code == 0, passed.err
    (verdict,) = passed.json["verdicts"]
    assert (verdict["verdict"], verdict["value"], verdict["n"]) == ("pass", 0.0, 1)
    assert "could not decide: heldout_accuracy." in verdict["why"]
    strict = ["--set", "gates={reward_models={must_decide=true}}", *unsure[2:]]
    assert palate(*command, *strict).code == 4
