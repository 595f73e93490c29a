"""What the oracles find on the installed libraries, and how findings are made; see also test_oracles_broken."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch

from training.known_faults import faults_of, unverified
from training.oracles import for_method, oracles
from training.oracles.finding import Comparison, Oracle, near, same
from training.update import methods

ALL = oracles()


@pytest.mark.parametrize("name", list(ALL))
def test_what_is_installed_passes(name: str) -> None:
    found = ALL[name].check()
    assert found.passed, [c for c in found.comparisons if not c.holds and not c.avoided]
    assert found.comparisons
    for comparison in found.comparisons:  # a fault that is told must be avoided by somebody
        assert comparison.holds or comparison.avoided
    json.dumps(found.as_json(), allow_nan=False)


def test_every_method_has_oracles_and_all_is_all() -> None:
    assert {o.name for o in for_method("all")} == set(ALL)
    for method in ("dpo", "kto", "online", "words", "grpo"):
        assert {"adapter"} < {o.name for o in for_method(method)} < set(ALL)
    assert {o.name for o in for_method("dpo")} | {o.name for o in for_method("kto")} <= {
        o.name for o in for_method("mix")
    }


def test_settings_that_run_into_known_faults_are_named() -> None:
    good = {"top_p": 1.0, "top_k": 0, "loss": "dr_grpo"}
    assert faults_of("grpo", good) == []
    (fault,) = faults_of("grpo", {**good, "top_p": 0.9})
    assert "biased" in fault.fault and "trl#6789" in fault.reference
    (fault,) = faults_of("grpo", {**good, "loss": "bnpo"})
    assert "micro-batch" in fault.fault
    assert unverified({"trl": "1.16.0", "torch": "2.13.0+cpu"}) == {}
    assert unverified({"trl": "1.17.0"}) == {"trl": ("1.17.0", "1.16.0")}


def test_every_method_of_palate_is_covered() -> None:
    for method in methods():
        assert for_method(method), method
    assert {m for o in ALL.values() for m in o.methods} <= set(methods())
    assert all(o.protects and o.reference for o in ALL.values())


def test_listing_oracles_imports_nothing_heavy() -> None:
    code = (
        "import sys; from training.oracles import oracles; assert len(oracles()) > 20; "
        "heavy = {'torch', 'transformers', 'trl', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def finding(*comparisons: Comparison) -> str:
    return Oracle("made", frozenset({"dpo"}), "nothing", "none", lambda _: comparisons).check().state


def test_what_counts_as_right() -> None:
    assert near("x", 2.0, 2.0 + 1e-5).holds and not near("x", 2.0, 2.001).holds
    assert not near("x", math.nan, 2.0).holds and not near("x", 2.0, math.nan).holds
    assert not near("x", math.inf, 2.0).holds
    assert Comparison("x", "refused", "refused").holds and not Comparison("x", 1.0, "refused").holds
    zeros = torch.zeros(3)
    assert not same("x", zeros, zeros).holds  # anything that computes nothing would meet it
    assert not same("x", torch.tensor([1.0, math.nan]), torch.ones(2)).holds
    assert not same("x", torch.ones(3), torch.ones(2)).holds
    assert not same("x", torch.ones(0), torch.ones(0)).holds
    assert same("x", torch.tensor([100.0, 0.001]), torch.tensor([100.0, 0.0])).holds


def test_states_and_which_comparison_is_shown() -> None:
    good, off = near("good", 1.0, 1.0), near("off", 1.0, 2.0)
    told = Comparison("told", "accepted", "refused", avoided="palate refuses it")
    assert finding() == "FAIL"  # nothing was compared
    assert finding(good) == "ok"
    assert finding(good, told) == "known fault"
    assert finding(good, told, off) == "FAIL"
    shown = Oracle("made", frozenset(), "nothing", "none", lambda _: (good, told, off)).check()
    assert (shown.measured, shown.expected, shown.passed) == ("off: 1", "2", False)


def test_an_oracle_that_cannot_run_fails_and_says_why() -> None:
    def breaks(_: object) -> list[Comparison]:
        raise RuntimeError("no   loss\ntoday")

    found = Oracle("made", frozenset(), "nothing", "none", breaks).check()
    assert not found.passed
    assert found.measured == "ran: RuntimeError: no loss today"


def test_numbers_that_json_does_not_know_are_told_as_text() -> None:
    found = Oracle("made", frozenset(), "a", "b", lambda _: (near("x", math.nan, 1.0),)).check()
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert document["comparisons"][0]["measured"] == "nan" and not document["comparisons"][0]["holds"]
