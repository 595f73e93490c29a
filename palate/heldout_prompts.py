"""Which prompts both models answer: held out by user and by prompt, never trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from feedback.errors import PalateError
from feedback.events import prompt_key
from feedback.splits import SplitConfig, row_split

if TYPE_CHECKING:
    import pyarrow as pa

Chat = list[dict[str, str]]


class PromptsError(PalateError, ValueError):
    """The file of evaluation prompts cannot be used."""

    exit_code = 2


@dataclass(frozen=True)
class HeldoutPrompt:
    """One prompt to answer."""

    id: str
    prompt: Chat
    user_id: str | None
    agent: str


def from_rows(test_rows: pa.Table) -> list[HeldoutPrompt]:
    """The distinct prompts of the test split's preference rows."""
    found: dict[str, HeldoutPrompt] = {}
    for row in test_rows.select(["prompt", "user_id", "agent"]).to_pylist():
        item = _prompt(row["prompt"], row["user_id"], row["agent"])
        found.setdefault(item.id, item)
    return list(found.values())


def from_file(path: Path, splits: SplitConfig) -> tuple[list[HeldoutPrompt], int]:
    """Prompts a team wrote: JSONL of `{"prompt": [{"role", "content"}…], "user_id": …, "agent": …}`.

    Returns:
        The prompts that fall in the test split, and how many were refused because they, or their user, might be
        trained on.

    Raises:
        PromptsError: no such file, or a line that is not such an object.
    """
    kept, refused = [], 0
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise PromptsError(
            f"The evaluation prompts cannot be read: {error}", next_step="check [evaluation] prompts"
        ) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = orjson.loads(line)
            chat = [{"role": str(m["role"]), "content": str(m["content"])} for m in item["prompt"]]
            user = item.get("user_id")
            if not chat or not (user is None or isinstance(user, str)):
                raise TypeError("prompt or user_id")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise PromptsError(
                f"Line {number} of {path} is not an evaluation prompt.",
                got=line[:120].decode(errors="replace"),
                allowed='{"prompt": [{"role": "user", "content": "…"}], "user_id": null, "agent": "assistant"}',
            ) from error
        if row_split([user], prompt_key(chat), splits) != "test":
            refused += 1
            continue
        kept.append(_prompt(chat, user, str(item.get("agent") or "assistant")))
    return kept, refused


def pick(prompts: Iterable[HeldoutPrompt], limit: int) -> list[HeldoutPrompt]:
    """At most `limit` distinct prompts, in an order that depends on their text alone."""
    unique = {p.id: p for p in prompts}
    return [unique[i] for i in sorted(unique)][:limit]


def _prompt(chat: Chat, user_id: str | None, agent: str) -> HeldoutPrompt:
    chat = [{"role": m["role"], "content": m["content"]} for m in chat]
    digest = hashlib.sha256(orjson.dumps(chat)).hexdigest()[:24]
    return HeldoutPrompt(digest, chat, user_id, agent)
