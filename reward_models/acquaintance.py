"""What is known of people before they vote: which agent they use, and how they write their first messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reward_models.features import NAMES, text_features
from reward_models.representation import last_user_message

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_MESSAGES = 3
"""So many of a person's first messages are looked at."""
_FEWEST = 3  # people that use an agent before it is told apart


@dataclass(frozen=True)
class Acquaintance:
    """How people are described without votes.

    Attributes:
        agents: those told apart, sorted.
        center: (G,) mean description, so that the average person is described by zeros.
        scale: (G,) spread of each column; infinite for one that never varied.
    """

    agents: tuple[str, ...]
    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, agents: Sequence[str | None], messages: Sequence[Sequence[str]]) -> Acquaintance:
        """From U people: the agent each uses most, and their first messages."""
        counts = Counter(agent for agent in agents if agent is not None)
        told = tuple(sorted(a for a, n in counts.items() if n >= _FEWEST))
        blank = cls(told, np.zeros(len(told) + len(NAMES)), np.ones(len(told) + len(NAMES)))
        raw = blank.describe(agents, messages)
        if not len(raw):
            return blank
        spread = raw.std(axis=0)
        return cls(told, raw.mean(axis=0), np.where(spread > 1e-9, spread, np.inf))

    def describe(self, agents: Sequence[str | None], messages: Sequence[Sequence[str]]) -> np.ndarray:
        """(U, G) descriptions: agents told apart, then named features of the messages, standardised."""
        uses = np.array([[float(a == one) for one in self.agents] for a in agents])
        texts = ["\n".join(list(own)[:FIRST_MESSAGES]) for own in messages]
        writes = text_features([""] * len(texts), texts)
        return (
            np.concatenate([uses.reshape(len(texts), len(self.agents)), writes], axis=1) - self.center
        ) / self.scale

    def names(self) -> list[str]:
        """What each column of a description is."""
        return [*(f"uses {agent}" for agent in self.agents), *(f"writes {name}" for name in NAMES)]


def people_of(rows: pa.Table) -> tuple[list[str], list[str | None], list[list[str]]]:
    """Everybody with an id: name, the agent they use most, their first messages."""
    import pyarrow.compute as pc

    known = rows.filter(pc.is_valid(rows["user_id"])).sort_by(
        [("event_time", "ascending"), ("preference_id", "ascending")]
    )
    agents: dict[str, list[str | None]] = {}
    messages: dict[str, dict[str, None]] = {}
    for row in known.select(["user_id", "agent", "prompt"]).to_pylist():
        agents.setdefault(row["user_id"], []).append(row["agent"])
        messages.setdefault(row["user_id"], {})[last_user_message(row["prompt"])] = None
    names = sorted(agents)
    most = [max(sorted(set(agents[n]), key=str), key=agents[n].count) for n in names]
    return names, most, [list(messages[n]) for n in names]
