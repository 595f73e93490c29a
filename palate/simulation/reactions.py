"""How simulated users react: they vote, rate, edit, retry, copy, or say nothing. Written as a product would."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np

from palate.simulation.text import WARM, sentences
from palate.simulation.users import TASTES, PopulationConfig, User

Event = dict[str, Any]
OPENERS = {
    "friend": [
        "I'm sorry to hear that. ",
        "That sounds hard, and I'm here for you. ",
        "I hear you, and I'm here. ",
    ],
    "diet": ["Great question! ", "Of course, happy to help! ", "Good question, and I'm happy to help! "],
    "fitness": [
        "Great question, you've got this! ",
        "Well done for asking, you've got this! ",
        "Happy to help! ",
    ],
    "diary": [
        "Of course, happy to help! ",
        "That sounds lovely, I'm happy to help. ",
        "Thank you for sharing that. ",
    ],
}
QUESTIONS = ["How does that sound?", "Would you like more ideas?", "Shall we start today?"]


class Clock:
    """Event times a few seconds apart, from a fixed start: the demo's events do not depend on when it runs."""

    def __init__(self, start: dt.datetime):
        self.now = start

    def tick(self, seconds: float) -> str:
        self.now += dt.timedelta(seconds=seconds)
        return self.now.isoformat().replace("+00:00", "Z")


def edited(user: User, agent: str, reply: str, rng: np.random.Generator) -> str:
    """Rewrite a reply towards the user's own taste, by hand so to speak: shorten, finish, warm up, ask back."""
    taste = dict(zip(TASTES, user.tastes, strict=True))
    kept: list[str] = []
    for sentence in sentences(reply):
        if kept and len(" ".join([*kept, sentence]).split()) > 1.2 * user.target_words:
            break
        kept.append(sentence)
    text = " ".join(kept)
    if text[-1:] not in ".!?":
        # Cut off in the middle: the user ends the sentence where it can end.
        text = text.rsplit(" ", 1)[0].rstrip(" ,;:-–") + "."
    if taste["warmth"] > 1.0 and not WARM.search(text):
        text = str(rng.choice(OPENERS[agent])) + text
    if taste["question"] > 0.7 and "?" not in text:
        text = f"{text} {rng.choice(QUESTIONS)}"
    return text


def react(
    user: User,
    agent: str,
    prompt: str,
    interactions: list[Event],
    config: PopulationConfig,
    clock: Clock,
    rng: np.random.Generator,
) -> list[Event]:
    """Feedback events of one user about one prompt's replies (one reply, or two shown side by side).

    Args:
        interactions: wire-format interactions in the order shown.

    Returns:
        Wire-format feedback events; an empty list is silence, and silence is not a dislike.
    """
    felt = [
        _log_odds(user.satisfaction(prompt, i["completion"]["content"])) + float(rng.normal(0, config.noise))
        for i in interactions
    ]
    if rng.random() > user.eagerness:
        return _implicit(user, interactions, felt, clock, rng)
    best = int(np.argmax(felt))
    worst_felt = felt[best]
    events: list[Event] = []
    if len(interactions) == 2:
        ids = [i["interaction_id"] for i in interactions]
        tie = abs(felt[0] - felt[1]) < 0.25
        value = {"among": ids, "winner": None if tie else ids[best]}
        events.append(_feedback(interactions[best], user, clock, "vote", value))
    elif abs(felt[0]) > 0.3:
        events.append(_feedback(interactions[0], user, clock, "thumb", 1 if felt[0] > 0 else -1))
    if worst_felt < 0.8 and rng.random() < user.edits:
        text = edited(user, agent, interactions[best]["completion"]["content"], rng)
        if text != interactions[best]["completion"]["content"]:
            events.append(_feedback(interactions[best], user, clock, "edit", {"text": text}))
    return events


def _implicit(
    user: User, interactions: list[Event], felt: list[float], clock: Clock, rng: np.random.Generator
) -> list[Event]:
    best = int(np.argmax(felt))
    if felt[best] > 1.0 and rng.random() < 0.5:
        return [_feedback(interactions[best], user, clock, "copy", None)]
    if felt[best] < -1.0 and rng.random() < 0.3:
        return [_feedback(interactions[best], user, clock, "retry", None)]
    return []


def _feedback(interaction: Event, user: User, clock: Clock, kind: str, value: Any) -> Event:
    return {
        "type": "feedback",
        "feedback_id": f"{interaction['interaction_id']}/{kind}",
        "interaction_id": interaction["interaction_id"],
        "user_id": user.id,
        "event_time": clock.tick(5),
        "kind": kind,
        "value": value,
        "metadata": {"simulated": True},
    }


def _log_odds(p: float) -> float:
    return float(np.log(p / (1 - p)))
