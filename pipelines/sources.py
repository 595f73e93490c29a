"""Sources by name: the formats of `feedback.sources`, and those that need a network, which live here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from feedback import sources
from feedback.sources import Partition, Source

from .errors import InputError

KAFKA = "kafka"
REPLAY = "replay"
_HERE = {KAFKA: "pipelines.kafka.source", REPLAY: "pipelines.replay_batches"}


def load(name: str) -> Source:
    """The source of that name, or `module:object`.

    Raises:
        SourceError: there is no such source; the message lists those there are.
    """
    if name in _HERE:
        return cast(Source, importlib.import_module(_HERE[name]))
    return sources.load(name)


def settings_of(name: str, settings: Mapping[str, Any]) -> BaseModel:
    """The source's own `Config` with these values.

    Raises:
        SourceError: there is no such source.
        InputError: it has no such setting, or a value is not allowed.
    """
    module = load(name)
    try:
        return module.Config(**settings)
    except ValidationError as error:
        raise InputError(
            f"The source {name} does not take these settings.",
            got=dict(settings),
            allowed=sorted(module.Config.model_fields),
            next_step=str(error.errors()[0]["msg"]),
        ) from error


def partitions(path: Path | str, name: str, settings: Mapping[str, Any]) -> list[Partition]:
    """What there is to read at `path` now.

    Raises:
        SourceError, InputError, BrokerError: see `load`, `settings_of` and the source.
    """
    place: Any = path if name == KAFKA else Path(path)
    return load(name).partitions(place, settings_of(name, settings))
