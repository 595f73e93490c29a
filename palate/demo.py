"""The loop closed on simulated users: the champion answers, users react, the loop learns, users judge again.

Everything a product would do happens here for real: replies are sampled from the champion, events are written as
JSON lines, and from there on the code is that of `palate run`. Only the users are made up.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from feedback.events import prompt_key
from feedback.splits import prompt_split, user_split
from palate.config import ConfigError
from palate.context import Context, quiet_libraries
from palate.simulation.prompts import shuffled
from palate.simulation.reactions import Clock, Event, react
from palate.simulation.users import User, population

if TYPE_CHECKING:
    import pyarrow as pa

    from evaluation.estimates import Estimate
    from evaluation.replies import Reply

START = dt.datetime(2026, 1, 5, 8, 0, tzinfo=dt.UTC)
EVENTS_FILE, PROMPTS_FILE, SETTINGS_FILE = "events.jsonl", "evaluation_prompts.jsonl", "settings.json"


@dataclass(frozen=True)
class Ask:
    """One user asking one thing; most are shown two replies side by side."""

    user: User
    agent: str
    text: str
    replies: int


def plan(context: Context) -> tuple[list[Ask], list[Ask]]:
    """Who asks what, and which held-out users and prompts judge in the end. Depends on settings and seed alone.

    Users of a split ask prompts of the same split: in real data other combinations are left out of the dataset
    and counted; here they would only waste sampling time.
    """
    project = context.project
    users = population(project.population, project.seed)
    splits = project.prefer.split
    prompts: dict[str, list[tuple[str, str]]] = {"train": [], "evaluation": [], "test": []}
    for agent, text in shuffled(project.seed):
        prompts[_split_name(prompt_split(prompt_key([{"role": "user", "content": text}]), splits))].append(
            (agent, text)
        )
    people: dict[str, list[User]] = {"train": [], "evaluation": [], "test": []}
    for user in users:
        people[_split_name(user_split(user.id, splits))].append(user)
    counts = project.population.asks
    asks = [ask for split, n in counts.items() for ask in _asks(people[split], prompts[split], n)]
    used = {a.text for a in asks}
    fresh = [p for p in prompts["test"] if p[1] not in used]
    return asks, _asks(people["test"], fresh, project.population.judged_prompts)


def _split_name(split: str | None) -> str:
    """A split's name; where an axis holds nothing out, everything on it is trained on."""
    return split or "train"


def _asks(users: list[User], prompts: list[tuple[str, str]], count: int) -> list[Ask]:
    if not users:
        return []
    return [
        Ask(users[i % len(users)], agent, text, 1 if i % 4 == 3 else 2)
        for i, (agent, text) in enumerate(prompts[:count])
    ]


def make_events(context: Context) -> Path:
    """Let the champion answer and the users react; write events and held-out prompts once per workspace."""
    project = context.project
    events_file = project.dir / "simulated" / EVENTS_FILE
    if events_file.is_file():
        return events_file
    asks, judged = plan(context)
    events_file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"prompt": _chat(context, ask.text), "user_id": ask.user.id, "agent": ask.agent} for ask in judged
    ]
    _write_lines(events_file.with_name(PROMPTS_FILE), lines)
    interactions = _serve(context, asks)
    with context.out.stage("Users react") as advance:
        events = _react(context, asks, interactions)
        kinds = [e["kind"] for e in events if e["type"] == "feedback"]
        counts = ", ".join(f"{kinds.count(k)} {k}" for k in sorted(set(kinds)))
        advance(1, 1, f"{len(asks)} questions; {counts}; the rest is silence")
    _write_lines(events_file, events)
    return events_file


def _serve(context: Context, asks: list[Ask]) -> list[list[Event]]:
    """Sampled replies of the champion as interactions, one list per ask."""
    from evaluation.replies import load_policy, sample
    from rollout.registry import download, version_info

    quiet_libraries()
    champion = version_info(context.registry, context.first_champion())
    policy = load_policy(context.base.path, download(context.registry, champion.version))
    chats = [_chat(context, ask.text) for ask in asks for _ in range(ask.replies)]
    done = 0
    with context.out.stage("Champion answers", "replies") as advance:

        def progress(n: int) -> None:
            nonlocal done
            done += n
            advance(done, len(chats))

        replies = iter(sample(policy, chats, context.project.model.sampling, context.project.seed, progress))
    model = {
        "name": context.registry.name,
        "version": str(champion.version),
        "adapter_digest": champion.adapter_sha256,
    }
    clock, served = Clock(START), []
    for n, ask in enumerate(asks):
        served.append(
            [
                _interaction(
                    context, ask, f"sim-{context.project.seed}-{n:05d}-{k}", next(replies), model, clock
                )
                for k in range(ask.replies)
            ]
        )
    return served


def _interaction(
    context: Context, ask: Ask, interaction_id: str, reply: Reply, model: dict[str, str], clock: Clock
) -> Event:
    sampling = context.project.model.sampling
    return {
        "type": "interaction",
        "interaction_id": interaction_id,
        "session_id": interaction_id.rsplit("-", 1)[0],
        "user_id": ask.user.id,
        "event_time": clock.tick(20),
        "agent": ask.agent,
        "model": model,
        "prompt": _chat(context, ask.text),
        "completion": {"role": "assistant", "content": reply.text},
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
        "tokens": reply.tokens,
        "propensity": 1.0,
        "metadata": {"simulated": True, "finished": reply.finished, "top_k": sampling.top_k},
    }


def _react(context: Context, asks: list[Ask], interactions: list[list[Event]]) -> list[Event]:
    project = context.project
    rng = np.random.default_rng([project.seed, 3])
    clock = Clock(START + dt.timedelta(days=1))
    events: list[Event] = []
    for ask, shown in zip(asks, interactions, strict=True):
        events += shown
        events += react(ask.user, ask.agent, ask.text, shown, project.population, clock, rng)
    return events


def satisfaction(context: Context, rows: pa.Table) -> Mapping[str, Estimate]:
    """True satisfaction of every simulated held-out user with both models' replies, averaged over prompts.

    The hidden tastes are read here and nowhere before: no stage that trains or judges has seen them.
    """
    from evaluation.estimates import bootstrap_mean

    project = context.project
    splits = project.prefer.split
    people = [u for u in population(project.population, project.seed) if user_split(u.id, splits) == "test"]
    columns = rows.select(["prompt_id", "prompt", "champion", "candidate"]).to_pylist()
    felt = {
        who: np.array([[u.satisfaction(r["prompt"], r[who]) for u in people] for r in columns]).mean(axis=1)
        for who in ("champion", "candidate")
    }
    felt["difference"] = felt["candidate"] - felt["champion"]
    clusters = np.array([r["prompt_id"] for r in columns], dtype=object)
    return {who: bootstrap_mean(values, clusters, seed=project.seed) for who, values in felt.items()}


def shuffle_labels(events_file: Path, seed: int) -> Path:
    """A copy of the events in which feedback says nothing about the replies: a control that must not pass.

    A coin names each vote's winner and each thumb's sign, and decides which of an edit's two texts was the reply
    and which the correction. The same texts remain; what people wanted is gone.
    """
    rng = np.random.default_rng([seed, 4])
    events = [orjson.loads(line) for line in events_file.read_bytes().splitlines()]
    replies = {e["interaction_id"]: e for e in events if e["type"] == "interaction"}
    for event in events:
        if event.get("kind") == "vote" and event["value"].get("winner"):
            event["value"]["winner"] = str(rng.choice(event["value"]["among"]))
        elif event.get("kind") == "thumb":
            event["value"] = int(rng.choice([-1, 1]))
        elif event.get("kind") == "edit" and rng.random() < 0.5:
            reply = replies[event["interaction_id"]]["completion"]
            reply["content"], event["value"]["text"] = event["value"]["text"], reply["content"]
    target = events_file.with_name("shuffled_" + events_file.name)
    _write_lines(target, events)
    return target


def with_heldout_prompts(context: Context) -> Context:
    """The same context, judging on the held-out prompts that `make_events` writes."""
    path = context.project.dir / "simulated" / PROMPTS_FILE
    evaluation = context.project.evaluation.model_copy(update={"prompts": path})
    project = context.project.model_copy(update={"evaluation": evaluation})
    return Context(project, context.out, context.config_file)


def prepare_workspace(context: Context, keep: bool, shuffled_labels: bool) -> None:
    """Empty what an earlier demo left, or, with `keep`, make sure that it was this same demo.

    Call it with the workspace held. Only a directory that a demo filled is ever emptied; the lock and caches stay.

    Raises:
        ConfigError: the directory holds something else, or another demo than the one to go on with.
    """
    root, kept = context.project.dir, {"run.lock", "cache"}
    marker = root / "simulated" / SETTINGS_FILE
    project = context.project
    about = {
        "seed": project.seed,
        "shuffled_labels": shuffled_labels,
        "population": project.population.model_dump(mode="json"),
        "model": project.model.model_dump(mode="json"),
        "split": project.prefer.split.model_dump(mode="json"),
    }
    inside = [p for p in root.iterdir() if p.name not in kept]
    if inside and not marker.parent.is_dir():
        raise ConfigError(
            "This directory holds something other than a demo and is not emptied.",
            got=root,
            next_step="palate demo --set workspace.dir=<an empty directory>",
        )
    if keep and marker.is_file():
        if orjson.loads(marker.read_bytes()) != about:
            raise ConfigError(
                "--keep goes on with another demo than the one in this workspace.",
                got=f"seed {project.seed}, shuffled labels: {shuffled_labels}",
                next_step="leave --keep out, or give the same --seed, labels and settings",
            )
        return
    # The marker goes last, so that an emptying that was killed can be done again.
    for path in sorted(inside, key=lambda p: p.name == "simulated"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    marker.parent.mkdir(parents=True, exist_ok=True)
    _write_lines(marker, [about])


def _chat(context: Context, text: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": context.project.model.system_prompt},
        {"role": "user", "content": text},
    ]


def _write_lines(path: Path, items: list[Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(b"".join(orjson.dumps(item) + b"\n" for item in items))
    partial.replace(path)
