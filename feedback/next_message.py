"""What a user wrote next, read from the next interaction where no signal tells it.

The next interaction of the same session, by the same person, has the prompt and the reply at the beginning of its own
prompt and one more message of the user at its end. Both sides become a hash of the turns, so that finding which follows
which needs no text in memory.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
import pyarrow as pa

from feedback.events import prompt_key
from feedback.splits import Split, SplitConfig, row_split
from feedback.tables import times_of


class Said(NamedTuple):
    """What was written next, and where that is told."""

    text: str
    interaction_id: str
    """The interaction whose prompt ends with the text."""
    time: datetime
    digest: str


class _Turn(msgspec.Struct, gc=False):
    """A message as a later prompt repeats it: products leave reasoning out of the history."""

    role: str
    content: str
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Chat(msgspec.Struct, gc=False):
    interaction_id: str
    prompt: list[_Turn]
    completion: _Turn
    uses: list[str]
    session_id: str | None = None
    user_id: str | None = None


_decode = msgspec.json.Decoder(_Chat).decode
_encode = msgspec.json.Encoder().encode


def ends(interactions: pa.Table) -> dict[bytes, list[str]]:
    """By the hash of session, person, prompt and reply, the ids of interactions.

    Args:
        interactions: At least the column `body` of `EVENTS`.
    """
    found: dict[bytes, list[str]] = defaultdict(list)
    for body in interactions["body"].to_pylist():
        chat = _decode(body)
        if chat.session_id is not None:
            found[_hash(chat, [*chat.prompt, chat.completion])].append(chat.interaction_id)
    return dict(found)


def said_next(
    later: pa.Table, ends: Mapping[bytes, Sequence[str]], split: SplitConfig, into: Split = "train"
) -> list[tuple[str, Said]]:
    """Interactions that go on where others ended.

    Args:
        later: In `EVENTS` (at least digest, event_time and body), each id once; any part of all there are.
        ends: From `ends`.
        split: What is held out.
        into: The split that the next interaction must fall in, too; its consent counts as well.

    Returns:
        The id of an interaction and what was written after it; of several the caller takes the first.
    """
    use = "train" if into == "train" else "evaluate"
    found = []
    columns = (later[name].to_pylist() for name in ("digest", "body"))
    for time, digest, body in zip(times_of(later["event_time"]), *columns, strict=True):
        chat = _decode(body)
        if chat.session_id is None or use not in chat.uses or not _answers(chat.prompt):
            continue
        before = ends.get(_hash(chat, chat.prompt[:-1]))
        if not before:
            continue
        key = prompt_key([{"role": turn.role, "content": turn.content} for turn in chat.prompt])
        if row_split([chat.user_id], key, split) == into:
            said = Said(chat.prompt[-1].content, chat.interaction_id, time, digest)
            found += [(name, said) for name in before]
    return found


def first(found: Iterable[tuple[str, Said]]) -> dict[str, Said]:
    """By interaction id, what was written next; the earliest where a conversation went on in several ways."""
    chosen: dict[str, Said] = {}
    for name, said in found:
        if name not in chosen or (said.time, said.digest) < (chosen[name].time, chosen[name].digest):
            chosen[name] = said
    return chosen


def _answers(prompt: Sequence[_Turn]) -> bool:
    """Whether the prompt ends with a user's message right after a reply."""
    return len(prompt) > 1 and prompt[-1].role == "user" and prompt[-2].role == "assistant"


def _hash(chat: _Chat, turns: Sequence[_Turn]) -> bytes:
    content = _encode(
        [chat.session_id, chat.user_id, [[t.role, t.content, bytes(t.tool_calls)] for t in turns]]
    )
    return hashlib.blake2b(content, digest_size=16).digest()
