"""Where events come from: one module per format, found by its name.

A source is a module (or `module:object` of your own) with

    Config                          pydantic, frozen
    partitions(path, config)        -> list[Partition]      what there is to read, and up to where
    read(partition, lo, hi, config) -> Iterator[Record]     the records of one range, as wire JSON
    sniff(head, path)               -> bool                 optional: whether this looks like that format
    cuts(partition, lo, hi, config) -> Iterator[Cut]        optional: where a large range is cheaply divided

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
        earliest: First offset that can still be read; more than 0 only where a source forgets.
        address: Where to connect to; empty for files.
    """

    id: str
    path: Path
    end: int
    pending_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    earliest: int = 0
    address: str = ""


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


class Cut(NamedTuple):
    """A place where a range may be divided: records that start before it end before it.

    Attributes:
        offset: The place.
        records: Records since the last one, at most.
        size: Their bytes; 0 where they are not known before they are read.
    """

    offset: int
    records: int
    size: int


class Source(Protocol):
    """What a source module offers; those that come with palate also have `sniff`, see `recognise`."""

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


HEAD_BYTES = 1 << 16
"""How much of a file is looked at to recognise its format."""
_LOOKED_AT = 8


def recognise(path: Path) -> str:
    """Name of the one source whose format the file or directory has.

    Each source that comes with palate is asked with the first 64 KiB of the file; of a directory, with its
    path, and then with its first `*.json` and `*.jsonl` files, which must all be of one format.

    Raises:
        SourceError: There is nothing, or no format fits, or several do; the message lists them.
    """
    require(path, what="file or directory to read")
    found = _takers(path)
    if path.is_dir() and not found:
        found_inside = (f for f in path.glob("*.json*") if f.is_file() and f.suffix in (".json", ".jsonl"))
        inside = sorted(f for f in found_inside if f.stat().st_size)  # a log that was just rotated is empty
        each = [_takers(file) for file in inside[:_LOOKED_AT]]
        found = sorted({name for takers in each for name in takers}) if all(each) else []
    if len(found) == 1:
        return found[0]
    raise SourceError(
        "the format is not clear" if found else "no known format is like this",
        got=str(path),
        allowed=", ".join(found or names()),
        next_step=f"say which it is: palate ingest {path} --source {found[0] if found else 'NAME'}",
    )


def _takers(path: Path) -> list[str]:
    """The sources that say that this is theirs."""
    head = b""
    if path.is_file():
        try:
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        except OSError as error:
            raise SourceError("the file cannot be opened", got=f"{path} ({error})") from error
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names()}
    return [name for name, module in modules.items() if module.sniff(head, path)]
