"""A dataset depends on the set of events only, and every event has one fate."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from feedback.preferences import PreferConfig
from pipelines import build_transforms, dataset, events_table
from pipelines import fates as fate_store
from pipelines.build import BuildConfig, Dataset, build, load
from pipelines.errors import DatasetError, PipelineError
from pipelines.ingest import ingest
from pipelines.ledger import Ledger, balance
from pipelines.workspace import Layout

from .made import NOW, START, feedback, history, interaction, lines, write

EVENTS = history(600)


def take_in(workspace: Path, *files: Path) -> None:
    for file in files:
        ingest(file, source="palate_jsonl", workspace=workspace, now=NOW)


def fates(workspace: Path) -> list[dict[str, Any]]:
    return fate_store.read(Layout(workspace)).to_pylist()


def fate_of(workspace: Path, event_id: str) -> list[tuple[str, str | None]]:
    return [(row["fate"], row["reason"]) for row in fates(workspace) if row["event_id"] == event_id]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One workspace with a history and its dataset; tests only read it."""
    folder = tmp_path_factory.mktemp("built")
    take_in(folder / "w", write(folder / "in.jsonl", EVENTS))
    build(workspace=folder / "w")
    return folder / "w"


@pytest.fixture(scope="module")
def made(workspace: Path) -> Dataset:
    return load(workspace)


def test_rows_have_all_splits_and_several_rules(made: Dataset) -> None:
    assert set(made.manifest["by_split"]) == {"train", "evaluation", "test"}
    assert set(made.manifest["by_rule"]) >= {"vote", "edit", "unpaired"}
    assert sum(made.manifest["by_rule"].values()) == made.manifest["rows"] == made.rows().num_rows
    ids = made.rows()["preference_id"].to_pylist()
    assert ids == sorted(set(ids))


def test_no_user_and_no_prompt_is_in_two_splits(made: Dataset) -> None:
    for column in ("prompt_key", "user_id"):
        held = {
            split: set(made.rows(split)[column].to_pylist()) - {None}
            for split in ("train", "evaluation", "test")
        }
        assert held["train"] and not held["train"] & (held["evaluation"] | held["test"])
        assert not held["evaluation"] & held["test"]


def test_every_event_has_one_fate(workspace: Path, made: Dataset) -> None:
    found = fates(workspace)
    assert Counter(row["event_id"] for row in found) == Counter(
        event.get("feedback_id") or event["interaction_id"] for event in EVENTS
    )
    assert made.manifest["balance"]["in"] == len(EVENTS) == sum(made.manifest["balance"]["fates"].values())
    named = {name for row in found for name in row["preference_ids"]}
    assert named == set(made.rows()["preference_id"].to_pylist())
    ledger = balance(workspace)
    assert ledger.balanced and ledger.fates == made.manifest["balance"]["fates"]


def test_the_manifest_says_what_it_was_made_from(made: Dataset) -> None:
    manifest = made.manifest
    assert manifest["events_version"] == 1 and manifest["version"] == made.version
    assert manifest["config"]["split"]["seed_text"] == "palate"
    assert set(manifest["code"]) == {"palate", "sources_sha256"} and "pyarrow" in manifest["dependencies"]
    assert manifest["first_event_time"] <= manifest["last_event_time"]


def _twice(folder: Path) -> list[Path]:
    return [write(folder / "a.jsonl", EVENTS), write(folder / "b.jsonl", EVENTS)]


def _shuffled(folder: Path) -> list[Path]:
    return [write(folder / "a.jsonl", random.Random(3).sample(EVENTS, len(EVENTS)))]


def _ten_pieces(folder: Path) -> list[Path]:
    mixed = random.Random(4).sample(EVENTS, len(EVENTS))
    return [write(folder / f"{piece}.jsonl", mixed[piece::10]) for piece in range(10)]


@pytest.mark.parametrize("given", [_twice, _shuffled, _ten_pieces])
def test_the_same_events_give_the_same_version(tmp_path: Path, made: Dataset, given: Any) -> None:
    take_in(tmp_path / "w", *given(tmp_path / "in"))
    again = build(workspace=tmp_path / "w")
    assert again.version == made.version and again.rows().equals(made.rows())
    assert balance(tmp_path / "w").balanced
    if given is _twice:
        assert again.manifest["balance"]["fates"]["duplicate"] == len(EVENTS)


def test_the_number_of_shards_changes_nothing(workspace: Path, made: Dataset, tmp_path: Path) -> None:
    take_in(tmp_path / "w", write(tmp_path / "in.jsonl", EVENTS))
    many = build(workspace=tmp_path / "w", config=BuildConfig(shards=7, rows_per_shard=1, in_memory_rows=0))
    assert many.version == made.version and many.rows().equals(made.rows())

    def key(row: dict[str, Any]) -> list[str]:
        return [str(row[name]) for name in sorted(row)]

    assert sorted(fates(tmp_path / "w"), key=key) == sorted(fates(workspace), key=key)


def test_nothing_new_is_not_built_again_and_another_config_is(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", EVENTS)
    take_in(tmp_path / "w", path)
    first = build(workspace=tmp_path / "w")
    again = build(workspace=tmp_path / "w")
    assert not first.reused and again.reused and again.version == first.version
    votes = build(workspace=tmp_path / "w", config=BuildConfig(prefer=PreferConfig(rules=("vote",))))
    assert set(votes.manifest["by_rule"]) == {"vote"} and votes.version != first.version
    assert load(tmp_path / "w").version == votes.version
    back = build(workspace=tmp_path / "w")
    assert back.reused and back.version == first.version == load(tmp_path / "w").version
    assert dataset.versions(tmp_path / "w") == sorted([first.version, votes.version])


def test_feedback_may_come_before_its_interaction(tmp_path: Path) -> None:
    events = [interaction(2, prompt="p", user="u1"), feedback(1, 2, user_id="u1")]
    take_in(tmp_path / "w", write(tmp_path / "1.jsonl", events[1:]))
    early = build(workspace=tmp_path / "w")
    assert early.rows().num_rows == 0 and fate_of(tmp_path / "w", "f1") == [("waiting", "orphan")]
    take_in(tmp_path / "w", write(tmp_path / "2.jsonl", events[:1]))
    waiting = balance(tmp_path / "w")
    assert waiting.fates == {"waiting": 2} and waiting.reasons == {
        "waiting/orphan": 1,
        "waiting/not_built": 1,
    }
    late = build(workspace=tmp_path / "w", config=BuildConfig(prefer=_ALL_TRAIN))
    assert late.manifest["by_rule"] == {"unpaired": 1}
    assert fate_of(tmp_path / "w", "f1") == fate_of(tmp_path / "w", "i2") == [("ready", None)]


_ALL_TRAIN = PreferConfig.model_validate(
    {"split": {"test_users": 0, "test_prompts": 0, "evaluation_users": 0, "evaluation_prompts": 0}}
)


def test_malformed_input_ends_in_dead_letters_or_waits_and_the_counts_balance(tmp_path: Path) -> None:
    good = [interaction(0), feedback(0, 0)]
    bad: dict[str, tuple[bytes, str]] = {
        "not JSON": (b"{not json", "not_json"),
        "an array": (b"[1, 2]", "not_an_object"),
        "wrong type": (lines([interaction(1, prompt=None) | {"prompt": "hello"}]), "wrong_type"),
        "missing id": (
            lines([{k: v for k, v in interaction(2).items() if k != "interaction_id"}]),
            "missing_id",
        ),
        "huge text": (lines([feedback(3, 0, "comment", {"text": "x" * 1_000_001})]), "too_large"),
        "NUL bytes": (b'{"type": "feedback\x00"}', "nul_byte"),
        "NUL escaped": (lines([feedback(4, 0, "comment", {"text": "a\0b"})]), "nul_byte"),
        "wrong encoding": ('{"type": "café"}'.encode("latin-1"), "wrong_encoding"),
        "future time": (lines([feedback(5, 0, event_time="2036-01-01T00:00:00Z")]), "future_time"),
        "before clocks": (
            lines([feedback(6, 0, event_time="1970-01-01T00:00:00Z")]),
            "expectation:event_time_plausible",
        ),
        "unknown kind": (lines([feedback(7, 0, "smell", 1)]), "unknown_kind"),
        "unknown type": (lines([{"type": "reaction"}]), "unknown_type"),
        "NaN": (lines([feedback(8, 0, "outcome", {"metric": "m", "value": float("nan")})]), "not_finite"),
        "thumb of 2": (lines([feedback(9, 0, "thumb", 2)]), "bad_value"),
    }
    conflicting = [feedback(10, 0, "thumb", 1), feedback(10, 0, "thumb", -1)]
    orphan = feedback(11, "i999")
    path = tmp_path / "in.jsonl"
    body = b"".join(raw.rstrip(b"\n") + b"\n" for raw, _ in bad.values())
    path.write_bytes(lines(good) + body + lines([*conflicting, orphan]))

    summary = ingest(path, source="palate_jsonl", workspace=tmp_path / "w", now=NOW)
    assert summary.dead_letters == dict(sorted(Counter(reason for _, reason in bad.values()).items()))
    assert summary.received == len(good) + len(bad) + 3
    assert summary.received == summary.interactions + summary.feedback + sum(summary.dead_letters.values())
    assert balance(tmp_path / "w").balanced  # before any build, too

    made = build(workspace=tmp_path / "w")
    wanted = {**summary.dead_letters, "conflicting_duplicate": 1}
    assert made.manifest["fates"]["dead_letters"] == wanted
    ledger = balance(tmp_path / "w")
    assert ledger.balanced and ledger.received == summary.received and ledger.dead_letters == wanted
    assert fate_of(tmp_path / "w", "f11") == [("waiting", "orphan")]
    table = events_table.open_table(Layout(tmp_path / "w")).to_pyarrow_table()
    kept = {row["raw"] for row in table.to_pylist() if row["kind"] == "dead_letter"}
    assert kept == {raw.rstrip(b"\n") for raw, _ in bad.values()}


def test_nothing_ingested_is_an_error_and_an_empty_file_an_empty_dataset(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="palate ingest"):
        build(workspace=tmp_path / "w")
    assert balance(tmp_path / "w") == Ledger() and not (tmp_path / "w").exists()
    (tmp_path / "in.jsonl").touch()
    take_in(tmp_path / "w", tmp_path / "in.jsonl")
    made = build(workspace=tmp_path / "w")
    assert made.rows().num_rows == 0 and made.manifest["balance"] == {"in": 0, "fates": {}}
    assert balance(tmp_path / "w").balanced


def test_a_damaged_dataset_is_made_again(tmp_path: Path) -> None:
    take_in(tmp_path / "w", write(tmp_path / "in.jsonl", history(20)))
    made = build(workspace=tmp_path / "w")
    (made.path / dataset.ROWS).write_bytes(b"PAR1")
    with pytest.raises(DatasetError, match="damaged"):
        load(tmp_path / "w")
    again = build(workspace=tmp_path / "w")
    assert again.version == made.version and not again.reused
    assert load(tmp_path / "w").rows().num_rows == made.manifest["rows"]


def test_a_runner_that_drops_work_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_in(tmp_path / "w", write(tmp_path / "in.jsonl", history(20)))
    read = build_transforms.read_claims
    monkeypatch.setattr(build_transforms, "read_claims", lambda folder: read(folder)[:1])
    with pytest.raises(PipelineError, match="do not balance"):
        build(workspace=tmp_path / "w", config=BuildConfig(in_memory_rows=0, rows_per_shard=5))
    assert dataset.versions(tmp_path / "w") == [] and fate_store.built_from(Layout(tmp_path / "w")) is None


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = write(tmp_path / "in.jsonl", history(20))
    ingest(
        path,
        source="palate_jsonl",
        workspace=tmp_path / "w",
        now=NOW,
        progress=lambda *step: told.append(step),
    )
    build(workspace=tmp_path / "w", progress=lambda *step: told.append(step))
    assert told == [("ingest", 0, 1), ("ingest", 1, 1), *[("build", done, 4) for done in range(5)]]


def test_different_events_under_one_id_meet_across_files(tmp_path: Path) -> None:
    """By the pipeline, where payloads go to their groups at once, as in memory, where all is together."""
    moved = [
        interaction(3, prompt="another question"),  # stands: it is the earlier one
        interaction(3) | {"event_time": (START + timedelta(minutes=50)).isoformat()},
        interaction(5),
        interaction(5, prompt="yet another") | {"event_time": (START + timedelta(minutes=99)).isoformat()},
        feedback(900, 3),
        feedback(900, 4) | {"event_time": (START + timedelta(days=9)).isoformat()},
        feedback(901, 77),  # waits
        feedback(902, 5),
    ]
    files = [history(30, seed=1), moved, [*history(30, seed=1)[:12], *moved[::-1]], [interaction(4)]]
    made = []
    for name, settings in (
        ("memory", BuildConfig()),
        ("pipeline", BuildConfig(in_memory_rows=0, rows_per_shard=5)),
    ):
        workspace = tmp_path / name
        for number, events in enumerate(files):
            path = write(tmp_path / f"{number}.jsonl", events)
            ingest(path, source="palate_jsonl", workspace=workspace, now=NOW)
        built = build(workspace=workspace, config=settings)
        told = sorted(str(row | {"partition": "", "ingest_time": ""}) for row in fates(workspace))
        made.append((built.version, built.manifest["fates"], told))
    assert made[0] == made[1]
    assert "conflicting_duplicate" in str(made[0][1])
    assert "same_event" in str(made[0][1])
