"""What simulated users ask a personal agent: a friend, and helpers for diet, fitness and diary."""

from __future__ import annotations

import itertools

import numpy as np

TEMPLATES: dict[str, tuple[list[str], dict[str, list[str]]]] = {
    "friend": (
        [
            "I had a {adj} day at {place}. What should I do tonight?",
            "I feel {feeling} about {topic}. Any advice?",
            "My {person} and I argued about {topic}. What should I say?",
            "Tell me something nice, I am {feeling} because of {topic}.",
        ],
        {
            "adj": ["long", "hard", "strange", "lonely"],
            "place": ["work", "school", "the office", "the hospital"],
            "feeling": ["nervous", "sad", "tired", "unsure", "worried"],
            "topic": ["money", "my exam", "a new job", "moving house", "my presentation", "the holidays"],
            "person": ["sister", "friend", "partner", "neighbour", "boss"],
        },
    ),
    "diet": (
        [
            "What can I cook with {food} and {other}?",
            "Is {food} good for breakfast?",
            "I want to eat less {treat}. How do I start?",
            "Suggest a quick {meal} with {food}.",
        ],
        {
            "food": ["rice", "eggs", "beans", "potatoes", "chicken", "oats", "lentils", "tomatoes"],
            "other": ["cheese", "spinach", "carrots", "onions"],
            "treat": ["sugar", "bread", "meat", "fast food", "chocolate"],
            "meal": ["dinner", "lunch", "snack"],
        },
    ),
    "fitness": (
        [
            "How do I start {sport} at {age}?",
            "My {part} hurts after {sport}. What now?",
            "Give me a short {place} workout for my {part}.",
            "How often should I go {sport} each week?",
        ],
        {
            "sport": ["running", "swimming", "cycling", "yoga", "climbing", "hiking"],
            "age": ["25", "40", "60"],
            "part": ["back", "knees", "shoulders", "legs"],
            "place": ["home", "office", "hotel"],
        },
    ),
    "diary": (
        [
            "Help me write about {event} in my diary.",
            "What should I remember about {event}?",
            "I want to keep a diary about {theme}. How do I begin?",
            "Ask me about {event} so that I can note it down.",
        ],
        {
            "event": [
                "today",
                "my birthday",
                "the trip",
                "our dinner",
                "the first day of spring",
                "the concert",
            ],
            "theme": ["gratitude", "dreams", "my garden", "learning Spanish", "my baby"],
        },
    ),
}


def all_prompts() -> list[tuple[str, str]]:
    """Every (agent, prompt) the templates give, in a fixed order, without repeats."""
    seen: dict[tuple[str, str], None] = {}
    for agent, (templates, slots) in TEMPLATES.items():
        for template in templates:
            names = [n for n in slots if "{" + n + "}" in template]
            for values in itertools.product(*(slots[n] for n in names)):
                seen[(agent, template.format(**dict(zip(names, values, strict=True))))] = None
    return list(seen)


def shuffled(seed: int) -> list[tuple[str, str]]:
    """All prompts in an order that depends on the seed alone."""
    prompts = all_prompts()
    order = np.random.default_rng([seed, 2]).permutation(len(prompts))
    return [prompts[i] for i in order]
