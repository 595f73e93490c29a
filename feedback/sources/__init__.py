"""Where events come from: one module per format, found by its name.

A source is a module (or `module:object` of your own) with

    Config                          pydantic, frozen
    partitions(path, config)        -> list[Partition]      what there is to read, and up to where
    read(partition, lo, hi, config) -> Iterator[Record]     the records of one range, as wire JSON

A record belongs to the range in which it ends: `lo < next_offset <= hi`. So any way of cutting [0, end) into
ranges yields every record exactly once. What a source cannot convert it hands on unchanged, for validation to
refuse with a reason; it drops only what the format itself marks as not to be used, and counts that.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from pydantic import BaseModel

from feedback.errors import PalateError


class SourceError(PalateError, ValueError):
    """A source that does not exist, or a path it cannot read."""


@dataclass(frozen=True)
class Partition:
    """A part of the input that is read in order.

    Attributes:
        id: Stable over re-runs, so that what was already read is known.
        path: File or directory.
        end: Exclusive last offset: a byte position for `palate_jsonl`, a record index for whole-file formats.
        pending_bytes: Bytes at the end that are not yet a complete record and are left for later.
        dropped: Parts of the input that the format marks as not to be used, counted by reason.
    """

    id: str
    path: Path
    end: int
    pending_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


class Record(NamedTuple):
    """One event as wire JSON, or the bytes that could not be converted.

    Attributes:
        offset: Where it starts.
        next_offset: Where the next one starts; reading on from here loses and repeats nothing.
        raw: The bytes, without line end.
    """

    offset: int
    next_offset: int
    raw: bytes


class Source(Protocol):
    """What a source module offers."""

    Config: type[BaseModel]

    def partitions(self, path: Path, config: Any) -> list[Partition]:
        """What there is to read at `path`."""
        ...

    def read(self, partition: Partition, lo: int, hi: int, config: Any) -> Iterator[Record]:
        """The records that end in (lo, hi]."""
        ...


@functools.cache
def names() -> list[str]:
    """The sources that come with palate."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Source:
    """The source of that name, or `module:object`.

    Raises:
        SourceError: There is no such source; the message lists those there are.
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            return cast(Source, getattr(importlib.import_module(module), attribute))
        except (ImportError, AttributeError, ValueError) as error:
            raise SourceError("the source could not be imported", got=f"{name!r} ({error})") from error
    if name not in names():
        raise SourceError(
            "there is no such source",
            got=repr(name),
            allowed=", ".join(names()),
            next_step="name one of these, or your own as module:object",
        )
    return cast(Source, importlib.import_module(f"{__name__}.{name}"))


def require(path: Path, *, what: str) -> None:
    """Raises `SourceError` when `path` does not exist."""
    if not path.exists():
        raise SourceError(f"there is no {what}", got=str(path), next_step="check the path")
