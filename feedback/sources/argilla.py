"""Argilla: records with people's responses, from `dataset.records.to_json` or `to_list(flatten=True)`.

    [{"id": "r-7", "status": "completed", "metadata": {},
      "fields": {"prompt": "Explain tides", "response-1": "The moon …", "response-2": "Water …"},
      "responses": {"preference": [{"value": ["response-2", "response-1"], "user_id": "5b1c…"}],
                    "quality":    [{"value": 4, "user_id": "5b1c…"}]},
      "suggestions": {"preference": {"value": "response-1", "agent": "gpt-4o", "score": 0.9}}}]

Each reply becomes an interaction. A response becomes, by what its value is: a ranking or a label that names a
reply, a vote; a number, a rating or an outcome; text, an edit where the question asks for a better reply, else a
comment. A record with several replies tells only by ranking or label which it means, so its numbers and texts
are about the first reply only where the question's name ends in the reply's, and are dropped otherwise.
Suggestions (by models), drafts and discarded responses are dropped and counted; only records made with
`flatten=True` say which responses are drafts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from feedback import exports
from feedback.chat import prompt_of, reply_of
from feedback.comparisons import feedback, interaction, prompt_field, reply_fields, vote
from feedback.events import compared
from feedback.exports import Drop, Item, as_json, time_of
from feedback.scores import Scores, signal_of
from feedback.sources import Partition, Record
from feedback.traces import name_or_none

_EDITS = ("correct", "edit", "rewrite", "improve", "better", "ideal", "fixed")
_TIES = ("tie", "both", "equal", "same", "neither", "none")
_OWN = {"id", "status", "_server_id", "inserted_at", "updated_at"}


class Config(BaseModel):
    """Which fields hold what, and how answers are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prompt: str | None = None
    """Field of the prompt; found by its name when None."""
    replies: tuple[str, ...] = ()
    """Fields of the replies; found by their names when empty."""
    scores: Scores = Scores()
    """Which questions are thumbs and ratings, by their names; records do not tell a question's scale."""
    edits: tuple[str, ...] = ()
    """Text questions that ask for a better reply, besides those whose name says so (`corrected_…`)."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    return exports.partitions("argilla", path, lambda value: _convert(value, config))


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """Records `lo` to `hi`, by index."""
    return exports.read(partition, lo, hi, lambda value: _convert(value, config))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such an export."""
    keys = exports.shape(head)
    return {"fields", "responses"} <= keys or any(key.endswith(".responses.users") for key in keys)


def _convert(record: dict[str, Any], config: Config) -> Iterator[Item]:
    fields, responses, suggestions = _parts(record)
    asked = config.prompt or prompt_field(fields)
    names = list(config.replies) or [name for name in reply_fields(fields) if name != asked]
    prompt = prompt_of(fields[asked]) if asked is not None else []
    replies = {name: reply_of(fields[name]) for name in names}
    made = {
        name: interaction("argilla", prompt, reply) for name, reply in replies.items() if reply is not None
    }
    if not prompt or not made:
        raise ValueError("no prompt and reply")
    yield from made.values()
    ids = {name: one["interaction_id"] for name, one in made.items()}
    key = record.get("id") or record.get("_server_id") or exports.content_id("record", fields)
    for question, response in responses:
        yield _feedback(record, str(key), question, response, ids, config)
    yield from [Drop("model_suggestion")] * suggestions


def _parts(record: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]], int]:
    """Fields, responses as (question, response), and the number of suggestions."""
    if "fields" in record:
        given = record.get("responses") or {}
        if isinstance(given, list):  # the older form: one entry a user, with values by question
            responses = [
                (question, {**answer, "user_id": entry.get("user_id"), "status": entry.get("status")})
                for entry in given
                for question, answer in (entry.get("values") or {}).items()
            ]
        else:
            responses = [(question, answer) for question, answers in given.items() for answer in answers]
        return record["fields"], responses, len(record.get("suggestions") or ())
    flat = []
    for key in record:
        if key.endswith(".responses") and isinstance(record[key], list):
            users = record.get(f"{key}.users") or []
            states = record.get(f"{key}.status") or []
            for place, value in enumerate(record[key]):
                user = users[place] if place < len(users) else None
                state = states[place] if place < len(states) else None
                flat.append(
                    (key.removesuffix(".responses"), {"value": value, "user_id": user, "status": state})
                )
    fields = {name: value for name, value in record.items() if "." not in name and name not in _OWN}
    return fields, flat, sum(key.endswith(".suggestion") and record[key] is not None for key in record)


def _feedback(
    record: dict[str, Any],
    key: str,
    question: str,
    response: dict[str, Any],
    ids: dict[str, str],
    config: Config,
) -> Item:
    if response.get("status") in ("draft", "discarded", "pending"):
        return Drop(f"{response['status']}_response")
    value, user = response.get("value"), name_or_none(response.get("user_id"))
    if value is None:
        return Drop("empty_response")
    try:
        about, said = _said(question, value, ids, config)
    except (KeyError, ValueError, TypeError):
        return as_json({"record": key, "question": question, "response": response})
    if said is None or about is None:
        return Drop("unclear_which_reply")
    if said[0] == "vote" and len(set(compared(said[1]))) < len(compared(said[1])):
        return Drop("equal_replies")
    feedback_id, time = exports.revised(
        exports.content_id("argilla", key, question, user),
        record.get("inserted_at"),
        record.get("updated_at"),
    )
    return feedback(
        "argilla",
        feedback_id,
        about,
        said,
        time=time or time_of(record.get("inserted_at")),
        user=user,
        name=question,
    )


def _said(
    question: str, value: Any, ids: dict[str, str], config: Config
) -> tuple[str | None, tuple[str, Any] | None]:
    """The reply that a response is about, and what it says of it."""
    if isinstance(value, list):
        return _ranking(value, ids)
    if isinstance(value, str) and len(ids) > 1:
        if (named := _named(value, ids)) is not None:
            return ids[named], vote(list(ids.values()), ids[named])
        if value.casefold() in _TIES:
            return next(iter(ids.values())), vote(list(ids.values()), None)
    own = [
        name for name in ids if question == name or question.endswith(("-" + name, "_" + name, " " + name))
    ]
    about = ids[own[0]] if own else next(iter(ids.values())) if len(ids) == 1 else None
    if isinstance(value, str):
        wanted = question in config.edits or any(word in question.casefold() for word in _EDITS)
        return about, ("edit" if wanted else "comment", {"text": value})
    return about, signal_of(question, value, config.scores)


def _named(label: str, names: Iterable[str]) -> str | None:
    """The reply that a label names: `response-2`, or `Response 2`, `2` and `B` where only one ends so."""
    folded = {name: re.sub(r"[-_ ]+", " ", name).casefold().split() for name in names}
    asked = re.sub(r"[-_ ]+", " ", label).casefold().split()
    same = [name for name, words in folded.items() if words == asked]
    ending = [name for name, words in folded.items() if len(asked) == 1 and words[-1:] == asked]
    found = same or ending
    return found[0] if len(found) == 1 else None


def _ranking(value: list[Any], ids: dict[str, str]) -> tuple[str | None, tuple[str, Any] | None]:
    """A ranking as names, best first, or as names with ranks; equal ranks can only be told for two."""
    if value and all(isinstance(item, dict) for item in value):
        ranked = sorted((item["rank"], ids[item["value"]]) for item in value)
        order = [reply_id for _, reply_id in ranked]
        if len({rank for rank, _ in ranked}) < len(ranked):
            return (order[0], vote(order, None)) if len(order) == 2 else (None, None)
    else:
        order = [ids[name] for name in value]
    return (order[0], ("vote", {"ranking": order})) if len(order) > 1 else (None, None)
