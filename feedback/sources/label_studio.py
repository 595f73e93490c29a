"""Label Studio: tasks in which people compared two replies, from its JSON export.

    [{"id": 7, "data": {"prompt": "Explain tides", "answer1": "The moon …", "answer2": "Water …"},
      "annotations": [{"id": 12, "completed_by": {"id": 3, "email": "…"}, "was_cancelled": false,
        "created_at": "2026-03-01T12:00:00.000000Z", "updated_at": "2026-03-01T12:00:00.100000Z",
        "result": [{"from_name": "pw", "to_name": "answer1,answer2", "type": "pairwise",
                    "value": {"selected": "left"}}]}],
      "predictions": []}]

Each of the two replies becomes an interaction, each pairwise result a vote by annotator `labelstudio-3`; left is
the first that the result's `to_name` names, where those are fields of the data. Results of other kinds, skipped
annotations and predictions of models are dropped and counted. The fields are found by name (`prompt`, `answer1`,
`answer2` and the like) unless told. The format JSON-MIN, one flat object an annotation, is read as well:

    [{"prompt": "Explain tides", "answer1": "The moon …", "answer2": "Water …", "id": 7, "annotator": 3,
      "annotation_id": 12, "created_at": "…", "updated_at": "…", "lead_time": 4.2, "pw": {"selected": "left"}}]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from feedback import exports
from feedback.chat import decoded, prompt_of, reply_of
from feedback.comparisons import feedback, interaction, prompt_field, reply_fields, vote
from feedback.exports import Drop, Item, as_json
from feedback.sources import Partition, Record
from feedback.traces import name_or_none


class Config(BaseModel):
    """Which fields of a task's data hold what."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prompt: str | None = None
    """Field of the prompt; found by its name when None."""
    left: str | None = None
    """Field of the reply shown left; found by its name when None."""
    right: str | None = None
    """Field of the reply shown right; found by its name when None."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    return exports.partitions("label_studio", path, lambda value: _convert(value, config))


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """Records `lo` to `hi`, by index."""
    return exports.read(partition, lo, hi, lambda value: _convert(value, config))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such an export."""
    keys = exports.shape(head)
    flat = {"annotation_id", "annotator", "lead_time"} <= keys and b'"selected"' in head
    return flat or {"annotations", "data"} <= keys


def _convert(task: dict[str, Any], config: Config) -> Iterator[Item]:
    if "annotation_id" in task and "annotations" not in task:
        task = _from_flat(task)
    shown = _shown(task["annotations"], task["data"])
    made = _interactions(task["data"], config, shown)
    yield from made
    ids = [one["interaction_id"] for one in made]
    for annotation in task["annotations"]:
        results = annotation.get("result") or []
        if annotation.get("was_cancelled"):
            yield from [Drop("skipped_annotation")] * max(1, len(results))
        elif not results:
            yield Drop("empty_annotation")
        else:
            for place, result in enumerate(results):
                yield _vote(task, annotation, result, place, ids)
    yield from [Drop("model_prediction")] * len(task.get("predictions") or [])


def _from_flat(row: dict[str, Any]) -> dict[str, Any]:
    """A task with one annotation, from JSON-MIN; its answers stand among the fields of the data."""
    data, results = dict(row), []
    for name, value in row.items():
        only = decoded(value)
        only = only[0] if isinstance(only, list) and len(only) == 1 else only
        if isinstance(only, dict) and "selected" in only:
            results.append({"from_name": name, "type": "pairwise", "value": only})
            del data[name]
    annotation = {
        "id": row["annotation_id"],
        "completed_by": row.get("annotator"),
        "created_at": row.get("created_at"),
        "updated_at": row.get("updated_at"),
        "result": results,
    }
    return {"id": row.get("id"), "data": data, "annotations": [annotation]}


def _shown(annotations: list[dict[str, Any]], data: dict[str, Any]) -> list[str]:
    """The fields that were compared, left first, where the results name two fields of the data."""
    for annotation in annotations:
        for result in annotation.get("result") or []:
            names = [name.strip() for name in str(result.get("to_name") or "").split(",")]
            if result.get("type") == "pairwise" and len(names) == 2 and all(name in data for name in names):
                return names
    return []


def _interactions(data: dict[str, Any], config: Config, shown: list[str]) -> list[dict[str, Any]]:
    asked = config.prompt or prompt_field(name for name in data if name not in shown)
    found = shown or [name for name in reply_fields(data) if name != asked]
    left = config.left or found[0]
    right = config.right or found[1]
    prompt = prompt_of(data[asked]) if asked is not None else []
    replies = [reply_of(data[left]), reply_of(data[right])]
    if not prompt or None in replies:
        raise ValueError("no prompt and two replies")
    return [interaction("labelstudio", prompt, reply) for reply in replies if reply is not None]


def _vote(
    task: dict[str, Any], annotation: dict[str, Any], result: dict[str, Any], place: int, ids: list[str]
) -> Item:
    if result.get("type") != "pairwise":
        return Drop("other_result")
    if ids[0] == ids[1]:
        return Drop("equal_replies")
    selected = (result.get("value") or {}).get("selected")
    if selected not in ("left", "right", "tie"):
        return as_json({"task": task.get("id"), "annotation": annotation.get("id"), "result": result})
    winner = {"left": ids[0], "right": ids[1]}.get(str(selected))
    made_id = f"labelstudio-{task.get('id')}-{annotation['id']}" + (f"-{place}" if place else "")
    feedback_id, time = exports.revised(made_id, annotation.get("created_at"), annotation.get("updated_at"))
    return feedback(
        "labelstudio", feedback_id, ids[0], vote(ids, winner), time=time, user=_annotator(annotation)
    )


def _annotator(annotation: dict[str, Any]) -> str | None:
    """The annotator's number; never the e-mail address that stands beside it."""
    who = annotation.get("completed_by")
    number = who.get("id") if isinstance(who, dict) else who
    if isinstance(number, int):
        return f"labelstudio-{number}"
    name = name_or_none(number)
    return exports.content_id("labelstudio", name) if name else None
