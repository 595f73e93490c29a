"""What a sampled reply is paid: a reward model, rules and guards, each by its own name and weight.

    total = sum over sources of weight * value - sum over guards of weight * violation

A source that raises, or gives something that is not a finite number, spoils the groups it did so in and nothing
else: those are counted by name, and the run goes on.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from training.errors import TrainingError
from training.reward_sources_rules import GUARDS, RULES, Rule, RuleSettings

if TYPE_CHECKING:
    from reward_models.scorer import Scorer

log = logging.getLogger(__name__)
Chat = list[dict[str, Any]]
REWARD_MODEL = "reward_model"


class RewardError(TrainingError):
    """A reward does not exist, or none works."""


class RewardSettings(BaseModel):
    """What sampled replies are paid for."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    sources: dict[str, float] = Field(default_factory=lambda: {REWARD_MODEL: 1.0})
    """Name and weight: `reward_model` (log-odds of being preferred), `length` (minus the log-ratio to `target_words`),
    `finished`, `format`, or your own rule as `module:object`."""
    guards: dict[str, float] = Field(
        default_factory=lambda: {"repetition": 1.0, "empty": 2.0, "questions": 1.0}
    )
    """Name and weight of what a reply pays for, in proportion to how far it goes: `repetition`, `empty`, `questions`,
    or your own rule as `module:object`, 0 being no violation."""
    rules: RuleSettings = RuleSettings()
    """Settings of the shipped rules and guards."""


@dataclass(frozen=True)
class Replies:
    """B sampled replies, group after group, with all that a source may look at."""

    prompts: Sequence[Chat]
    texts: Sequence[str]
    tokens: np.ndarray
    """(B,) tokens sampled, the end token included."""
    finished: np.ndarray
    """(B,) bool: whether the reply ended before the limit."""
    user_ids: Sequence[str | None]
    agents: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, start: int, stop: int) -> Replies:
        """Replies `start` to `stop`."""
        cut = slice(start, stop)
        return Replies(
            self.prompts[cut],
            self.texts[cut],
            self.tokens[cut],
            self.finished[cut],
            self.user_ids[cut],
            self.agents[cut],
        )


@dataclass(frozen=True)
class Source:
    """One reason to pay a reply, or to make it pay."""

    name: str
    weight: float
    """Negative for a guard."""
    value: Callable[[Replies], Sequence[float | None] | np.ndarray]
    """Gives (B,) values of B replies."""


@dataclass(frozen=True)
class Scored:
    """What B replies in B / G groups are paid."""

    values: dict[str, np.ndarray]
    """(B,) by source; NaN where it failed."""
    total: np.ndarray
    """(B,) weighted sum; NaN in a group that failed."""
    faults: dict[int, tuple[str, str]]
    """Group to the source that failed it and what was wrong; the first one where several did."""


def sources_of(settings: RewardSettings, scorer: Scorer | None) -> tuple[Source, ...]:
    """The configured sources and guards, in a fixed order.

    Raises:
        RewardError: an unknown name, a reward model that was not given, or a setting that a rule lacks.
    """
    found = []
    for name, weight in sorted(settings.sources.items()):
        if name == REWARD_MODEL:
            found.append(Source(name, weight, _reward_model(scorer)))
        else:
            found.append(Source(_label(name), weight, _rule(name, settings.rules, RULES, REWARD_MODEL)))
    for name, weight in sorted(settings.guards.items()):
        found.append(Source(f"guard_{_label(name)}", -weight, _rule(name, settings.rules, GUARDS)))
    names = [source.name for source in found]
    if len(set(names)) < len(names):
        raise RewardError("Two rewards would be logged under one name.", got=", ".join(sorted(names)))
    return tuple(found)


def scored(sources: Sequence[Source], replies: Replies, group_size: int) -> Scored:
    """Ask every source, and add up.

    Args:
        sources: at least one.
        replies: B, whole groups one after the other.
        group_size: G.
    """
    faults: dict[int, tuple[str, str]] = {}
    values = {source.name: _values(source, replies, group_size, faults) for source in sources}
    total = np.sum([source.weight * values[source.name] for source in sources], axis=0)
    for group in faults:
        total[group * group_size : (group + 1) * group_size] = np.nan
    return Scored(values, total, faults)


def _values(source: Source, replies: Replies, size: int, faults: dict[int, tuple[str, str]]) -> np.ndarray:
    """(B,) values, asked for all at once; group by group only where that fails, to know which is at fault."""
    values = _asked(source, replies)
    if isinstance(values, str) and len(replies) > size:
        parts = [replies.part(start, start + size) for start in range(0, len(replies), size)]
        answers = [_asked(source, part) for part in parts]
    else:
        answers = [values] if isinstance(values, str) else list(values.reshape(-1, size))
    for group, answer in enumerate(answers):
        fault = answer if isinstance(answer, str) else _not_finite(answer)
        if fault and group not in faults:
            faults[group] = (source.name, fault)
            log.warning("reward %s failed a group: %s", source.name, fault)
    return np.concatenate([np.full(size, np.nan) if isinstance(a, str) else a for a in answers])


def _asked(source: Source, replies: Replies) -> np.ndarray | str:
    """(B,) values, or what went wrong."""
    try:
        given = np.array([np.nan if v is None else float(v) for v in source.value(replies)], dtype=np.float64)
    except Exception as error:  # a rule is anyone's code and may raise anything; its groups are counted
        return f"{type(error).__name__}: {error}"
    return given if len(given) == len(replies) else f"{len(given)} values for {len(replies)} replies"


def _not_finite(values: np.ndarray) -> str:
    bad = values[~np.isfinite(values)]
    return f"{bad[0]} is not a finite number" if len(bad) else ""


def _reward_model(scorer: Scorer | None) -> Callable[[Replies], np.ndarray]:
    if scorer is None:
        raise RewardError(
            "The reward `reward_model` is asked for and there is none.",
            allowed="a fitted reward model",
            next_step="set [reward] method, or leave reward_model out of [train.grpo.rewards] sources",
        )

    def value(replies: Replies) -> np.ndarray:
        return scorer.score(replies.prompts, replies.texts, replies.user_ids, replies.agents).mean

    return value


def _rule(
    name: str, settings: RuleSettings, shipped: dict[str, Rule], *others: str
) -> Callable[[Replies], Sequence[float | None] | np.ndarray]:
    if name in shipped:
        settings.check(name)
        return lambda replies: shipped[name](replies, settings)
    module, _, attribute = name.partition(":")
    if not attribute:
        raise RewardError(
            "No reward has that name.",
            got=name,
            allowed=", ".join(sorted([*shipped, *others])),
            next_step="name one of these, or your own as module:object",
        )
    try:
        rule: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise RewardError(
            "Your reward cannot be imported.",
            got=f"{name}: {error}",
            allowed="module:object, a function of `training.reward_sources.Replies` that gives a number for each",
            next_step="correct [train.grpo.rewards]",
        ) from error
    if not callable(rule):
        raise RewardError("Your reward is not a function.", got=f"{name} is {type(rule).__name__}")
    return lambda replies: rule(replies)


def _label(name: str) -> str:
    """What a source is logged as: a colon is no part of a metric's name."""
    return name.replace(":", ".")
