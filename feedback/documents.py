"""A file of JSON as a stream of documents: its lines, the members of its one array, or itself.

>>> [document.value for document in documents(Path("export.json"), 2**20)]      # [{"id": 1}, {"id": 2}]
[{'id': 1}, {'id': 2}]
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import orjson

from feedback.sources import SourceError

UNREADABLE: Any = object()
"""Value of a document that is no JSON."""

_BLOCK_BYTES = 1 << 20
_FIRST_LINE_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Document:
    """One top-level JSON value and the bytes it came from."""

    raw: bytes
    value: Any


def opened_file(file: Path) -> BufferedReader:
    """The file, open for reading.

    Raises:
        SourceError: It cannot be opened.
    """
    try:
        return file.open("rb")
    except OSError as error:
        raise SourceError("the file cannot be opened", got=f"{file} ({error})") from error


def documents(file: Path, max_bytes: int) -> Iterator[Document]:
    """The JSON values of a file, in bounded memory: its lines, the members of its one array, or itself.

    Bytes that are no JSON are yielded too, as `UNREADABLE`: a line by itself, otherwise all from where reading
    stopped. A line longer than `max_bytes` is cut to one byte more.

    Raises:
        SourceError: A document that is not a line exceeds `max_bytes`.
    """
    with opened_file(file) as opened:
        lines = _by_lines(opened, named_so=file.suffix == ".jsonl")
        opened.seek(0)
        yield from _lines(opened, max_bytes) if lines else _scan(opened, file, max_bytes)


def _by_lines(opened: BufferedReader, *, named_so: bool) -> bool:
    """Whether each line is a document: the first that is not blank is no array, and no part of a document."""
    while line := opened.readline(_FIRST_LINE_BYTES):
        stripped = line.removeprefix(codecs.BOM_UTF8).strip()
        if stripped:
            break
    else:
        return True
    if not line.endswith(b"\n") and len(line) == _FIRST_LINE_BYTES:
        # One long line: JSON lines, unless it starts as an array does.
        return not stripped.startswith(b"[")
    if stripped.startswith(b"[") or named_so:
        return not stripped.startswith(b"[")
    try:
        json.loads(stripped.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return stripped[:1] != b"{" or not _looks_cut(stripped)
    return True


def _looks_cut(line: bytes) -> bool:
    """Whether a line that is no JSON could be the start of a document over several lines."""
    return line.count(b"{") > line.count(b"}") or line.count(b"[") > line.count(b"]")


def _lines(opened: BufferedReader, max_bytes: int) -> Iterator[Document]:
    while line := opened.readline(max_bytes + 1):
        while not line.endswith(b"\n") and len(line) > max_bytes and (rest := opened.readline(_BLOCK_BYTES)):
            if rest.endswith(b"\n"):
                break
        raw = line.rstrip(b"\r\n")
        if not raw.strip():
            continue
        yield Document(raw, _value(raw.removeprefix(codecs.BOM_UTF8)))


def _value(line: bytes) -> Any:
    """The line's value; NaN, which Python writes, is read too."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return UNREADABLE


class _Window:
    """The part of a file that is in memory, as text from which the very bytes can be had back."""

    def __init__(self, opened: BufferedReader):
        self.opened = opened
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.text, self.at, self.ended = "", 0, False

    def more(self) -> None:
        """Reads as much again as is held, so that trying anew costs no more than reading did."""
        block = self.opened.read(max(_BLOCK_BYTES, len(self.text) - self.at))
        self.ended = not block
        self.text = self.text[self.at :] + self.decoder.decode(block, final=self.ended)
        self.at = 0

    def skip(self, extra: str = "") -> None:
        """Passes white space, and one of the characters in `extra` if it is next."""
        for characters in (extra, "") if extra else ("",):
            while True:
                match = _SPACE.match(self.text, self.at)
                self.at = match.end() if match else self.at
                if self.at < len(self.text) or self.ended:
                    break
                self.more()
            if characters and self.at < len(self.text) and self.text[self.at] in characters:
                self.at += 1

    def next(self) -> str:
        """The next character, empty at the end."""
        return self.text[self.at : self.at + 1]


def _scan(opened: BufferedReader, file: Path, max_bytes: int) -> Iterator[Document]:
    window = _Window(opened)
    window.skip("\ufeff")
    in_array = window.next() == "["
    if in_array:
        window.at += 1
        window.skip()
    while window.next() and not (in_array and window.next() == "]"):
        document = _next_document(window, file, max_bytes)
        yield document
        if document.value is UNREADABLE:
            return
        window.skip("," if in_array else "")
    if in_array and window.next() == "]":
        window.at += 1
        window.skip()
    if window.next():  # something after the array
        yield Document(_rest(window, file, max_bytes), UNREADABLE)


def _next_document(window: _Window, file: Path, max_bytes: int) -> Document:
    decoder = json.JSONDecoder()
    while True:
        try:
            value, end = decoder.raw_decode(window.text, window.at)
            if end < len(window.text) or window.ended:
                break
        except RecursionError:
            return Document(_rest(window, file, max_bytes), UNREADABLE)
        except ValueError:
            if window.ended:
                return Document(_rest(window, file, max_bytes), UNREADABLE)
        if len(window.text) - window.at > max_bytes:
            raise _too_large(file, max_bytes)
        window.more()
    raw = window.text[window.at : end].encode("utf-8", "surrogateescape")
    window.at = end
    return Document(raw, value)


def _rest(window: _Window, file: Path, max_bytes: int) -> bytes:
    while not window.ended:
        if len(window.text) - window.at > max_bytes:
            raise _too_large(file, max_bytes)
        window.more()
    raw = window.text[window.at :].encode("utf-8", "surrogateescape")
    window.at = len(window.text)
    return raw


def _too_large(file: Path, max_bytes: int) -> SourceError:
    return SourceError(
        f"a JSON document in {file} is too large to be read whole",
        got=f"more than {max_bytes} bytes",
        allowed="JSON lines of any length in all, or an array of documents below that size",
        next_step="export it as JSON lines (*.jsonl)",
    )
