"""What the conversions of other formats mean; that they obey the contract is tested with all sources."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from feedback.preferences import PreferConfig
from feedback.sources import llmfao, load, oasst
from feedback.splits import SplitConfig
from feedback.validation import Limits, Rejected, parse
from tests.unit.feedback.made import NOON, run, table

SHARED = Path(os.environ.get("PALATE_SHARED_DATA") or Path(__file__).parents[4] / "shared" / "data")


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} is not here; set PALATE_SHARED_DATA")
    return SHARED / name


def events_of(source, path):
    module = load(source)
    config = module.Config()
    partitions = module.partitions(path, config)
    records = [r for p in partitions for r in module.read(p, 0, p.end, config)]
    return [parse(r.raw, now=NOON, limits=Limits()) for r in records], partitions


def message(name, role, text, *replies, **fields):
    return {"message_id": name, "role": role, "text": text, "replies": list(replies), **fields}


TREE = {
    "message_tree_id": "t",
    "prompt": message(
        "p",
        "prompter",
        "Why?",
        message(
            "a",
            "assistant",
            "So.",
            message("q", "prompter", "And?", message("d", "assistant", "Yes.")),
            rank=1,
        ),
        message("b", "assistant", "Because.", rank=0, emojis={"+1": 2, "-1": 1, "_skip_reply": 3}),
        message("s", "assistant", "Beep.", message("t", "prompter", "?"), rank=2, synthetic=True),
        message("x", "assistant", "Gone.", deleted=True),
    ),
}


def test_a_tree_becomes_replies_rankings_and_thumbs(tmp_path):
    (tmp_path / "trees.jsonl").write_text(json.dumps(TREE) + "\n")
    events, (partition,) = events_of("oasst", tmp_path)
    replies = {e.interaction_id: e for e in events if e.type == "interaction"}
    assert set(replies) == {"oasst-a", "oasst-b", "oasst-d"}
    assert [m.content for m in replies["oasst-d"].prompt] == ["Why?", "So.", "And?"]
    assert [m.role for m in replies["oasst-d"].prompt] == ["user", "assistant", "user"]
    (vote,) = [e for e in events if e.type == "feedback" and e.kind == "vote"]
    assert vote.value == {"ranking": ["oasst-b", "oasst-a"]}
    thumbs = Counter(
        (e.interaction_id, e.value) for e in events if e.type == "feedback" and e.kind == "thumb"
    )
    assert thumbs == {("oasst-b", 1): 2, ("oasst-b", -1): 1}
    assert {e.actor for e in events if e.type == "feedback"} == {"rater"}
    assert partition.dropped == {"synthetic": 1, "deleted": 1, "below_dropped": 1}


def test_lines_that_are_no_tree_come_out_unchanged(tmp_path):
    tied = message("p", "prompter", "?", *[message(n, "assistant", n, rank=0) for n in "ab"])
    lines = [
        b"not json",
        b'{"message_tree_id": "t"}',
        b'{"message_tree_id": "t", "prompt": {"role": "system", "message_id": "m", "text": ""}}',
        json.dumps({"message_tree_id": "t", "prompt": message("p", "prompter", "?", 5)}).encode(),
        json.dumps(
            {"message_tree_id": "t", "prompt": message("p", "assistant", "?", emojis={"+1": 10**9})}
        ).encode(),
    ]
    good = json.dumps({"message_tree_id": "t", "prompt": tied}).encode()
    (tmp_path / "trees.jsonl").write_bytes(b"\n".join([*lines, good]))
    events, (partition,) = events_of("oasst", tmp_path / "trees.jsonl")
    assert [e.raw for e in events if isinstance(e, Rejected)] == lines
    assert [e.interaction_id for e in events if not isinstance(e, Rejected)] == ["oasst-a", "oasst-b"]
    assert partition.dropped == {"tied_ranking": 1}


def test_the_real_trees_come_through_whole():
    events, (partition,) = events_of("oasst", shared("oasst_en_100"))
    assert not any(isinstance(e, Rejected) for e in events)
    assert sum(partition.dropped.values()) == 17
    assert Counter(e.type for e in events)["interaction"] == 493
    rows, fates = run(table(events), PreferConfig())
    assert len(fates) == len(events) == partition.end
    assert Counter(f["fate"] for f in fates)["dead_letter"] == 0
    by_split = Counter(row["split"] for row in rows if row["rejected"] is not None)
    assert min(by_split["train"], by_split["evaluation"], by_split["test"]) > 30


PAIR = {
    "id": 0,
    "prompt": 8,
    "text": "A haiku.",
    "model_x": 97,
    "result_x": "Five",
    "model_y": 98,
    "result_y": "Seven",
}
CSV = "id,prompt,model_x,model_y,worker,winner,left,right\n0,8,97,98,58,{},Ada,Bob\n"


def crowd(tmp_path, pairs: str, votes: str):
    (tmp_path / "pairs-crowd.jsonl").write_text(pairs)
    (tmp_path / "crowd-comparisons.csv").write_text(votes)
    return tmp_path


@pytest.mark.parametrize(
    ("side", "winner"), [("left", "llmfao-8-97"), ("right", "llmfao-8-98"), ("tie", None)]
)
def test_a_row_becomes_a_vote(tmp_path, side, winner):
    events, _ = events_of("llmfao", crowd(tmp_path, json.dumps(PAIR), CSV.format(side)))
    x, y, vote = events
    assert (x.completion.content, x.model.name, y.completion.content) == ("Five", "Ada", "Seven")
    assert vote.value == {"among": ["llmfao-8-97", "llmfao-8-98"], "winner": winner}
    assert (vote.user_id, vote.actor) == ("w58", "rater")
    assert vote.event_time > x.event_time


def test_rows_that_are_no_vote_come_out_unchanged(tmp_path):
    votes = CSV.format("left") + "0,8,97,98,58,neither,Ada,Bob\n0,8\n"
    pairs = json.dumps(PAIR) + "\n" + json.dumps(PAIR) + '\n{"id": 1}\nnot json\n'
    events, _ = events_of("llmfao", crowd(tmp_path, pairs, votes))
    assert [e.raw for e in events if isinstance(e, Rejected)] == [
        b'{"id": 1}',
        b"not json",
        b"0,8,97,98,58,neither,Ada,Bob",
        b"0,8",
    ]
    assert len(events) == 7
    headless, _ = events_of("llmfao", crowd(tmp_path, "", "no header\n" + CSV.format("tie").splitlines()[1]))
    assert [isinstance(e, Rejected) for e in headless] == [True, False]


def test_the_real_votes_come_through_whole():
    events, _ = events_of("llmfao", shared("llmfao"))
    assert Counter(e.type for e in events) == {"interaction": 750, "feedback": 6992}
    assert len({e.user_id for e in events if e.type == "feedback"}) == 89
    rows, fates = run(table(events), PreferConfig(split=SplitConfig(test_prompts=0, evaluation_prompts=0)))
    assert len(fates) == len(events)
    # Without held-out prompts every vote counts, but for those on two replies of the same text.
    assert {f["reason"] for f in fates if f["kind"] == "feedback"} <= {None, "same_text"}
    assert len(rows) > 6900


def test_sources_are_what_they_say():
    assert load("oasst") is oasst
    assert load("llmfao") is llmfao
