"""Building in steps gives what building once gives, for whatever arrives in whatever order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedback.events import Event
from feedback.preferences import PreferConfig
from feedback.tables import to_table
from pipelines import build_work, dataset, events_table, fates, provenance
from pipelines.build import BuildConfig, build
from pipelines.errors import PipelineError
from pipelines.events_table import EventFile, Position
from pipelines.groups_store import store
from pipelines.groups_store.segment import SegmentError, open_segment
from pipelines.ledger import balance
from pipelines.workspace import Layout, staging_folder
from tests.unit.feedback.made import EVERYTHING_TRAINS, NOON, event_set, feedback, interaction

SMALL = BuildConfig(rows_per_shard=7)
TRAIN = BuildConfig(prefer=PreferConfig(split=EVERYTHING_TRAINS), rows_per_shard=7)
STEPS = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def once_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of one segment with rows."""
    folder = tmp_path_factory.mktemp("once") / "w"
    put(folder, event_set(3, (16, 60)), 0)
    build(workspace=folder, config=TRAIN)
    return folder


@pytest.fixture
def built_once(once_template: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(once_template, tmp_path / "w"))


def put(workspace: Path, events: Sequence[Event], batch: int) -> None:
    """Commits events as an ingest does, as one batch of one partition."""
    layout = Layout(workspace)
    table = to_table(
        events,
        source="made",
        partition=f"made:{batch}",
        offsets=range(len(events)),
        ingest_time=NOON + timedelta(hours=batch),
    )
    with staging_folder(layout, "put") as staging:
        staged = []
        for kind in ("interaction", "feedback"):
            rows = table.filter(pc.equal(table["kind"], kind))
            if rows.num_rows:
                path = staging / f"{kind}.parquet"
                pq.write_table(rows.drop_columns(["kind"]), path)
                staged.append(EventFile(path, kind, rows.num_rows))
        at = {f"made:{batch}": Position(len(events), len(events) - 1, 0)}
        assert events_table.append(layout, events_table.open_table(layout), staged, at)


def made(workspace: Path) -> dict[str, Any]:
    """Everything that a build says."""
    found = dataset.load(workspace)
    ledger = balance(workspace)
    assert ledger.balanced, ledger
    assert ledger.fates == found.manifest["balance"]["fates"] or found.manifest["created"]
    return {
        "version": found.version,
        "rows": found.rows().to_pylist(),
        "fates": sorted(fates.read(Layout(workspace)).to_pylist(), key=str),
        "ledger": ledger,
    }


def in_steps(folder: Path, batches: Sequence[Sequence[Event]], config: BuildConfig) -> dict[str, Any]:
    for number, batch in enumerate(batches):
        put(folder, batch, number)
        build(workspace=folder, config=config)
    return made(folder)


def at_once(folder: Path, batches: Sequence[Sequence[Event]], config: BuildConfig) -> dict[str, Any]:
    for number, batch in enumerate(batches):
        put(folder, batch, number)
    build(workspace=folder, config=config)
    return made(folder)


def same(batches: Sequence[Sequence[Event]], config: BuildConfig = SMALL) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        steps, once = in_steps(Path(one), batches, config), at_once(Path(other), batches, config)
    assert steps == once
    return steps


@given(st.integers(0, 2**32), st.integers(2, 4))
@STEPS
def test_any_events_in_any_batches(seed: int, count: int) -> None:
    draw = Random(seed)
    events = event_set(seed, (16, 60))
    draw.shuffle(events)
    cuts = sorted(draw.sample(range(len(events)), count - 1))
    batches = [events[lo:hi] for lo, hi in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    same(batches)


A, B = interaction("a", reply="good"), interaction("b", reply="bad")
VOTE = feedback("v", "a", "vote", {"among": ["a", "b"], "winner": "a"}, user_id="u")
UP = feedback("up", "a", "thumb", 1, user_id="u")
DOWN = feedback("down", "a", "thumb", -1, user_id="u", at_s=200)
ELSEWHERE = interaction("a", prompt="Another?", reply="moved", at_s=-5)
"""Another event under the id of A, and earlier: it is the one that stands, in another prompt."""

TWO_PROMPTS: list[list[Event]] = [
    [
        interaction("x1", prompt="P1", session_id="s1"),
        interaction("x2", prompt="P2", session_id="s1"),
        feedback("s", None, "outcome", {"metric": "m", "value": 1}, session_id="s1"),
    ]
]
MOVES = {
    name: interaction(name, prompt=prompt, reply="early", at_s=-5, session_id="s9")
    for name, prompt in (("x1", "P1"), ("x2", "P2"))
}
SCENES: dict[str, list[list[Event]]] = {
    "feedback first": [[UP], [A]],
    "a vote that waits for one reply, then for the other": [[VOTE], [B], [A]],
    "late feedback": [[A, B], [VOTE]],
    "the newest of two signals": [[A, UP], [DOWN]],
    "a signal older than the one that counts": [[A, DOWN], [UP]],
    "a retraction, and what it takes back": [
        [A],
        [feedback("r", "a", "thumb", 1, user_id="u", retracts="up")],
        [UP],
    ],
    "copies": [[A, UP], [A, A], [UP]],
    "an earlier event under the same id moves to another prompt": [[A, B, VOTE, UP], [ELSEWHERE]],
    "and comes back beside what waits": [[VOTE, ELSEWHERE], [B], [interaction("a", reply="x", at_s=-9)]],
    "a session that is known, then not": [
        [feedback("s", None, "outcome", {"metric": "m", "value": 1}, session_id="s1")],
        [interaction("c", session_id="s1")],
        [interaction("c", prompt="Other?", at_s=-1)],
    ],
    "nothing new but a copy of a waiting signal": [[UP], [UP]],
    "a session of two prompts, one of which leaves it": [*TWO_PROMPTS, [MOVES["x1"]]],
    "and the other one": [*TWO_PROMPTS, [MOVES["x2"]]],
}


@pytest.mark.parametrize("name", SCENES)
def test_scenes(name: str) -> None:
    same(SCENES[name], TRAIN)


def test_what_was_said_before_is_kept_as_evidence(tmp_path: Path) -> None:
    (row,) = in_steps(tmp_path, [[A, UP], [DOWN]], TRAIN)["rows"]
    assert row["label"] is False and row["evidence"] == ["a", "down", "up"]
    found = {fate["event_id"]: fate for fate in fates.read(Layout(tmp_path), event_ids=["up"]).to_pylist()}
    assert (found["up"]["fate"], found["up"]["reason"]) == ("no_preference", "superseded")


LONG = "Please explain to me in simple words how the tides of the sea come about, and why twice a day"


def test_near_duplicate_prompts_come_and_go() -> None:
    def asked(name: str, prompt: str) -> list[Event]:
        return [interaction(name, prompt=prompt), feedback(f"f-{name}", name, "thumb", 1, user_id="u")]

    near = [asked(str(n), f"{LONG}{'!?.,'[n]} now"[: len(LONG) + n]) for n in range(4)]
    seen = same(near, TRAIN)
    assert len(seen["rows"]) == 1 and seen["ledger"].reasons["no_preference/near_duplicate"] == 6
    taken_back = [feedback(f"r{n}", str(n), "thumb", 1, user_id="u", retracts=f"f-{n}") for n in range(4)]
    for signal in taken_back:  # whichever of them stands, another takes its place when it goes
        seen = same([*near, [signal]], TRAIN)
        assert len(seen["rows"]) == 1


def test_many_small_builds_leave_few_segments(tmp_path: Path) -> None:
    batches: list[list[Event]] = [
        [interaction(f"i{n}", prompt=f"prompt {n}"), feedback(f"f{n}", f"i{n - n % 2}", "thumb", 1)]
        for n in range(22)
    ]
    steps = in_steps(tmp_path / "steps", batches, SMALL)
    assert steps == at_once(tmp_path / "once", batches, SMALL)
    state = store.read_state(Layout(tmp_path / "steps"))
    assert state is not None and 1 < len(state.segments) < 14 < len(batches)
    on_disk = {path.name for path in (tmp_path / "steps" / "groups").glob("segment-*")}
    assert on_disk >= set(state.segments)


def test_the_cost_follows_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[int] = []
    decide = build_work.decide

    def counted(grouped: Any, config: Any) -> Any:
        decided.append(grouped.num_rows)
        return decide(grouped, config)

    put(tmp_path, [interaction(f"i{n}", prompt=f"prompt {n}") for n in range(500)], 0)
    build(workspace=tmp_path, config=TRAIN)
    monkeypatch.setattr(build_work, "decide", counted)
    put(tmp_path, [feedback("f", "i7", "thumb", 1), interaction("new", prompt="prompt 8")], 1)
    build(workspace=tmp_path, config=TRAIN)
    assert sum(decided) == 4  # two prompts: two replies of the one, a reply and its thumb of the other


@pytest.mark.parametrize(
    "name", ["events.arrow", "index.bin", "rows.parquet", "dropped.bin", "manifest.json"]
)
def test_a_damaged_segment_is_noticed_and_everything_decided_again(tmp_path: Path, name: str) -> None:
    batches: list[list[Event]] = [[A, B], [VOTE]]
    once = at_once(tmp_path / "once", batches, TRAIN)
    put(tmp_path / "w", batches[0], 0)
    build(workspace=tmp_path / "w", config=TRAIN)
    (path,) = (tmp_path / "w" / "groups").glob(f"segment-*/{name}")
    path.write_bytes(path.read_bytes()[:-1])
    put(tmp_path / "w", batches[1], 1)
    build(workspace=tmp_path / "w", config=TRAIN)
    assert made(tmp_path / "w") == once


@pytest.mark.parametrize("place", [0.05, 0.3, 0.5, 0.7, 0.95])
@pytest.mark.parametrize(
    "name", ["events.arrow", "index.bin", "rows.parquet", "dropped.bin", "manifest.json"]
)
def test_one_flipped_bit_is_noticed_wherever_it_is(built_once: Path, name: str, place: float) -> None:
    layout = Layout(built_once)
    state = store.read_state(layout)
    assert state is not None
    store.open_store(layout, state)
    (path,) = (built_once / "groups").glob(f"segment-*/{name}")
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
    with pytest.raises(SegmentError):
        store.open_store(layout, state)
    with pytest.raises(PipelineError, match="damaged"):
        fates.read(layout)


def test_a_flipped_bit_in_a_reply_never_reaches_a_dataset(tmp_path: Path) -> None:
    batches: list[list[Event]] = [[A, B], [VOTE]]
    once = at_once(tmp_path / "once", batches, TRAIN)
    put(tmp_path / "w", batches[0], 0)
    build(workspace=tmp_path / "w", config=TRAIN)
    (path,) = (tmp_path / "w" / "groups").glob("segment-*/events.arrow")
    content = path.read_bytes()
    assert b'"good"' in content
    path.write_bytes(content.replace(b'"good"', b'"gold"'))
    put(tmp_path / "w", batches[1], 1)
    build(workspace=tmp_path / "w", config=TRAIN)
    assert made(tmp_path / "w") == once


def test_texts_that_a_damaged_segment_puts_outside_of_it_are_not_followed(built_once: Path) -> None:
    (path,) = (built_once / "groups").glob("segment-*/events.arrow")
    content = bytearray(path.read_bytes())
    bodies = pa.ipc.open_file(pa.BufferReader(bytes(content))).get_batch(0)["body"]
    offsets = bodies.buffers()[1].to_pybytes()[: 4 * len(bodies) + 4]
    assert content.count(offsets) == 1
    content[content.index(offsets) + 7] ^= 64  # a thousand million bytes further
    path.write_bytes(content)
    segment = open_segment(path.parent, verified=False)
    with pytest.raises(SegmentError, match=r"changed[.]\nGot: events[.]arrow, column body"):
        segment.events(np.arange(2))


def test_compaction_is_nothing_new(tmp_path: Path) -> None:
    in_steps(tmp_path, [[A], [B], [UP]], TRAIN)
    before = made(tmp_path)
    state = store.read_state(Layout(tmp_path))
    events_table.open_table(Layout(tmp_path)).optimize.compact()
    assert build(workspace=tmp_path, config=TRAIN).reused
    after = store.read_state(Layout(tmp_path))
    assert state is not None and after is not None and after.segments == state.segments
    put(tmp_path, [VOTE], 3)
    build(workspace=tmp_path, config=TRAIN)
    segments = store.read_state(Layout(tmp_path))
    assert segments is not None and segments.segments[:-1] == state.segments
    assert made(tmp_path)["ledger"].received == before["ledger"].received + 1


def test_a_pipeline_gives_the_same(tmp_path: Path) -> None:
    batches = [event_set(8, (60, 200))]
    piped = BuildConfig(in_memory_rows=0, rows_per_shard=40)
    assert at_once(tmp_path / "pipeline", batches, piped) == at_once(tmp_path / "memory", batches, SMALL)


def test_the_ledger_names_the_rows_that_do_not_balance(tmp_path: Path) -> None:
    put(tmp_path, [A, UP], 0)
    build(workspace=tmp_path, config=TRAIN)
    put(tmp_path, [VOTE], 1)
    ledger = balance(tmp_path)
    assert ledger.balanced and ledger.reasons == {"waiting/not_built": 1}
    assert balance(tmp_path, since=NOON + timedelta(hours=1)).fates == {"waiting": 1}
    assert balance(tmp_path, until=NOON + timedelta(hours=1)).fates == {"ready": 2}
    # The same rows again, as a faulty copy of a file would bring them.
    put(tmp_path, [A], 0)
    build(workspace=tmp_path, config=TRAIN)
    doubled = balance(tmp_path)
    assert not doubled.balanced and doubled.doubled and doubled.examples[0].startswith("made:0 @0")


def test_an_own_rule_that_was_edited_decides_everything_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = tmp_path / "rules" / "my_rule.py"
    rule.parent.mkdir()
    rule.write_text("from feedback.rules import unpaired as rule\n")
    monkeypatch.syspath_prepend(str(rule.parent))
    before = provenance.code_version(["vote", "my_rule:rule"])
    rule.write_text("from feedback.rules import vote as rule\n")
    after = provenance.code_version(["vote", "my_rule:rule"])
    assert before != after and provenance.code_version(["vote"]) == provenance.code_version()
