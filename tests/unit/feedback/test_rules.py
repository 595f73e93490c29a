from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from feedback.preferences import PreferConfig
from feedback.rules import RuleError, load, names, next_message
from tests.unit.feedback.made import EVERYTHING_TRAINS, fate_of, feedback, interaction, run, table


def rows_of(events, *rules, **options):
    config = PreferConfig(rules=rules, options=options, split=EVERYTHING_TRAINS)
    rows, fates = run(table(events), config)
    assert len(fates) == len(events)
    return sorted(rows, key=lambda row: (row["chosen"], row["rejected"] or "")), fates


def short(rows):
    return [(row["chosen"], row["rejected"], row["margin"], row["weight"]) for row in rows]


A, B, C = interaction("a"), interaction("b", at_s=1), interaction("c", at_s=2)


def test_vote_has_a_winner():
    vote = feedback("v", "a", "vote", {"among": ["a", "b"], "winner": "b"}, user_id="u")
    (row,), fates = rows_of([A, B, vote], "vote")
    assert short([row]) == [("reply b", "reply a", 1.0, 1.0)]
    assert row["evidence"] == ["a", "b", "v"]
    assert (row["rule"], row["user_id"], row["label"], row["split"]) == ("vote", "u", None, "train")
    assert row["prompt"] == [{"role": "user", "content": "Why?"}]
    assert row["event_time"] == vote.event_time
    assert all(fate["preference_ids"] == [row["preference_id"]] for fate in fates)


def test_winner_among_three_shares_its_weight():
    vote = feedback("v", "a", "vote", {"among": ["a", "b", "c"], "winner": "b"})
    rows, _ = rows_of([A, B, C, vote], "vote", vote={"weight": 3})
    assert short(rows) == [("reply b", "reply a", 1.0, 1.5), ("reply b", "reply c", 1.0, 1.5)]


def test_ranking_of_three_makes_three_pairs():
    vote = feedback("v", "a", "vote", {"ranking": ["c", "a", "b"]})
    rows, _ = rows_of([A, B, C, vote], "vote")
    # One rank apart: half the margin. Each of the three pairs weighs 1/(3-1).
    assert short(rows) == [
        ("reply a", "reply b", 0.5, 0.5),
        ("reply c", "reply a", 0.5, 0.5),
        ("reply c", "reply b", 1.0, 0.5),
    ]


def test_tie_has_margin_zero_and_an_order_that_says_nothing():
    rows, _ = rows_of([A, B, feedback("v", "b", "vote", {"among": ["b", "a"], "winner": None})], "vote")
    assert short(rows) == [("reply a", "reply b", 0.0, 1.0)]
    none, fates = rows_of(
        [A, B, feedback("v", "b", "vote", {"among": ["b", "a"], "winner": None})],
        "vote",
        vote={"ties": False},
    )
    assert none == []
    assert fate_of(fates, "v") == ("no_preference", "tie")


def test_replies_to_different_prompts_are_not_compared():
    other_turn = interaction("d", prompt="why?")  # same prompt key, not the same prompt
    vote = feedback("v", "a", "vote", {"among": ["a", "d"], "winner": "a"})
    rows, fates = rows_of([A, other_turn, vote], "vote")
    assert rows == []
    assert fate_of(fates, "v") == ("no_preference", "prompt_mismatch")
    elsewhere = interaction("d", prompt="Where?")
    _, fates = rows_of([A, elsewhere, vote], "vote")
    assert fate_of(fates, "v") == ("no_preference", "prompt_mismatch")


def test_thumbs_compare_liked_with_disliked_of_one_person():
    thumbs = [
        feedback("t1", "a", "thumb", 1, user_id="u"),
        feedback("t2", "b", "thumb", -1, user_id="u"),
        feedback("t3", "c", "thumb", -1, user_id="u"),
        feedback("t4", "c", "thumb", 1, user_id="w"),
    ]
    rows, fates = rows_of([A, B, C, *thumbs], "thumbs", thumbs={"weight": 1})
    # One liked against two disliked weighs as one pair, so each counts a half.
    assert short(rows) == [("reply a", "reply b", 1.0, 0.5), ("reply a", "reply c", 1.0, 0.5)]
    assert rows[0]["evidence"] == ["a", "b", "t1", "t2"]
    assert fate_of(fates, "t4") == ("no_preference", "no_counterpart")


def test_thumbs_without_ids_are_one_crowd():
    thumbs = [feedback(f"u{n}", "a", "thumb", 1) for n in range(3)] + [feedback("u3", "a", "thumb", -1)]
    thumbs += [
        feedback("d0", "b", "thumb", -1),
        feedback("n0", "c", "thumb", 1),
        feedback("n1", "c", "thumb", -1),
    ]
    rows, fates = rows_of([A, B, C, *thumbs], "thumbs", thumbs={"weight": 1})
    # Mean thumbs 0.5 and -1: margin (0.5 + 1) / 2.
    assert short(rows) == [("reply a", "reply b", 0.75, 1.0)]
    assert fate_of(fates, "n0") == ("no_preference", "cancelled_out")


def test_many_thumbs_make_a_bounded_number_of_pairs():
    liked = [interaction(f"l{n}") for n in range(40)]
    disliked = [interaction(f"d{n}") for n in range(30)]
    thumbs = [feedback(f"t{r.interaction_id}", r.interaction_id, "thumb", 1) for r in liked]
    thumbs += [feedback(f"t{r.interaction_id}", r.interaction_id, "thumb", -1) for r in disliked]
    rows, fates = rows_of([*liked, *disliked, *thumbs], "thumbs", thumbs={"weight": 1, "max_opponents": 2})
    assert len(rows) == 80
    assert sum(row["weight"] for row in rows) == pytest.approx(30)
    assert {fate["fate"] for fate in fates} == {"ready"}


def test_edit_is_better_than_what_it_corrects():
    original = interaction("a", user_id="u", propensity=0.25)
    edits = [
        feedback("e1", "a", "edit", {"text": "better"}, user_id="u"),
        feedback("e2", "a", "edit", {"text": "reply a"}, user_id="w"),
        feedback("e3", "a", "edit", {"text": " "}, user_id="x"),
    ]
    (row,), fates = rows_of([original, *edits], "edit")
    assert short([row]) == [("better", "reply a", 1.0, 1.0)]
    assert row["propensity"] == 0.25
    assert fate_of(fates, "e2") == ("no_preference", "same_text")
    assert fate_of(fates, "e3") == ("no_preference", "empty_text")


def test_retry_prefers_the_reply_the_user_stayed_with():
    replies = [interaction(name, at_s=n, user_id="u") for n, name in enumerate("abcd")]
    events = [
        feedback("r1", "a", "retry", user_id="u"),
        feedback("r2", "b", "retry", user_id="u"),
        feedback("t", "c", "thumb", -1, user_id="u"),
        feedback("r3", "d", "retry", user_id="u"),
        feedback("r4", "a", "retry", user_id="somebody else"),
    ]
    rows, fates = rows_of([*replies[:3], *events[:2]], "retry", retry={"weight": 1, "margin": 1})
    assert short(rows) == [("reply c", "reply a", 1.0, 1.0), ("reply c", "reply b", 1.0, 1.0)]
    rows, fates = rows_of([*replies, *events[:3]], "retry", retry={"weight": 1, "margin": 1})
    assert short(rows) == [("reply d", "reply a", 1.0, 1.0), ("reply d", "reply b", 1.0, 1.0)]
    rows, fates = rows_of([*replies, *events], "retry")
    assert rows == []
    assert fate_of(fates, "r3") == ("no_preference", "no_later_reply")
    assert fate_of(fates, "r4") == ("no_preference", "not_the_asker")


def test_retry_without_user_needs_the_session():
    replies = [interaction(name, at_s=n, session_id="s") for n, name in enumerate("ab")]
    rows, _ = rows_of([*replies, feedback("r", "a", "retry")], "retry")
    assert short(rows) == [("reply b", "reply a", 0.5, 0.4)]
    rows, fates = rows_of([A, B, feedback("r", "a", "retry")], "retry")
    assert rows == []
    assert fate_of(fates, "r") == ("no_preference", "not_the_asker")


def test_ratings_compare_on_their_own_scales():
    ratings = [
        feedback("r1", "a", "rating", {"value": 4, "lo": 1, "hi": 5}, user_id="u"),  # 0.75
        feedback("r2", "b", "rating", {"value": 50, "lo": 0, "hi": 100}, user_id="u"),  # 0.5
        feedback("r3", "c", "rating", {"value": 40, "lo": 0, "hi": 100}, user_id="u"),  # 0.4
    ]
    rows, _ = rows_of([A, B, C, *ratings], "rating", rating={"weight": 1})
    assert short(rows) == [
        ("reply a", "reply b", 0.25, 0.5),
        ("reply a", "reply c", pytest.approx(0.35), 0.5),
    ]
    rows, fates = rows_of([A, B, C, *ratings], "rating", rating={"min_difference": 0.3})
    assert [row["rejected"] for row in rows] == ["reply c"]
    assert fate_of(fates, "r2") == ("no_preference", "below_margin")


def test_ratings_of_unknown_people_are_not_compared():
    ratings = [
        feedback(f"r{n}", n, "rating", {"value": v, "lo": 0, "hi": 1}) for n, v in (("a", 0), ("b", 1))
    ]
    rows, fates = rows_of([A, B, *ratings], "rating")
    assert rows == []
    assert fate_of(fates, "ra") == ("no_preference", "anonymous")


def test_unpaired_rows_have_a_label_and_the_weight_of_their_kind():
    signals = [
        feedback("t", "a", "thumb", -1, user_id="u"),
        feedback("c", "b", "copy", user_id="u"),
        feedback("j", "c", "reject", user_id="u"),
    ]
    rows, _ = rows_of([A, B, C, *signals], "unpaired", "copy", copy={"weight": 0.25})
    assert [(r["chosen"], r["rejected"], r["label"], r["weight"], r["rule"]) for r in rows] == [
        ("reply a", None, False, 1.0, "unpaired"),
        ("reply b", None, True, 0.25, "copy"),
        ("reply c", None, False, 0.8, "unpaired"),
    ]


@pytest.mark.parametrize(
    ("text", "replied", "value"),
    [
        ("Thanks, that worked!", "Restart it.", 1),
        ("Ah, perfect", "Restart it.", 1),
        ("Danke dir", "Starte neu.", 1),
        ("No, I meant the other one", "Restart it.", -1),
        ("no problem, and for dessert?", "I cannot cook meat.", 0),
        ("No.", "Do you eat meat?", 0),  # an answer, not a complaint
        ("That doesn’t make any sense", "Blue is a number.", -1),
        ("what are you talking about?", "Blue is a number.", -1),
        ("What is a good book on it?", "Restart it.", 0),
        ("How can I reset my router, please", "Do you like it?", -1),  # the same question again
        ("And how long does it take?", "Restart it.", 0),
        ("Это не то, что я спросил", "Restart it.", 0),  # not read: no word of it is known
        ("?", "Restart it.", 0),
    ],
)
def test_a_next_message_says_thanks_a_complaint_or_nothing(text, replied, value):
    assert next_message.reads(text, "How can I reset my router?", replied, 0.6) == value


def test_next_messages_make_rows_where_they_say_something():
    signals = [
        feedback("n", "a", "next_message", {"text": "Wrong!"}, user_id="u"),
        feedback("m", "b", "next_message", {"text": "And then?"}, user_id="u"),
    ]
    (row,), fates = rows_of([A, B, *signals], "next_message")
    assert (row["chosen"], row["rejected"], row["label"], row["rule"]) == (
        "reply a",
        None,
        False,
        "next_message",
    )
    assert fate_of(fates, "m") == ("no_preference", "says_nothing")


def test_complaints_of_real_people_are_found(shared_data):
    file = shared_data / "selffeeding_feedback" / "selffeeding_annotated_100.jsonl"
    talks = [json.loads(line) for line in file.read_text().splitlines()]
    turns = [talk["turns"] for talk in talks]
    # Each talk ends with what made the annotators see a complaint; about half of them say it in so many words.
    last = [next_message.reads(t[-1]["utterance"], t[-2]["utterance"], t[-2]["response"], 0.6) for t in turns]
    assert last.count(-1) >= 45
    assert last.count(1) <= 2


def test_unpaired_thumbs_of_unknown_people_are_taken_together():
    thumbs = [feedback(f"t{n}", "a", "thumb", value) for n, value in enumerate([1, 1, 1, -1])]
    thumbs += [feedback("x", "b", "thumb", 1), feedback("y", "b", "thumb", -1)]
    (row,), fates = rows_of([A, B, *thumbs], "unpaired")
    # Three against one: label True, clear to (3 - 1) / 4.
    assert (row["label"], row["weight"], row["evidence"]) == (True, 0.5, ["a", "t0", "t1", "t2", "t3"])
    assert fate_of(fates, "x") == ("no_preference", "cancelled_out")


def test_silence_is_no_dislike():
    rows, fates = rows_of([A, B], *PreferConfig().rules)
    assert rows == []
    assert {fate_of(fates, name, "interaction") for name in "ab"} == {("no_preference", "no_feedback")}


def test_kinds_without_a_rule_say_so():
    rows, fates = rows_of([A, feedback("c", "a", "comment", {"text": "bad"})], *PreferConfig().rules)
    assert rows == []
    assert fate_of(fates, "c") == ("no_preference", "no_rule")
    assert fate_of(fates, "a", "interaction") == ("no_preference", "feedback_made_no_row")


def test_rules_are_found_by_name():
    assert names() == [
        "copy", "edit", "next_message", "rating", "retry", "share", "thumbs", "unpaired", "vote",
    ]  # fmt: skip
    with pytest.raises(RuleError, match="copy, edit, next_message, rating, retry"):
        load("wink")
    assert load("feedback.rules:vote") is load("vote")
    with pytest.raises(RuleError, match="could not be imported"):
        load("no.such.module:rule")


@pytest.mark.parametrize(
    "config",
    [
        {"rules": ["wink"]},
        {"rules": ["vote", "vote"]},
        {"rules": ["vote"], "options": {"edit": {}}},
        {"options": {"vote": {"wieght": 1}}},
        {"options": {"vote": {"weight": 0}}},
    ],
)
def test_wrong_configuration_is_refused_at_once(config):
    with pytest.raises((ValidationError, RuleError)):
        PreferConfig.model_validate(config)
