"""Reads documents through a source, as ingest would."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from feedback.events import Feedback, Interaction
from feedback.sources import load
from feedback.validation import Limits, Rejected, parse
from tests.unit.feedback.made import NOON


class Outcome:
    """What came of some documents, in order."""

    def __init__(self, name: str, folder: Path, *documents: Any, **settings: Any):
        path = folder / "export.jsonl"
        path.write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
        source = load(name)
        config = source.Config(**settings)
        (partition,) = source.partitions(path, config)
        raws = [record.raw for record in source.read(partition, 0, partition.end, config)]
        self.events = [parse(raw, now=NOON, limits=Limits(max_future_s=1e9)) for raw in raws]
        self.dropped = Counter(partition.dropped)

    @property
    def replies(self) -> list[Interaction]:
        return [event for event in self.events if isinstance(event, Interaction)]

    @property
    def signals(self) -> list[Feedback]:
        return [event for event in self.events if isinstance(event, Feedback)]

    @property
    def dead(self) -> list[Rejected]:
        return [event for event in self.events if isinstance(event, Rejected)]

    @property
    def said(self) -> list[tuple[str, Any, str]]:
        """(kind, value, actor) of the signals."""
        return [(signal.kind, signal.value, signal.actor) for signal in self.signals]
