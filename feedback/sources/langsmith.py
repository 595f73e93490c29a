"""LangSmith: runs and feedback records, as the client returns and sends them.

One record a line, an array, `{"runs": […], "feedback": […]}`, or the batches that SDKs send, in which the run's
start is in `post` and its end in `patch`:

    {"post": [{"id": "d0d84d31-…", "run_type": "llm", "name": "ChatOpenAI", "trace_id": "d0d84d31-…",
               "start_time": "2024-10-11T20:58:23.298773+00:00",
               "inputs": {"messages": [{"role": "user", "content": "howdy"}], "model": "gpt-4o-mini"}}],
     "patch": [{"id": "d0d84d31-…", "end_time": "2024-10-11T20:58:24.417106+00:00",
                "outputs": {"choices": [{"message": {"role": "assistant", "content": "Howdy! …"}}]}}]}
    {"id": "f1…", "run_id": "d0d84d31-…", "key": "user_score", "score": 1, "comment": "nice", "value": null,
     "correction": null, "feedback_source": {"type": "api"}, "created_at": "2024-10-11T21:00:00"}

Each run of type `llm` becomes an interaction, and so does a trace's outermost run where it has inputs and an
answer, because that is what people judge. A feedback becomes an edit where it holds a corrected reply, else a
thumb, rating or outcome, else a comment; where a person corrected a judge's score, the person's score counts.
Messages may be dumps of LangChain's and LangChain.js's objects. Other runs are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from feedback import exports
from feedback.chat import asked_of, decoded, prompt_of, reply_of
from feedback.exports import UNDATED, Drop, Item, as_json, time_of, without_none
from feedback.scores import Scores, signal_of
from feedback.sources import Partition, Record
from feedback.traces import name_or_none

_OTHER = {"chain", "tool", "retriever", "embedding", "prompt", "parser"}


class Config(BaseModel):
    """How feedback is read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scores: Scores = Scores()
    """Which feedback is a thumb or a rating, where the record itself does not tell its scale."""
    api_actor: Literal["user", "rater", "judge", "code"] = "user"
    """Who gave feedback of source `api`: LangSmith does not say. In most products that is their users' buttons."""


def partitions(path: Path, config: Config) -> list[Partition]:
    """One partition per file; a directory is all its `*.json` and `*.jsonl` files.

    Raises:
        SourceError: Nothing is there to read, or a document is too large.
    """
    return exports.partitions("langsmith", path, lambda value: _convert(value, config))


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:
    """Records `lo` to `hi`, by index."""
    return exports.read(partition, lo, hi, lambda value: _convert(value, config))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is the beginning of such an export."""
    keys = exports.shape(head)
    return (
        {"id", "run_type"} <= keys
        or ("post" in keys and bool({"patch", "post.id"} & keys or b'"run_type"' in head))
        or {"run_id", "key", "score"} <= keys
        or ("runs" in keys and b'"run_type"' in head)
    )


def _convert(value: dict[str, Any], config: Config) -> Iterator[Item]:
    runs, feedback = _records(value)
    for run in runs:
        yield _interaction(run)
        yield from (item for child in run.get("child_runs") or [] for item in _convert(child, config))
    for record in feedback:
        try:
            yield _feedback(record, config)
        except (KeyError, ValueError, TypeError, AttributeError):
            yield as_json(record)


def _records(value: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if "post" in value or "patch" in value:
        merged: dict[str, dict[str, Any]] = {}
        for part in [*(value.get("post") or []), *(value.get("patch") or [])]:
            run = merged.setdefault(part["id"], {})
            run.update({name: field for name, field in part.items() if field or name not in run})
        return list(merged.values()), []
    if "runs" in value or "feedback" in value:
        return list(value.get("runs") or []), list(value.get("feedback") or [])
    return ([value], []) if "run_type" in value else ([], [value])


def _interaction(run: dict[str, Any]) -> Item:
    kind = run.get("run_type")
    judged = kind in ("chain", None) and not run.get("parent_run_id")
    outputs = decoded(run.get("outputs"))  # bulk exports hold JSON as text
    reply = reply_of(outputs)
    prompt = asked_of(run.get("inputs")) if judged else prompt_of(run.get("inputs"))
    if kind != "llm" and not (judged and reply is not None and prompt):
        return Drop(f"{kind}_run" if kind in _OTHER else "other_run")
    if reply is None:
        return Drop("no_reply")
    if not prompt:
        return as_json(run)
    about = (decoded(run.get("extra")) or {}).get("metadata") or {}
    session = next((about[k] for k in ("session_id", "thread_id", "conversation_id") if about.get(k)), None)
    model, temperature = about.get("ls_model_name"), about.get("ls_temperature")
    usage = outputs.get("usage_metadata") if isinstance(outputs, dict) else None
    return {
        "type": "interaction",
        "interaction_id": f"langsmith-{run['id']}",
        "event_time": time_of(run.get("end_time")) or time_of(run.get("start_time")) or UNDATED,
        "prompt": prompt,
        "completion": reply,
        "metadata": without_none(source="langsmith", name=run.get("name"), trace_id=run.get("trace_id")),
        **without_none(
            session_id=name_or_none(session),
            user_id=name_or_none(about.get("user_id")),
            model={"name": model} if isinstance(model, str) and model else None,
            sampling={"temperature": temperature} if temperature is not None else None,
            tokens=usage.get("output_tokens") if isinstance(usage, dict) else None,
        ),
    }


def _feedback(record: dict[str, Any], config: Config) -> Item:
    run_id, name = record["run_id"] or record.get("trace_id"), str(record["key"])
    if run_id is None:
        return as_json(record)  # about a whole project or comparison: there is no reply it belongs to
    source = record.get("feedback_source") or {}
    actors = {"app": "rater", "api": config.api_actor, "model": "judge", "auto_eval": "judge"}
    actor = actors.get(str(source.get("type")), config.api_actor)
    corrected = _corrected_score(record)
    said = _said({**record, "score": corrected} if corrected is not None else record, name, config)
    if said is None:
        return Drop("empty_feedback")
    feedback_id, time = exports.revised(
        f"langsmith-{record['id']}", record.get("created_at"), record.get("modified_at")
    )
    comment = name_or_none(record.get("comment"))
    return {
        "type": "feedback",
        "feedback_id": feedback_id,
        "interaction_id": f"langsmith-{run_id}",
        "event_time": time or UNDATED,
        "kind": said[0],
        "value": said[1],
        "actor": "rater" if corrected is not None and actor == "judge" else actor,
        "metadata": without_none(
            source="langsmith",
            name=name,
            score=record.get("score") if said[0] in ("edit", "comment") or corrected is not None else None,
            comment=comment if said[0] != "comment" else None,
        ),
        **without_none(user_id=name_or_none(source.get("user_id") or source.get("ls_user_id"))),
    }


def _corrected_score(record: dict[str, Any]) -> float | bool | None:
    """The score that a person put in the place of a judge's: `"correction": {"score": 1}`."""
    correction = record.get("correction")
    score = correction.get("score") if isinstance(correction, dict) else None
    return score if isinstance(score, int | float) else None


def _said(record: dict[str, Any], name: str, config: Config) -> tuple[str, Any] | None:
    """Kind and value, of the strongest thing that the record holds."""
    corrected = reply_of(record["correction"]) if record.get("correction") else None
    if corrected is not None:
        return "edit", {"text": corrected["content"]}
    if record.get("score") is not None:
        asked = record.get("feedback_config") or {}
        lo, hi = asked.get("min"), asked.get("max")
        scale = (lo, hi) if isinstance(lo, int | float) and isinstance(hi, int | float) else None
        return signal_of(name, record["score"], config.scores, scale)
    value = record.get("value")
    if value is not None and value != "":
        return signal_of(
            name, as_json(value).decode() if isinstance(value, dict | list) else value, config.scores
        )
    comment = name_or_none(record.get("comment"))
    return ("comment", {"text": comment}) if comment else None
