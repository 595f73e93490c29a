"""What holds for any set of events, and the cases that decide which signals count."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.events import Interaction, event_id, prompt_key
from feedback.preferences import REASONS, PreferConfig, dedupe, join, prefer
from feedback.splits import SplitConfig, prompt_split, user_split
from feedback.tables import FATES, PREFERENCES
from feedback.validation import Rejected
from tests.unit.feedback.made import (
    EVERYTHING_TRAINS,
    event_set,
    event_sets,
    fate_of,
    feedback,
    interaction,
    of_kind,
    run,
    table,
)

MANY = settings(derandomize=True, deadline=None, max_examples=60, database=None)
THIRDS = SplitConfig(test_users=0.25, evaluation_users=0.25, test_prompts=0.25, evaluation_prompts=0.25)
HELD_OUT = PreferConfig(split=THIRDS)
ALL_TRAIN = PreferConfig(split=EVERYTHING_TRAINS)
CONFIGS = st.sampled_from([HELD_OUT, ALL_TRAIN])


@given(event_sets(), CONFIGS, st.integers(0, 99).map(random.Random))
@MANY
def test_order_does_not_matter(events, config, order):
    shuffled = list(events)
    order.shuffle(shuffled)
    assert run(table(shuffled), config) == run(table(events), config)


@given(event_sets(), CONFIGS, st.integers(0, 99).map(random.Random))
@MANY
def test_copies_do_not_matter(events, config, order):
    again = events + [event for event in events if order.random() < 0.5]
    rows, fates = run(table(again), config)
    once_rows, once_fates = run(table(events), config)
    assert rows == once_rows
    assert without_copies(fates) == without_copies(once_fates)
    assert len(fates) == len(again)


def without_copies(fates):
    return [fate for fate in fates if fate["fate"] != "duplicate"]


@given(event_sets(), CONFIGS, st.integers(1, 10))
@MANY
def test_pieces_do_not_matter(events, config, count):
    pieces = [table(events[n::count], first_offset=100 * n) for n in range(count)]
    assert run(pa.concat_tables(pieces), config) == run(table(events), config)


@given(event_sets(), CONFIGS, st.integers(0, 99).map(random.Random))
@MANY
def test_prompts_can_be_worked_on_apart_and_in_any_order(events, config, order):
    kept, _ = dedupe(table(events))
    joined, _ = join(of_kind(kept, "interaction"), of_kind(kept, "feedback"))
    rows, fates = prefer(joined, config)
    places = order.sample(range(joined.num_rows), joined.num_rows)
    joined = joined.take(pa.array(places, pa.int64()))
    apart = [
        prefer(joined.filter(pc.equal(joined.column("prompt_key"), key)), config)
        for key in joined.column("prompt_key").unique().to_pylist()
    ]
    if not apart:
        return
    assert pa.concat_tables([r for r, _ in apart]).sort_by("preference_id").to_pylist() == rows.to_pylist()
    by_str = lambda t: sorted(t.to_pylist(), key=str)  # noqa: E731
    assert by_str(pa.concat_tables([f for _, f in apart])) == by_str(fates)


@given(event_sets(), CONFIGS)
@MANY
def test_every_event_has_exactly_one_fate(events, config):
    _, fates = run(table(events), config)
    given_in = Counter((event.type, event_id(event)) for event in events)
    assert Counter((fate["kind"], fate["event_id"]) for fate in fates) == given_in
    for fate in fates:
        assert (fate["reason"] is None) == (fate["fate"] == "ready")
        assert (fate["preference_ids"] != []) == (fate["fate"] == "ready")
        assert fate["reason"] is None or fate["reason"] in {*REASONS, "same_event", "conflicting_duplicate"}


@given(event_sets(), CONFIGS)
@MANY
def test_fates_and_evidence_say_the_same(events, config):
    rows, fates = run(table(events), config)
    # What a newer signal replaced is evidence too, and still is in no row.
    older = {fate["event_id"] for fate in fates if fate["reason"] == "superseded"}
    from_rows = {
        (row["preference_id"], name) for row in rows for name in row["evidence"] if name not in older
    }
    from_fates = {(key, fate["event_id"]) for fate in fates for key in fate["preference_ids"]}
    assert from_rows == from_fates
    assert len({row["preference_id"] for row in rows}) == len(rows)


@given(event_sets())
@MANY
def test_no_user_and_no_prompt_is_in_train_and_held_out(events):
    kept, _ = dedupe(table(events))
    rows, _ = run(table(events), HELD_OUT)
    users = dict(zip(kept["event_id"].to_pylist(), kept["user_id"].to_pylist(), strict=True))
    seen_users, seen_prompts = defaultdict(set), defaultdict(set)
    for row in rows:
        assert row["prompt_key"] == prompt_key(row["prompt"])
        assert prompt_split(row["prompt_key"], THIRDS) == row["split"]
        seen_prompts[row["split"]].add(row["prompt_key"])
        for name in row["evidence"]:
            if users[name] is not None:
                assert user_split(users[name], THIRDS) == row["split"]
                seen_users[row["split"]].add(users[name])
    for held_out in ("evaluation", "test"):
        assert not seen_users["train"] & seen_users[held_out]
        assert not seen_prompts["train"] & seen_prompts[held_out]


@given(event_sets(), CONFIGS)
@MANY
def test_consent_is_kept(events, config):
    kept, _ = dedupe(table(events))
    joined = {row["event_id"]: row["body"] for row in of_kind(kept, "interaction").to_pylist()}
    rows, _ = run(table(events), config)
    for row in rows:
        use = "train" if row["split"] == "train" else "evaluate"
        for name in row["evidence"]:
            if name in joined:
                assert use in Interaction.model_validate_json(joined[name]).uses


@given(event_sets(), st.sampled_from([1, -1]))
@MANY
def test_late_feedback_changes_only_rows_of_its_prompt(events, value):
    late = feedback("late", "i1", "thumb", value, at_s=5, user_id="u1")
    before, _ = run(table(events), ALL_TRAIN)
    after, _ = run(table([*events, late]), ALL_TRAIN)
    changed = {row["preference_id"] for row in before} ^ {row["preference_id"] for row in after}
    keys = {prompt_key(e.prompt) for e in events if isinstance(e, Interaction) and e.interaction_id == "i1"}
    for row in before + after:
        if row["preference_id"] in changed:
            assert row["prompt_key"] in keys


def test_the_random_sets_reach_every_part():
    # A property that is never exercised proves nothing.
    seen: Counter[str] = Counter()

    for seed in range(20):
        for config in (HELD_OUT, ALL_TRAIN):
            rows, fates = run(table(event_set(seed, (16, 60))), config)
            seen.update(row[name] for row in rows for name in ("split", "rule"))
            seen.update(fate[name] for fate in fates for name in ("fate", "reason"))
    expected = {"train", "evaluation", "test", "ready", "waiting", "dead_letter", "duplicate", "withheld"}
    expected |= {*PreferConfig().rules, "superseded", "retracted", "retraction", "orphan"}
    expected |= {"split_conflict", "consent_train", "prompt_mismatch", "actor_excluded", "session_level"}
    assert expected - set(seen) == set()


A, B = interaction("a"), interaction("b", at_s=1)


def test_schemas_hold_also_without_events():
    empty = table([])
    kept, lost = dedupe(empty)
    joined, left = join(of_kind(kept, "interaction"), of_kind(kept, "feedback"))
    rows, fates = prefer(joined, PreferConfig())
    assert rows.schema.equals(PREFERENCES)
    assert all(t.schema.equals(FATES) and t.num_rows == 0 for t in (lost, left, fates))


def test_an_id_with_two_bodies_keeps_the_earliest():
    late = interaction("a", reply="late", at_s=10)
    early = interaction("a", reply="early", at_s=5)
    same_id_feedback = feedback("a", "a", "copy")
    for events in ([late, early, late, same_id_feedback], [same_id_feedback, early, late, late]):
        kept, fates = dedupe(table(events))
        assert sorted(zip(kept["kind"].to_pylist(), kept["event_id"].to_pylist(), strict=True)) == [
            ("feedback", "a"),
            ("interaction", "a"),
        ]
        assert '"early"' in of_kind(kept, "interaction")["body"][0].as_py()
        assert [(f["fate"], f["reason"]) for f in fates.to_pylist()] == [
            ("dead_letter", "conflicting_duplicate"),
            ("duplicate", "same_event"),
        ]


def test_dead_letters_keep_their_fate():
    bad = Rejected("not_json", "", b"{")
    kept, fates = dedupe(table([A, bad, bad]))
    assert kept.num_rows == 1
    assert [(f["kind"], f["fate"], f["reason"]) for f in fates.to_pylist()] == [
        ("dead_letter", "dead_letter", "not_json")
    ] * 2


def test_feedback_waits_for_its_interaction():
    vote = feedback("v", "a", "vote", {"among": ["a", "b"], "winner": "a"})
    thumb = feedback("t", "z", "thumb", 1)
    whole = feedback("o", None, "outcome", {"metric": "m", "value": 1}, session_id="s")
    rows, fates = run(table([A, vote, thumb, whole]), ALL_TRAIN)
    assert rows == []
    assert fate_of(fates, "v") == fate_of(fates, "t") == ("waiting", "orphan")
    assert fate_of(fates, "o") == ("waiting", "orphan_session")
    arrived = [A, B, vote, thumb, whole, interaction("z"), interaction("y", session_id="s")]
    rows, fates = run(table(arrived), ALL_TRAIN)
    assert fate_of(fates, "v")[0] == fate_of(fates, "t")[0] == "ready"
    assert fate_of(fates, "o") == ("no_preference", "session_level")


def test_metadata_that_looks_like_a_vote_is_no_vote():
    thumb = feedback("t", "a", "thumb", 1, metadata={"kind": "vote"})
    assert fate_of(run(table([A, thumb]), ALL_TRAIN)[1], "t")[0] == "ready"


def test_the_newest_of_one_person_counts():
    thumbs = [
        feedback("old", "a", "thumb", 1, at_s=1, user_id="u"),
        feedback("new", "a", "thumb", -1, user_id="u"),
    ]
    other = feedback("other", "a", "thumb", 1, user_id="w")
    rows, fates = run(table([A, *thumbs, other]), ALL_TRAIN)
    assert fate_of(fates, "old") == ("no_preference", "superseded")
    assert {(row["user_id"], row["label"]) for row in rows} == {("u", False), ("w", True)}


def test_votes_on_the_same_replies_supersede_in_any_form():
    first = feedback("old", "a", "vote", {"among": ["b", "a"], "winner": "a"}, at_s=1, user_id="u")
    second = feedback("new", "b", "vote", {"ranking": ["b", "a"]}, user_id="u")
    rows, fates = run(table([A, B, second, first]), ALL_TRAIN)
    assert [row["chosen"] for row in rows] == ["reply b"]
    assert fate_of(fates, "old") == ("no_preference", "superseded")


def test_a_retraction_undoes_and_can_be_undone():
    like = feedback("f", "a", "thumb", 1, user_id="u")
    undo = feedback("r", "a", "thumb", 1, user_id="u", retracts="f", at_s=1)  # a clock that is behind
    redo = feedback("rr", "a", "thumb", 1, user_id="u", retracts="r")
    rows, fates = run(table([A, like, undo]), ALL_TRAIN)
    assert rows == []
    assert fate_of(fates, "f") == ("no_preference", "retracted")
    assert fate_of(fates, "r") == ("no_preference", "retraction")
    rows, fates = run(table([A, like, undo, redo]), ALL_TRAIN)
    assert [row["label"] for row in rows] == [True]
    assert fate_of(fates, "r") == ("no_preference", "retracted")
    assert fate_of(fates, "rr") == ("no_preference", "retraction")


def test_only_the_same_person_can_retract():
    like = feedback("f", "a", "thumb", 1, user_id="u")
    stranger = feedback("r", "a", "thumb", 1, user_id="w", retracts="f")
    unknown = feedback("x", "a", "thumb", 1, user_id="u", retracts="nothing yet")
    loop = [feedback(n, "a", "thumb", 1, user_id="v", retracts=m) for n, m in (("l1", "l2"), ("l2", "l1"))]
    rows, fates = run(table([A, like, stranger, unknown, *loop]), ALL_TRAIN)
    assert [row["user_id"] for row in rows] == ["u"]
    assert fate_of(fates, "r") == ("no_preference", "retraction_by_another")
    assert fate_of(fates, "x") == ("waiting", "retracts_unknown")
    assert fate_of(fates, "l1") == fate_of(fates, "l2") == ("no_preference", "retraction_cycle")


def test_models_and_programs_are_no_people_unless_configured():
    judge = feedback("j", "a", "vote", {"among": ["a", "b"], "winner": "a"}, actor="judge")
    rows, fates = run(table([A, B, judge]), ALL_TRAIN)
    assert rows == []
    assert fate_of(fates, "j") == ("no_preference", "actor_excluded")
    with_judges = PreferConfig(actors=("judge",), split=EVERYTHING_TRAINS)
    assert len(run(table([A, B, judge]), with_judges)[0]) == 1


@pytest.mark.parametrize(
    ("uses", "reply", "signal"),
    [
        ([], ("withheld", "no_consent"), ("withheld", "consent_train")),
        (["evaluate"], ("withheld", "consent_train"), ("withheld", "consent_train")),
        (["train"], ("ready", None), ("ready", None)),
    ],
)
def test_what_is_withheld(uses, reply, signal):
    _, fates = run(table([interaction("a", uses=uses), feedback("t", "a", "thumb", 1)]), ALL_TRAIN)
    assert fate_of(fates, "a", "interaction") == reply
    assert fate_of(fates, "t") == signal


def test_one_reply_without_consent_withholds_the_pair():
    kept = interaction("b", uses=[])
    vote = feedback("v", "a", "vote", {"among": ["a", "b"], "winner": "a"})
    rows, fates = run(table([A, kept, vote]), ALL_TRAIN)
    assert rows == []
    assert fate_of(fates, "v") == ("withheld", "consent_train")


def test_an_asker_of_another_split_keeps_the_row_out():
    users = [f"u{n}" for n in range(200)]
    train = next(u for u in users if user_split(u, THIRDS) == "train")
    held = next(u for u in users if user_split(u, THIRDS) == "test")
    prompt = next(
        p for p in users if prompt_split(prompt_key([{"role": "user", "content": p}]), THIRDS) == "train"
    )
    vote = feedback("v", "a", "vote", {"among": ["a", "b"], "winner": "a"}, user_id=train)
    own = interaction("a", prompt=prompt, user_id=train)
    rows, _ = run(table([own, interaction("b", prompt=prompt, user_id=train), vote]), HELD_OUT)
    assert [row["split"] for row in rows] == ["train"]
    rows, fates = run(table([own, interaction("b", prompt=prompt, user_id=held), vote]), HELD_OUT)
    assert rows == []
    assert fate_of(fates, "v") == ("no_preference", "split_conflict")


def test_the_preference_id_is_the_content():
    thumb = feedback("t", "a", "thumb", 1)
    (one,), _ = run(table([A, thumb]), ALL_TRAIN)
    (heavier,), _ = run(
        table([A, thumb]), PreferConfig(split=EVERYTHING_TRAINS, options={"unpaired": {"thumb": 2}})
    )
    assert one["preference_id"] != heavier["preference_id"]
    assert {**one, "preference_id": "", "weight": 2.0} == {**heavier, "preference_id": ""}
    assert one["preference_id"] == "8b612b551dad8077571aa08d5d9a870e83681bc1ce532a2bfc1c56a4a10f117b"


def test_a_large_set_stays_quick_and_ordered():
    draw = random.Random(0)
    events = [interaction(f"i{n}", prompt=f"p{n // 3}", user_id=f"u{n % 50}") for n in range(3000)]
    events += [
        feedback(f"f{n}", f"i{n}", "thumb", draw.choice([1, -1]), user_id=f"u{n % 40}") for n in range(3000)
    ]
    rows, fates = run(table(events), HELD_OUT)
    assert len(fates) == 6000
    ids = [row["preference_id"] for row in rows]
    assert ids == sorted(ids)
    assert len(ids) > 500
