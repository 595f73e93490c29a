"""Verdicts on both sides of every threshold, and how gates are found."""

from __future__ import annotations

import math
import sys
import types

import pytest
from pydantic import BaseModel

from evaluation.compare import Comparison
from evaluation.errors import GateError
from evaluation.estimates import Estimate
from evaluation.gates import configure, judge_all, load, names
from evaluation.verdicts import Verdict, overall


def comparison(**metrics):
    return Comparison(metrics=metrics, wins=0, ties=0, losses=0, prompts=100, seed=1)


def judged(gate, estimate, **settings):
    metric = {"win_rate": "win_rate", "length_drift": "length_ratio", "kl_budget": "kl_per_token"}[gate]
    (verdict,) = judge_all(comparison(**{metric: estimate}), {gate: settings})
    return verdict


def test_gates_are_found_by_module_name():
    assert names() == ["kl_budget", "length_drift", "reward_models", "win_rate"]
    assert all(load(name).Config() is not None for name in names())


@pytest.mark.parametrize(
    ("gate", "value", "low", "high", "settings", "verdict"),
    [
        ("win_rate", 0.60, 0.51, 0.69, {}, "pass"),
        ("win_rate", 0.60, 0.50, 0.70, {}, "fail"),  # one half is not above one half
        ("win_rate", 0.40, 0.31, 0.49, {}, "fail"),
        ("win_rate", 0.60, 0.54, 0.66, {"margin": 0.05}, "fail"),
        ("length_drift", 1.10, 1.00, 1.25, {}, "pass"),
        ("length_drift", 0.90, 0.75, 1.00, {}, "pass"),
        ("length_drift", 1.20, 1.10, 1.30, {}, "insufficient_data"),
        ("length_drift", 1.26, 1.10, 1.40, {}, "fail"),
        ("length_drift", 0.74, 0.60, 0.90, {}, "fail"),
        ("length_drift", 0.74, 0.60, 0.90, {"max_drift": 0.5}, "pass"),
        ("kl_budget", 0.10, 0.05, 0.50, {}, "pass"),
        ("kl_budget", -0.01, -0.02, 0.01, {}, "pass"),  # noise around zero
        ("kl_budget", 0.40, 0.20, 0.60, {}, "insufficient_data"),
        ("kl_budget", 0.60, 0.40, 0.80, {}, "fail"),
        ("kl_budget", 0.60, 0.40, 0.80, {"budget_nats": 1.0}, "pass"),
    ],
)
def test_verdicts_on_both_sides_of_the_threshold(gate, value, low, high, settings, verdict):
    found = judged(gate, Estimate(value, low, high, 40), **settings)
    assert found.verdict == verdict
    assert (found.gate, found.value, found.low, found.high, found.n) == (gate, value, low, high, 40)
    assert found.why and found.formula
    assert found.threshold in (0.5, 0.55, 0.25, 1.0)


@pytest.mark.parametrize("gate", ["win_rate", "length_drift", "kl_budget"])
def test_too_few_prompts_are_not_judged_however_good(gate):
    perfect = {"win_rate": 1.0, "length_drift": 1.0, "kl_budget": 0.0}[gate]
    found = judged(gate, Estimate(perfect, perfect, perfect, 19))
    assert found.verdict == "insufficient_data" and "19 prompts" in found.why
    assert judged(gate, Estimate(perfect, perfect, perfect, 20)).verdict == "pass"
    assert judged(gate, Estimate(perfect, perfect, perfect, 5), min_prompts=5).verdict == "pass"


@pytest.mark.parametrize("gate", ["win_rate", "length_drift", "kl_budget"])
def test_what_was_not_measured_does_not_pass(gate):
    (found,) = judge_all(comparison(), {gate: {}})
    assert found.verdict == "insufficient_data" and "not measured" in found.why
    assert judged(gate, Estimate(math.nan, 0, 1, 50)).verdict == "insufficient_data"
    assert found.to_dict()["value"] is None


def verdict(outcome):
    return Verdict("g", outcome, 0.0, 0.0, 0.0, 1, 0.0, "f", "w")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "insufficient_data"], "insufficient_data"),
        (["insufficient_data", "fail", "pass"], "fail"),
        ([], "insufficient_data"),  # nothing was checked, so nothing is proven
    ],
)
def test_overall(outcomes, expected):
    assert overall([verdict(one) for one in outcomes]) == expected


def test_unknown_gates_and_settings_name_the_known_ones():
    with pytest.raises(GateError, match=r"kl_budget.*length_drift.*win_rate"):
        load("win_rte")
    with pytest.raises(GateError, match="cannot be loaded"):
        load("evaluation.gates.win_rate:Nothing")
    with pytest.raises(GateError, match="cannot be loaded"):
        load("no_such_module:Gate")
    with pytest.raises(GateError, match="needs `Config`"):
        load("evaluation.gates:names")
    with pytest.raises(GateError, match=r"(?s)margn.*min_prompts"):
        configure({"win_rate": {"margn": 0.1}})
    with pytest.raises(GateError, match="max_drift"):
        configure({"length_drift": {"max_drift": -1}})


def test_a_gate_of_ones_own(monkeypatch):
    class Mine:
        class Config(BaseModel):
            most: float = 1.0

        @staticmethod
        def judge(evidence, config):
            cost = evidence.extra["cost"]
            outcome = "pass" if cost <= config.most else "fail"
            return Verdict("cost", outcome, cost, cost, cost, 1, config.most, "cost <= most", "because")

    module = types.ModuleType("my_gates")
    module.Mine = Mine
    monkeypatch.setitem(sys.modules, "my_gates", module)
    (found,) = judge_all(comparison(), {"my_gates:Mine": {"most": 2.0}}, {"cost": 3.0})
    assert found.verdict == "fail"
