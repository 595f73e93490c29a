"""Events made on the spot, one by one and at random."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from feedback.events import Event, Feedback, Interaction
from feedback.preferences import PreferConfig, dedupe, join, prefer
from feedback.tables import to_table
from feedback.validation import Rejected

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def interaction(name: str, *, prompt: str = "Why?", reply: str | None = None, at_s: float = 0, **fields: Any):
    return Interaction(
        interaction_id=name,
        event_time=NOON + timedelta(seconds=at_s),
        prompt=[{"role": "user", "content": prompt}],
        completion={"role": "assistant", "content": f"reply {name}" if reply is None else reply},
        **fields,
    )


def feedback(name: str, about: str | None, kind: str, value: Any = None, *, at_s: float = 100, **fields: Any):
    return Feedback(
        feedback_id=name,
        interaction_id=about,
        event_time=NOON + timedelta(seconds=at_s),
        kind=kind,
        value=value,
        **fields,
    )


def table(events: Sequence[Event | Rejected], first_offset: int = 0) -> pa.Table:
    offsets = range(first_offset, first_offset + len(events))
    return to_table(events, source="made", partition="made:0", offsets=offsets, ingest_time=NOON)


def of_kind(events: pa.Table, kind: str) -> pa.Table:
    return events.filter(pc.equal(events.column("kind"), kind))


def run(events: pa.Table, config: PreferConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All three steps; the rows, and the fates of all of them in a fixed order."""
    kept, lost = dedupe(events)
    joined, left = join(of_kind(kept, "interaction"), of_kind(kept, "feedback"))
    rows, fates = prefer(joined, config)
    # Without the places: where an event came from is told, and plays no part.
    everything = pa.concat_tables([lost, left, fates]).drop_columns(["partition", "offset"]).to_pylist()
    return rows.to_pylist(), sorted(everything, key=str)


def fate_of(fates: list[dict[str, Any]], name: str, kind: str = "feedback") -> tuple[str, str | None]:
    """(fate, reason) of the one event of that id."""
    (found,) = [f for f in fates if f["event_id"] == name and f["kind"] == kind]
    return found["fate"], found["reason"]


EVERYTHING_TRAINS = {"test_users": 0, "evaluation_users": 0, "test_prompts": 0, "evaluation_prompts": 0}
"""A split that holds out nothing, for tests of something else."""

# Of each there are some in every split of SplitConfig(0.25, 0.25, 0.25, 0.25).
_USERS = [*[None] * 3, *["u0"] * 5, "u1", "u3", "u10"]
_PROMPTS = ["prompt 0", "prompt 2", "prompt 3"]
_REPLIES = [f"i{n}" for n in range(9)]
_KINDS = ["thumb"] * 10 + ["vote"] * 3 + ["rating"] * 6
_KINDS += ["edit", *["retry"] * 5, "accept", "reject", *["copy"] * 2, *["share"] * 2, "comment"]
_KINDS += ["next_message"] * 3


def _some_interaction(draw: Random) -> Interaction:
    # Ids are drawn from few, so they repeat, at times with another body or another prompt.
    name = draw.choice(_REPLIES)
    place = int(name[1:]) % 3 if draw.random() < 0.9 else draw.randrange(3)
    return interaction(
        name,
        prompt=_PROMPTS[place] if draw.random() < 0.95 else _PROMPTS[place].upper(),
        reply=draw.choice(["a", "b", name, name]),
        at_s=draw.randrange(3),
        user_id=draw.choice(_USERS),
        session_id=draw.choice([None, "s0", "s1"]),
        uses=draw.choice([["train", "evaluate"]] * 6 + [["train"], ["evaluate"], []]),
    )


def _some_value(draw: Random, kind: str, about: str) -> Any:
    if kind == "thumb":
        return draw.choice([1, -1])
    if kind == "rating":
        return {"value": draw.randint(1, 5), "lo": 1, "hi": 5}
    if kind == "vote":
        # Of the same prompt for the most part, so that votes mean something.
        others = [name for name in _REPLIES if int(name[1:]) % 3 == int(about[1:]) % 3 and name != about]
        ids = [about, *draw.sample(others, draw.randint(1, 2))]
        if draw.random() < 0.1:
            ids.append(draw.choice([name for name in _REPLIES if name not in ids]))
        draw.shuffle(ids)
        return (
            {"ranking": ids} if draw.random() < 0.4 else {"among": ids, "winner": draw.choice([None, *ids])}
        )
    if kind in ("edit", "comment"):
        return {"text": draw.choice(["a", "edited", ""])}
    if kind == "next_message":
        return {"text": draw.choice(["a", "Thanks!", "Wrong."])}
    return None


def _some_feedback(draw: Random) -> Feedback:
    about, kind = draw.choice(_REPLIES), draw.choice(_KINDS)
    names = [f"f{n}" for n in [0, 1, 2] * 20 + list(range(3, 400))]
    if draw.random() < 0.05:
        outcome = {"metric": "m", "value": 1}
        return feedback(draw.choice(names), None, "outcome", outcome, session_id=draw.choice(["s0", "s9"]))
    user = draw.choice(_USERS)
    retracts = None
    if draw.random() < 0.2:
        # Mostly by the person and about the reply that the name stands for, so that some succeed.
        about, kind, retracts, user = "i0", "thumb", f"f{draw.randrange(3)}", draw.choice(["u0", "u0", "u1"])
    name = draw.choice(names)
    if name in ("f0", "f1", "f2"):
        about, user = "i0", "u0"
    return feedback(
        name,
        about,
        kind,
        _some_value(draw, kind, about),
        at_s=draw.randrange(4),
        user_id=user,
        actor=draw.choice(["user"] * 4 + ["rater", "judge"]),
        retracts=retracts,
    )


def event_set(seed: int, size: tuple[int, int]) -> list[Event]:
    """A set with so many interactions and signals, at most, and a few copies."""
    draw, (interactions, signals) = Random(seed), size
    events: list[Event] = [_some_interaction(draw) for _ in range(interactions)]
    events += [_some_feedback(draw) for _ in range(signals)]
    return events + draw.sample(events, len(events) // 8)


def event_sets() -> st.SearchStrategy[list[Event]]:
    """Small sets of events with every sort of trouble in them.

    Drawn from a seed and not field by field: far quicker, so that sets are large enough to matter.
    """
    sizes = st.sampled_from([(1, 0), (2, 3), (12, 20), (16, 50), (16, 60)])
    return st.builds(event_set, st.integers(0, 2**32), sizes)
