"""Preference data in OpenAI's fine-tuning format, one pair a line.

    {"input": {"messages": [{"role": "user", "content": "How cold is it in San Francisco?"}], "tools": []},
     "preferred_output": [{"role": "assistant", "content": "Today 12 °C …"}],
     "non_preferred_output": [{"role": "assistant", "content": "It is not very cold."}]}

Each output becomes an interaction and each line a vote. The format has no times, no users, and no word on who
preferred: event times are a fixed day, and the actor is `actor`. A pair of equal outputs says nothing and is
dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from feedback import exports
from feedback.chat import prompt_of, reply_of
from feedback.comparisons import feedback, interaction, vote
from feedback.exports import Drop, Item
from feedback.sources import Partition, Record


class Config(BaseModel):
    """How pairs are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    actor: Literal["user", "rater", "judge", "code"] = "rater"
    """Who preferred."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    return exports.partitions("openai_preference", path, lambda value: _convert(value, config))


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """Records `lo` to `hi`, by index."""
    return exports.read(partition, lo, hi, lambda value: _convert(value, config))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such a file."""
    keys = exports.shape(head)
    return "preferred_output" in keys or ("input.messages" in keys and b'"preferred_output"' in head)


def _convert(pair: dict[str, Any], config: Config) -> Iterator[Item]:
    prompt = prompt_of(pair["input"])
    preferred, other = reply_of(pair["preferred_output"]), reply_of(pair["non_preferred_output"])
    if not prompt or preferred is None or other is None:
        raise ValueError("not a prompt and two outputs")
    made = [interaction("openai", prompt, reply) for reply in (preferred, other)]
    ids = [one["interaction_id"] for one in made]
    if ids[0] == ids[1]:
        yield made[0]
        yield Drop("equal_outputs")
        return
    yield from made
    yield feedback(
        "openai", exports.content_id("openai", *ids), ids[0], vote(ids, ids[0]), actor=config.actor
    )
