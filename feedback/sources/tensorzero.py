"""TensorZero: rows of its inference and feedback tables, in one file or a folder of files.

    {"id": "01934d3c-f9b0-7e02-bcac-…", "function_name": "write_haiku", "variant_name": "gpt4o_mini",
     "episode_id": "0193fb9d-c8c7-…", "processing_time_ms": 2346, "tags": {},
     "input": "{\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":[{\\"type\\":\\"text\\", …}]}]}",
     "output": "[{\\"type\\":\\"text\\",\\"text\\":\\"Tiny stripes swim fast, …\\"}]", "inference_params": "{…}"}
    {"id": "0193fb9e-1b7e-…", "target_id": "01935947-7ac8-…", "metric_name": "haiku_score", "value": false}
    {"id": "0193fb9e-1b7e-…", "target_id": "01935947-7ac8-…", "metric_name": "haiku_rating", "value": -0.02}
    {"id": "01944339-00dc-…", "target_id": "01942e26-…", "target_type": "episode", "value": "too long"}
    {"id": "0193fbb4-c8ea-…", "inference_id": "01935947-7ac8-…", "value": "[{\\"type\\":\\"text\\", …}]"}

The second to fifth are a boolean metric, a float metric, a comment, a demonstration. An inference becomes an
interaction of the session that its episode is; a boolean a thumb or an outcome, a float a rating or an outcome, a
comment a comment, a demonstration an edit. Of a JSON function (`{"raw": "…", "parsed": {…}}`) the text counts.
The gateway's own listing names an inference `inference_id`; with `dispreferred_outputs`, the first of them is the
reply and `output` an edit of it. Times are in the ids (UUIDv7). Whether a metric is about an inference or an
episode is not in its row: set `episode_metrics` for the latter; names that end in `_episode` are taken so.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict

from feedback import exports
from feedback.chat import Message, prompt_of, reply_of
from feedback.exports import UNDATED, Item, as_json, time_of, time_of_nanoseconds, without_none
from feedback.scores import Scores, signal_of
from feedback.sources import Partition, Record


class Config(BaseModel):
    """How feedback rows are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scores: Scores = Scores()
    """Which metrics are thumbs and ratings."""
    actor: Literal["user", "rater", "judge", "code"] = "user"
    """Who gave the feedback: TensorZero does not say, except by tags of its own evaluations."""
    episode_metrics: tuple[str, ...] = ()
    """Metrics about whole episodes, besides those whose name ends in `_episode`."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    return exports.partitions("tensorzero", path, lambda value: _convert(value, config))


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """Records `lo` to `hi`, by index."""
    return exports.read(partition, lo, hi, lambda value: _convert(value, config))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such rows."""
    keys = exports.shape(head)
    metric_or_comment = {"id", "target_id", "value"} <= keys and bool({"metric_name", "target_type"} & keys)
    return (
        {"function_name", "variant_name", "episode_id"} <= keys
        or metric_or_comment
        or {"id", "inference_id", "value"} <= keys
    )


def _convert(row: dict[str, Any], config: Config) -> Iterator[Item]:
    if "function_name" not in row:
        yield _feedback(row, config)
        return
    worse = row.get("dispreferred_outputs") or ()
    row = {**row, "id": row["id"] if "id" in row else row["inference_id"]}
    made = _inference({**row, "output": worse[0]} if worse else row)
    yield made
    if worse and isinstance(made, dict):
        better = {"inference_id": row["id"], "value": row["output"], "timestamp": made["event_time"]}
        known_as = exports.content_id("listed", row["id"], row["output"])
        yield _feedback({"id": known_as, "tags": row.get("tags"), **better}, config)


def _inference(row: dict[str, Any]) -> Item:
    asked = _json(row["input"])
    prompt = prompt_of(asked)
    if (
        isinstance(asked, dict)
        and asked.get("system") is not None
        and prompt[:1]
        and prompt[0]["role"] != "system"
    ):
        # The arguments of the function's system template; `prompt_of` knows instructions in text.
        prompt = [{"role": "system", "content": as_json(asked["system"]).decode()}, *prompt]
    reply = _reply(row["output"])
    if not prompt or reply is None:
        return as_json(row)
    return {
        "type": "interaction",
        "interaction_id": f"tensorzero-{row['id']}",
        "session_id": f"tensorzero-{row['episode_id']}",
        "event_time": _time(row),
        "agent": row["function_name"],
        "arm": row["variant_name"],
        "prompt": prompt,
        "completion": reply,
        "metadata": without_none(source="tensorzero", tags=row.get("tags") or None),
        **without_none(latency_ms=row.get("processing_time_ms"), sampling=_sampling(row)),
    }


def _reply(output: Any) -> Message | None:
    """What was answered; of a JSON function the text itself, never what a member of that JSON says."""
    output = _json(output)
    if isinstance(output, dict) and {"raw", "parsed"} & output.keys():
        raw, parsed = output.get("raw"), output.get("parsed")
        if not isinstance(raw, str):  # only what was parsed is told
            raw = None if parsed is None else as_json(parsed).decode()
        return None if raw is None else {"role": "assistant", "content": raw}
    return reply_of(output)


def _sampling(row: dict[str, Any]) -> dict[str, Any] | None:
    given = _json(row.get("inference_params"))
    chat = given.get("chat_completion") if isinstance(given, dict) else None
    found = (
        {name: chat.get(name) for name in ("temperature", "top_p", "seed")} if isinstance(chat, dict) else {}
    )
    return without_none(**found) or None


def _feedback(row: dict[str, Any], config: Config) -> Item:
    given = row.get("tags")
    tags = given if isinstance(given, dict) else {}
    judged = tags.get("tensorzero::evaluator_name") or tags.get("tensorzero::evaluation_name")
    name = row.get("metric_name")
    kind: tuple[str, Any]
    if name is not None:
        kind = signal_of(name, row["value"], config.scores)
        about_episode = name in config.episode_metrics or name.endswith("_episode")
        target, sort = row["target_id"], "metric"
    elif "inference_id" in row:
        text = _reply(row["value"])
        if text is None:
            return as_json(row)
        kind = ("edit", {"text": text["content"]})
        target, about_episode, sort = row["inference_id"], False, "demonstration"
    else:
        kind = ("comment", {"text": row["value"]})
        target, about_episode, sort = row["target_id"], row.get("target_type") == "episode", "comment"
    # One call may give several metrics under one id, so the name belongs to the id.
    feedback_id = f"tensorzero-{sort}-{row['id']}" + (f"-{name}" if name is not None else "")
    return {
        "type": "feedback",
        "feedback_id": feedback_id,
        ("session_id" if about_episode else "interaction_id"): f"tensorzero-{target}",
        "event_time": _time(row),
        "kind": kind[0],
        "value": kind[1],
        "actor": "judge" if judged else config.actor,
        "metadata": without_none(source="tensorzero", name=name, tags=tags or None),
    }


def _time(row: dict[str, Any]) -> str:
    """The row's own time, or the one in its UUIDv7."""
    if (told := time_of(row.get("timestamp"))) is not None:
        return told
    number = uuid.UUID(row["id"])
    if number.version != 7:
        return UNDATED
    return time_of_nanoseconds((number.int >> 80) * 1_000_000) or UNDATED


def _json(value: Any) -> Any:
    """Columns that hold JSON hold it as text in exports of the tables, and as JSON in those of the API."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
