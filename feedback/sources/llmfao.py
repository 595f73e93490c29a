"""LLMFAO: votes of crowd workers on pairs of model replies (Dmitry Ustalov, CC BY 4.0).

A directory with `pairs-crowd.jsonl` and `crowd-comparisons.csv`. One pair and one vote:

    {"id": 0, "prompt": 8, "text": "Argue for and against …", "model_x": 97, "result_x": "For Kubernetes …",
     "model_y": 98, "result_y": "Kubernetes, the cloud's heart …"}
    id,prompt,model_x,model_y,worker,winner,left,right
    0,8,97,98,58,tie,Airoboros L2 70B,Weaver 12k

Each distinct reply of a model to a prompt becomes an interaction, each row of the csv a vote by user
`w<worker>`; model x was shown left. The data has no times: they are a fixed day plus the place in the file.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from feedback.sources import Partition, Record, require

_PAIRS, _VOTES = "pairs-crowd.jsonl", "crowd-comparisons.csv"
_ASKED = datetime(2023, 10, 1, tzinfo=UTC)
_VOTED = datetime(2023, 10, 8, tzinfo=UTC)


class Config(BaseModel):
    """Nothing to set."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def partitions(path: Path, config: Config) -> list[Partition]:  # noqa: ARG001
    """One partition: the directory.

    Raises:
        SourceError: A file is not there.
    """
    hashed = hashlib.sha256()
    for name in (_PAIRS, _VOTES):
        require(path / name, what=f"{name} in the LLMFAO directory")
        hashed.update((path / name).read_bytes())
    count = sum(1 for _ in _convert(path))
    return [Partition(f"llmfao:{hashed.hexdigest()[:16]}:{_VOTES}", path, count)]


def read(partition: Partition, lo: int, hi: int, config: Config) -> Iterator[Record]:  # noqa: ARG001
    """Records `lo` to `hi`, by index; the files are converted from their start each time."""
    for index, raw in enumerate(islice(_convert(partition.path), lo, hi), start=lo):
        yield Record(index, index + 1, raw)


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    """Whether this is such a directory."""
    return (path / _PAIRS).is_file() and (path / _VOTES).is_file()


def _convert(directory: Path) -> Iterator[bytes]:
    votes = list(_rows(directory / _VOTES))
    names: dict[str, str] = {}
    for row in votes:
        if isinstance(row, dict):
            names.setdefault(row["model_x"], row["left"])
            names.setdefault(row["model_y"], row["right"])
    yield from _interactions(directory / _PAIRS, names)
    for place, row in enumerate(votes):
        yield row if isinstance(row, bytes) else orjson.dumps(_vote(row, place))


def _rows(path: Path) -> Iterator[dict[str, str] | bytes]:
    """The csv's rows; a line that is not one, as it is."""
    with path.open("rb") as file:
        header: list[str] | None = None
        for line in file:
            raw = line.rstrip(b"\r\n")
            if not raw.strip():
                continue
            try:
                cells = next(csv.reader([raw.decode("utf-8-sig" if header is None else "utf-8")]))
            except (UnicodeDecodeError, csv.Error):
                yield raw
                continue
            if header is None:
                header = cells
                if not set(_COLUMNS) <= set(header):
                    header = list(_COLUMNS)
                    yield raw
                continue
            row = dict(zip(header, cells, strict=False))
            usable = len(cells) == len(header) and row["winner"] in ("left", "right", "tie")
            yield row if usable else raw


_COLUMNS = ("id", "prompt", "model_x", "model_y", "worker", "winner", "left", "right")


def _interactions(path: Path, names: dict[str, str]) -> Iterator[bytes]:
    seen: set[tuple[str, str]] = set()
    with path.open("rb") as file:
        for place, line in enumerate(file):
            raw = line.rstrip(b"\r\n")
            if not raw.strip():
                continue
            try:
                pair = orjson.loads(raw)
                events = [_interaction(pair, side, names, place) for side in ("x", "y")]
                # The same text is in many pairs; another text under its id is a conflict to be told.
                made = {
                    (e["interaction_id"], str(e["completion"]["content"])): orjson.dumps(e) for e in events
                }
            except (ValueError, TypeError, KeyError):
                yield raw  # not such a pair: validation says so and keeps the bytes
                continue
            for key, event in made.items():
                if key not in seen:
                    seen.add(key)
                    yield event


def _reply_id(prompt: object, model: object) -> str:
    return f"llmfao-{prompt}-{model}"


def _interaction(pair: dict[str, Any], side: str, names: dict[str, str], place: int) -> dict[str, Any]:
    model = pair["model_" + side]
    return {
        "type": "interaction",
        "interaction_id": _reply_id(pair["prompt"], model),
        "event_time": (_ASKED + timedelta(seconds=place)).isoformat(),
        "model": {"name": names.get(str(model), f"model {model}")},
        "prompt": [{"role": "user", "content": pair["text"]}],
        "completion": {"role": "assistant", "content": pair["result_" + side]},
        "metadata": {"source": "llmfao", "type": pair.get("type"), "slug": pair.get("slug")},
    }


def _vote(row: dict[str, str], place: int) -> dict[str, Any]:
    x, y = _reply_id(row["prompt"], row["model_x"]), _reply_id(row["prompt"], row["model_y"])
    return {
        "type": "feedback",
        "feedback_id": f"llmfao-{row['id']}-{row['worker']}",
        "interaction_id": x,
        "user_id": "w" + row["worker"],
        "event_time": (_VOTED + timedelta(seconds=place)).isoformat(),
        "kind": "vote",
        "value": {"among": [x, y], "winner": {"left": x, "right": y, "tie": None}[row["winner"]]},
        "actor": "rater",
    }
