"""The simulated people: reproducible, honest, and not always right."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np

from palate.demo import shuffle_labels
from palate.simulation.prompts import all_prompts, shuffled
from palate.simulation.reactions import Clock, edited, react
from palate.simulation.text import notice
from palate.simulation.users import PopulationConfig, population

CONFIG = PopulationConfig(users=50)
PROMPT = "What can I cook with rice and eggs?"
COLD = "Fry the rice with eggs in a pan."
WARM = "Great question! Fry the rice with eggs in a pan, and enjoy."


def interaction(text: str, name: str) -> dict[str, object]:
    return {"interaction_id": name, "completion": {"role": "assistant", "content": text}}


def test_the_same_seed_gives_the_same_people_and_prompts() -> None:
    assert population(CONFIG, 3) == population(CONFIG, 3)
    assert population(CONFIG, 3) != population(CONFIG, 4)
    assert shuffled(1) == shuffled(1) != shuffled(2)
    assert sorted(shuffled(1)) == sorted(all_prompts()) and len(set(all_prompts())) == len(all_prompts())


def test_what_is_noticed() -> None:
    seen = notice(PROMPT, "1. Fry rice.\n2. Add eggs. Don't burn it! Would you like more?")
    assert seen.structure == 1 and seen.question == 1 and seen.contractions > 0 and seen.finished == 1
    assert notice(PROMPT, WARM).warmth == 1.0 and notice(PROMPT, COLD).warmth == 0.0
    assert notice(PROMPT, "rice rice rice rice rice").repetition > 0.5
    assert notice(PROMPT, "").words == 0


def test_most_people_prefer_warmth_but_not_all_alike() -> None:
    gains = [u.satisfaction(PROMPT, WARM) - u.satisfaction(PROMPT, COLD) for u in population(CONFIG, 0)]
    assert np.mean(gains) > 0.1
    assert np.std(gains) > 0.02


def test_edits_go_towards_the_editor_s_own_taste() -> None:
    rng = np.random.default_rng(0)
    reply = COLD + " " + "And then one might add some more of everything. " * 6 + "And"
    people = population(CONFIG, 0)
    before = np.array([u.satisfaction(PROMPT, reply) for u in people])
    after = np.array([u.satisfaction(PROMPT, edited(u, "diet", reply, rng)) for u in people])
    assert (after >= before - 0.02).mean() > 0.9 and (after - before).mean() > 0.1


def test_reactions_agree_with_taste_more_often_than_not_and_silence_is_common() -> None:
    rng = np.random.default_rng(1)
    clock = Clock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    shown = [interaction(COLD, "a"), interaction(WARM, "b")]
    votes, silent, asked = {"a": 0, "b": 0, None: 0}, 0, 0
    for user in population(CONFIG, 0) * 4:
        events = react(user, "diet", PROMPT, shown, CONFIG, clock, rng)
        asked += 1
        silent += not events
        for event in events:
            assert event["metadata"]["simulated"] is True and event["user_id"] == user.id
            if event["kind"] == "vote":
                votes[event["value"]["winner"]] += 1
    assert votes["b"] > 2 * votes["a"]
    assert 0.1 < silent / asked < 0.7


def test_shuffled_labels_say_nothing_and_keep_every_text(tmp_path: Path) -> None:
    events = []
    for n in range(400):
        shown = [interaction(f"first {n}", f"i{n}a"), interaction(f"second {n}", f"i{n}b")]
        events += [{"type": "interaction", **i} for i in shown]
        events.append(
            {"type": "feedback", "kind": "vote", "value": {"among": [f"i{n}a", f"i{n}b"], "winner": f"i{n}a"}}
        )
        events.append({"type": "feedback", "kind": "thumb", "interaction_id": f"i{n}a", "value": 1})
        edit = {
            "type": "feedback",
            "kind": "edit",
            "interaction_id": f"i{n}b",
            "value": {"text": f"edit {n}"},
        }
        events.append(edit)
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps(e) + "\n" for e in events))
    shuffled_events = [json.loads(line) for line in shuffle_labels(file, 0).read_text().splitlines()]
    assert len(shuffled_events) == len(events)
    won = [e["value"]["winner"].endswith("a") for e in shuffled_events if e.get("kind") == "vote"]
    up = [e["value"] == 1 for e in shuffled_events if e.get("kind") == "thumb"]
    kept = [e["value"]["text"].startswith("edit") for e in shuffled_events if e.get("kind") == "edit"]
    for share in (won, up, kept):
        assert 0.4 < np.mean(share) < 0.6

    def texts(of: list[dict[str, object]]) -> list[str]:
        replies = [e["completion"]["content"] for e in of if e["type"] == "interaction"]
        return sorted(replies + [e["value"]["text"] for e in of if e.get("kind") == "edit"])

    assert texts(shuffled_events) == texts(events)
