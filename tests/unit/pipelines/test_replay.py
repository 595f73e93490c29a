"""Dead letters that pass now become events, each once, and the ledger goes on balancing."""

from __future__ import annotations

import json
import resource
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines import replay_batches
from pipelines.build import build
from pipelines.errors import DiskFullError, InputError, PipelineError
from pipelines.ingest import IngestConfig, ingest
from pipelines.ledger import balance
from pipelines.replay import Letters, load_edit, replay
from pipelines.replay_files import export, repaired_letters
from pipelines.story import story
from pipelines.workspace import Layout
from tests.unit.pipelines.made import NOW, feedback, interaction, lines

EARLY = interaction(90) | {"event_time": (NOW + timedelta(days=30)).isoformat()}
LATER = NOW + timedelta(days=60)
CONFIG = IngestConfig()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Four events, and three letters: no JSON, a missing field, an event of the future."""
    file = tmp_path / "events.jsonl"
    good = [interaction(0), interaction(1), feedback(0, 0), feedback(1, 1, value=-1)]
    broken = {"type": "interaction", "interaction_id": "i91", "event_time": "2026-01-01T00:00:00Z"}
    file.write_bytes(lines(good) + b"{broken\n" + lines([broken, EARLY]))
    ingest(file, source="palate_jsonl", workspace=tmp_path / "w", now=NOW)
    return tmp_path / "w"


def mend(raw: bytes, reason: str, _detail: str) -> bytes | None:
    """Completes what lacks a field; leaves the rest."""
    if reason != "missing_field":
        return None
    return json.dumps(
        {**json.loads(raw), **{k: interaction(91)[k] for k in ("prompt", "completion")}}
    ).encode()


def test_what_passes_now_becomes_an_event_once(workspace: Path) -> None:
    dry = replay(workspace, Letters(), config=CONFIG, now=LATER, dry_run=True)
    assert (dry.letters, dry.passing, dry.ingested) == (3, 1, None)
    assert dry.refused == {"missing_field": 1, "not_json": 1}
    assert balance(workspace).received == 7
    first = replay(workspace, Letters(), config=CONFIG, now=LATER)
    assert first.passing == 1 and first.ingested is not None and first.ingested.interactions == 1
    again = replay(workspace, Letters(), config=CONFIG, now=LATER)
    assert (again.replayed_before, again.passing) == (1, 0)
    build(workspace=workspace)
    ledger = balance(workspace)
    assert ledger.balanced and ledger.received == 8 and ledger.fates["dead_letter"] == 3


def test_old_row_and_new_row_are_linked(workspace: Path) -> None:
    replay(workspace, Letters(), config=CONFIG, now=LATER)
    letter, event = story(workspace, "i90").arrivals
    assert (letter.kind, event.kind) == ("dead_letter", "interaction")
    assert letter.replayed_as == (event.place,) and event.replay_of == letter.place
    assert letter.fate == "dead_letter" and letter.fate_reason == "future_time"
    by_place = story(workspace, str(letter.place))
    assert [a.place for a in by_place.arrivals] == [letter.place, event.place]


def test_killed_between_batch_and_commit(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.replay.ingest", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            replay(workspace, Letters(), config=CONFIG, now=LATER)
    assert len(list(replay_batches.folder(Layout(workspace)).iterdir())) == 1
    assert replay_batches.replays(Layout(workspace)) == {}
    assert story(workspace, "i90").arrivals[0].replayed_as == ()
    done = replay(workspace, Letters(), config=CONFIG, now=LATER, edit=mend)
    assert done.passing == 2
    assert balance(workspace).received == 9


def test_reasons_times_and_edits(workspace: Path) -> None:
    some = replay(workspace, Letters(reasons=("not_json",)), config=CONFIG, now=LATER, dry_run=True)
    assert (some.letters, some.passing) == (1, 0)
    none = replay(workspace, Letters(since=NOW + timedelta(1)), config=CONFIG, now=LATER, dry_run=True)
    assert none.letters == 0
    assert replay(workspace, Letters(until=NOW), config=CONFIG, now=LATER, dry_run=True).letters == 0
    mended = replay(workspace, Letters(reasons=("missing_field",)), config=CONFIG, now=NOW, edit=mend)
    assert (mended.letters, mended.edited, mended.passing) == (1, 1, 1)
    assert story(workspace, "i91").arrivals[-1].kind == "interaction"


@pytest.mark.parametrize(("answer", "said"), [(1, "gave no bytes"), (ZeroDivisionError(), "failed on")])
def test_a_faulty_edit_changes_nothing(workspace: Path, answer: Any, said: str) -> None:
    def faulty(_raw: bytes, _reason: str, _detail: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(InputError, match=said):
        replay(workspace, Letters(), config=CONFIG, now=LATER, edit=faulty)
    assert balance(workspace).received == 7


def test_letters_are_mended_by_hand(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    assert export(workspace, Letters(), file) == 3
    with pytest.raises(FileExistsError):
        export(workspace, Letters(), file)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert {letter["reason"] for letter in found} == {"not_json", "missing_field", "future_time"}
    # One mended as text, one as an object, one left as it is.
    found[0]["raw"] = json.dumps(interaction(70))
    found[1]["raw"] = interaction(71)
    file.write_text("\n".join(json.dumps(letter) for letter in found) + "\n")
    done = replay(workspace, Letters(), config=CONFIG, now=NOW, repaired=repaired_letters(file))
    assert (done.letters, done.edited, done.passing) == (3, 2, 2)
    assert export(workspace, Letters(), tmp_path / "rest.jsonl") == 1
    assert story(workspace, "i70").arrivals[0].said == "{broken"


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"3", b'{"partition": 1, "offset": 0, "raw": ""}', b'{"partition": "p", "offset": 0}',
     b'{"partition": "p", "offset": 0, "raw_base64": "?"}', b'{"partition": "p", "offset": 0, "raw": ""}\n' * 2],
)  # fmt: skip
def test_a_repaired_file_that_is_none(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "letters.jsonl"
    file.write_bytes(line)
    with pytest.raises(InputError, match="line"):
        repaired_letters(file)


def test_a_module_that_fails_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_once.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="ZeroDivisionError"):
        load_edit("fails_at_once:edit")


def test_reasons_that_are_no_text(workspace: Path) -> None:
    found = replay(workspace, Letters(reasons=("\udcff", "not_json")), config=CONFIG, now=NOW, dry_run=True)
    assert found.letters == 1


def test_an_export_is_whole_or_not_there(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, allowed[1]))
    try:
        with pytest.raises(DiskFullError):
            export(workspace, Letters(), file)
        with pytest.raises(DiskFullError):
            replay(workspace, Letters(), config=CONFIG, now=LATER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert not file.exists()
    file.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        export(workspace, Letters(), file)
    assert file.read_bytes() == b"mine"
    assert replay(workspace, Letters(), config=CONFIG, now=LATER).passing == 1


def test_a_batch_that_nobody_read_may_be_damaged(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.replay.ingest", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            replay(workspace, Letters(), config=CONFIG, now=LATER)
    (batch,) = replay_batches.folder(Layout(workspace)).iterdir()
    whole = batch.read_bytes()
    batch.write_bytes(b"junk")
    assert story(workspace, "i90").arrivals[0].replayed_as == ()
    assert replay(workspace, Letters(), config=CONFIG, now=LATER).passing == 1
    assert batch.read_bytes() == whole
    batch.write_bytes(b"junk")  # now it is the only thing that knows what was replayed
    replay_batches._places.cache_clear()
    with pytest.raises(PipelineError, match="batch"):
        replay(workspace, Letters(), config=CONFIG, now=LATER)
    assert balance(workspace).received == 8


def test_unknown_letters_and_functions(workspace: Path) -> None:
    with pytest.raises(InputError, match="do not exist"):
        replay(workspace, Letters(), config=CONFIG, now=NOW, repaired={("nowhere", 3): b"{}"})
    for name in (
        "os",
        "no_such_module:x",
        "os:no_such",
        "os:sep",
        ".os:getcwd",
        ":",
        "tests.unit.pipelines:x",
    ):
        with pytest.raises(InputError, match="edit"):
            load_edit(name)
