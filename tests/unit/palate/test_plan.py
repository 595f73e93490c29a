"""What a plan counts and estimates: checked by hand, by simulation, and on a real workspace and registry."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.estimates import Estimate
from palate import plan_canary, plan_lift
from palate.console import Out
from palate.context import Context, open_project
from palate.plan_canary import Verdicts, design_effect, sample_size
from palate.plan_cost import Cost
from palate.plan_settings import Config
from palate.plan_traffic import Traffic, traffic
from pipelines.ingest import ingest
from rollout.connection import Registry, RegistryConfig, connect
from tests.unit.pipelines.made import START, feedback, interaction, write
from training.probe import Duration, Probe, Size, Step
from training.probe_memory import Memory


def test_the_sample_size_is_that_of_the_text_book() -> None:
    # p = 0.325: (1.95996 * sqrt(2 * 0.325 * 0.675) + 0.84162 * sqrt(0.1875 + 0.24))^2 / 0.15^2 = 151.9, worse upwards
    assert sample_size(0.25, 0.15, 0.05, 0.8, 1.0) == pytest.approx(151.87, abs=0.05)
    assert sample_size(0.75, 0.15, 0.05, 0.8, 1.0) == pytest.approx(151.87, abs=0.05)  # the mirror image
    # Next to an end there is one side only.
    ends = [sample_size(p, 0.02, 0.05, 0.8, 1.0) for p in (0.0, 1.0)]
    assert ends[0] == pytest.approx(ends[1]) and ends[0] > 0
    assert math.isfinite(sample_size(0.3, 0.3, 0.05, 0.8, 9.0))


def test_a_test_of_that_size_has_that_power_with_unequal_arms() -> None:
    share, difference, ratio = 0.6, 0.1, 9.0
    n = math.ceil(sample_size(share, difference, 0.05, 0.8, ratio))
    others = round(ratio * n)
    dice = np.random.default_rng(0)

    def seen(true: float) -> float:
        candidate, champion = dice.binomial(n, true, 20_000), dice.binomial(others, share, 20_000)
        pooled = (candidate + champion) / (n + others)
        z = (candidate / n - champion / others) / np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / others))
        return float((np.abs(z) > 1.959964).mean())

    # Of the two sides, the one that needs more verdicts has the power that was asked for, the other more.
    assert min(seen(share - difference), seen(share + difference)) == pytest.approx(0.8, abs=0.015)
    assert seen(share) == pytest.approx(0.05, abs=0.01)


def test_verdicts_of_one_person_count_less() -> None:
    apart = np.array([True, False, True, False])
    # Residuals +-0.5 of four people: 4 / 3 * 1 / 16 over 0.25 / 4.
    assert design_effect(apart, ["a", "b", "c", "d"]) == pytest.approx(4 / 3)
    # Each of two people always says the same: 2 * (1 + 1) / 16 over 0.25 / 4.
    assert design_effect(apart, ["a", "b", "a", "b"]) == pytest.approx(4.0)
    # People who contradict themselves could teach more; no credit is taken for that.
    assert design_effect(apart, ["a", "a", "b", "b"]) == 1.0
    assert design_effect(np.array([True, True]), ["a", "b"]) == 1.0
    assert design_effect(apart, ["a"] * 4) == design_effect(np.zeros(0, dtype=bool), []) == 1.0


def verdicts(count: int, days: float) -> Verdicts:
    return Verdicts(np.arange(count) % 2 == 0, [f"Ü{n}" for n in range(count)], days)


def test_days_are_verdicts_needed_over_verdicts_that_come_in() -> None:
    settings = Config(difference=0.1, canary_share=0.25)
    found = plan_canary.plan(verdicts(1400, 14.0), settings)
    effect = 1400 / 1399
    needed = math.ceil(effect * sample_size(0.5, 0.1, 0.05, 0.8, 3.0))
    assert (found.verdicts_per_day, found.satisfied, found.needed) == (100.0, 0.5, needed)
    assert found.days == pytest.approx(needed / 25)
    slower = plan_canary.plan(verdicts(1400, 14.0), settings.model_copy(update={"longest_days": 5.0}))
    assert slower.days is None and slower.why.startswith("Insufficient traffic: it would take ")
    assert f"{found.days:.0f} days" in slower.why
    silent = plan_canary.plan(verdicts(0, 14.0), settings)
    assert silent.days is None and silent.satisfied is None and "nobody gave" in silent.why


Workspace = Callable[..., Context]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project that has ingested some events."""
    monkeypatch.chdir(tmp_path)

    def made(*events: dict[str, Any]) -> Context:
        context = open_project(None, [], Out(as_json=True))
        if events:
            path = write(tmp_path / "events.jsonl", list(events))
            ingest(path, source="palate_jsonl", workspace=context.project.dir)
        return context

    return made


def at(days: float) -> dict[str, str]:
    return {"event_time": (START + timedelta(days=days)).isoformat()}


def said(number: int, about: int, kind: str, value: Any, days: float = 29.0, **more: Any) -> dict[str, Any]:
    return feedback(number, about, kind, value, **at(days), **{"user_id": f"u{about}", **more})


def test_the_newest_traffic_is_counted_by_event_time(workspace: Workspace) -> None:
    context = workspace(
        interaction(0, user="u0", agent="diet", **at(1)),  # too old
        interaction(1, user="u1", agent="diet", **at(20)),
        interaction(2, user="u2", agent="friend", **at(21)),
        interaction(3, user="u1", agent="friend", **at(22)),
        interaction(4, user="ü4", agent="friend", **at(30)),
        {**interaction(5, agent="diet", **at(30)), "user_id": None},
        said(0, 0, "thumb", 1, days=2),  # too old
    )
    found = traffic(context, {"diet"}, 14)
    assert (found.until, found.days) == (datetime(2026, 1, 31, tzinfo=UTC), 14.0)
    assert (found.people, found.affected, found.nameless) == (3, 1, 1)
    assert not len(found.verdicts.satisfied)
    assert traffic(context, {"friend", None}, 14).affected == 3
    assert traffic(context, {"friend"}, 400).days == 29.0  # of what is asked for, what there is
    assert traffic(context, set(), 400).people == 4


def test_a_log_of_hours_counts_as_a_day_and_none_as_no_traffic(workspace: Workspace, tmp_path: Path) -> None:
    nothing = traffic(workspace(), {"diet"}, 14)
    assert (nothing.until, nothing.people, len(nothing.verdicts.people)) == (None, 0, 0)
    assert not (tmp_path / ".palate").exists()
    short = traffic(workspace(interaction(0), said(0, 0, "thumb", 1, days=0.1)), {"assistant"}, 14)
    assert short.days == short.verdicts.days == 1.0
    assert len(short.verdicts.satisfied) == 1


def test_what_users_say_outright_of_a_reply_is_a_verdict_and_the_last_word_counts(
    workspace: Workspace,
) -> None:
    def rating(value: float) -> dict[str, float]:
        return {"value": value, "lo": 1, "hi": 5}

    context = workspace(
        *(interaction(n, user=f"u{n}", **at(28)) for n in range(10)),
        said(0, 0, "thumb", 1),
        said(1, 1, "thumb", -1),
        said(2, 2, "accept", None),
        said(3, 3, "reject", None),
        said(4, 4, "rating", rating(4)),
        said(5, 5, "rating", rating(3)),  # says neither
        said(6, 6, "copy", None),  # nothing outright
        said(7, 7, "thumb", 1, actor="judge"),  # no user
        said(8, 8, "thumb", -1, days=28.5),
        said(9, 8, "thumb", 1),  # another mind
        said(10, 9, "thumb", 1),
        said(11, 9, "thumb", 1, retracts="f10"),
        said(0, 0, "thumb", 1),  # sent twice
        said(12, 0, "thumb", -1, user_id=None),
        said(13, 0, "thumb", -1, user_id=None),
    )
    found: Traffic = traffic(context, set(), 14)
    told = dict(zip(found.verdicts.people, found.verdicts.satisfied.tolist(), strict=True))
    assert told == {
        "user u0": True,
        "user u1": False,
        "user u2": True,
        "user u3": False,
        "user u4": True,
        "user u8": True,
        "signal f12": False,
        "signal f13": False,
    }


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return connect(tmp_path / "workspace", RegistryConfig())


def candidate(registry: Registry, name: str, value: float | None, *, method: str, base: str = "b") -> None:
    """A version as a run registers it."""
    from rollout.registry import register_candidate
    from tests.integration.test_registry import make_adapter

    run = registry.client.create_run(registry.experiment_id)
    registry.client.log_param(run.info.run_id, "train.method", method)
    measured = {} if value is None else {"value": value, "low": value - 0.05, "high": value + 0.05, "n": 80}
    register_candidate(
        registry,
        adapter_dir=make_adapter(Path(registry.adapters_dir) / "made" / name, len(name)),
        base_id=base,
        base_revision="r",
        run_id=run.info.run_id,
        dataset_version="d",
        metrics={},
        params={},
        verdicts=[{"gate": "win_rate", "verdict": "fail", **measured}],
        tags={},
        run_key=name,
    )


def test_earlier_updates_are_the_reference_class_from_three_on(registry: Registry) -> None:
    for name, value, method, base in (
        ("one", 0.5, "dpo", "b"),
        ("two", 0.6, "dpo", "b"),
        ("other method", 0.9, "kto", "b"),
        ("other base", 0.9, "dpo", "c"),
        ("never measured", None, "dpo", "b"),
    ):
        candidate(registry, name, value, method=method, base=base)
    too_few = plan_lift.earlier(registry, "dpo", "b")
    assert too_few.estimate is None
    assert too_few.why.startswith("not known before training: 2 of at least 3 updates by dpo")
    candidate(registry, "three", 0.7, method="dpo")
    found = plan_lift.earlier(registry, "dpo", "b").estimate
    # Mean 0.6, standard deviation 0.1, t(2) = 4.3027: 0.4968 on either side, cut off at 1.
    assert found is not None
    assert (found.value, found.low, found.high, found.n) == pytest.approx((0.6, 0.1032, 1.0, 3), abs=1e-4)
    unknown = plan_lift.earlier(None, "dpo", "b")
    assert unknown.estimate is None and "no earlier update" in unknown.why
    assert plan_lift.ceiling(registry, "b").estimate is None
    assert not [model for model in registry.client.search_registered_models() if "reward" in model.name]


def test_equal_win_rates_do_not_make_one_more_certain() -> None:
    same = [Estimate(0.6, 0.5, 0.7, 80)] * 3
    assert plan_lift.predicted(same) == pytest.approx((0.6, 0.5, 0.7))


def test_one_more_win_rate_lies_in_the_interval_as_often_as_it_says() -> None:
    dice = np.random.default_rng(1)
    hits = []
    for draws in dice.normal(0.55, 0.03, size=(2_000, 5)):
        _, low, high = plan_lift.predicted([Estimate(v, v, v, 80) for v in draws[:4]])
        hits.append(low <= draws[4] <= high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


def cost(free: int | None, disk: int) -> Cost:
    host = Memory("cpu", 10, 20, 5, 100, free)
    tried = Probe((Step(1, 1.0),) * 3, 1.0, 0.0, 0.0, 7, (host,))
    return Cost(Size(1, 1, 1, 1, 1, 1), tried, Duration(1.0, 1.0, 1.0), 30, disk)


def test_a_plan_says_whether_memory_and_disk_are_enough() -> None:
    assert cost(200, 30).fits is True
    assert cost(100, 30).fits is False  # the peak alone is no room to spare
    assert cost(200, 29).fits is False
    assert cost(None, 30).fits is None and cost(None, 29).fits is False
    assert Cost(None, None, None, None, 10, "not measured").fits is None
    told = cost(200, 30).to_dict()
    assert told["activations"] == {"cpu": 65} and told["probe"]["checkpoint_bytes"] == 7
    json.dumps(told, allow_nan=False)
