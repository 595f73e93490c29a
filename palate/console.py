"""What a person or a script sees: stages with progress, tables, and one JSON document when asked for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

Advance = Callable[..., None]


def escape(text: str) -> str:
    """Text that users wrote, made harmless for a terminal: no markup, no control characters, no escape sequences."""
    return escape_markup("".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text))


class Out:
    """Human output on stdout, or, with `--json`, progress on stderr and one JSON document on stdout."""

    def __init__(self, as_json: bool = False):
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False, soft_wrap=True, emoji=False)
        self.stage_s: dict[str, float] = {}
        """Wall seconds by stage, in the order they ran."""

    def say(self, text: str = "") -> None:
        """One line of plain text; markup in it is shown, not obeyed."""
        self.console.print(escape(text))

    def head(self, text: str) -> None:
        """A heading."""
        self.console.print(f"\n[bold]{escape(text)}[/bold]")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table; cells are plain text. Without rows only its title is shown."""
        if not rows:
            if title:
                self.say(title)
            return
        table = Table(title=escape(title) if title else None, title_justify="left", header_style="bold")
        for i, column in enumerate(columns):
            table.add_column(escape(column), justify="left" if i == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        self.console.print(table)

    def result(self, document: Mapping[str, Any]) -> None:
        """The command's result for scripts: the last line of stdout, printed with `--json` only."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, default=str, ensure_ascii=False, allow_nan=False) + "\n")
            sys.stdout.flush()

    @contextmanager
    def stage(self, name: str, unit: str = "") -> Iterator[Advance]:
        """Show a stage's progress: a bar with rate and ETA on a terminal, a line now and then elsewhere.

        Yields `advance(done, total, note="")`, `done` counted from 0 to `total`.
        """
        started = time.monotonic()
        shown = (
            _Bar(self.console, name, unit) if self.console.is_terminal else _Lines(self.console, name, unit)
        )
        failed = True
        try:
            with shown:
                yield shown.advance
            failed = False
        finally:
            seconds = time.monotonic() - started
            self.stage_s[name] = self.stage_s.get(name, 0.0) + seconds
            mark = "[red]✗[/red]" if failed else "[green]✓[/green]"
            self.console.print(
                f"{mark} {escape(name)} [dim]{seconds:.1f} s[/dim] {escape(shown.note)}".rstrip()
            )


class _Bar:
    def __init__(self, console: Console, name: str, unit: str):
        self.note = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task(name, total=None, rate="", note="")
        self._unit, self._started = unit, time.monotonic()

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, done: float, total: float | None = None, note: str = "") -> None:
        self.note = note or self.note
        rate = done / max(time.monotonic() - self._started, 1e-9)
        text = f"{rate:.1f} {self._unit}/s" if self._unit and done else ""
        self._progress.update(self._task, completed=done, total=total, rate=text, note=escape(self.note))


class _Lines:
    """At most one line every few seconds, so that a log stays readable."""

    every_s = 10.0

    def __init__(self, console: Console, name: str, unit: str):
        self.note = ""
        self._console, self._name, self._unit = console, name, unit
        self._started = self._last = time.monotonic()

    def __enter__(self) -> None:
        self._started = self._last = time.monotonic()

    def __exit__(self, *_: object) -> None:
        return None

    def advance(self, done: float, total: float | None = None, note: str = "") -> None:
        self.note = note or self.note
        now = time.monotonic()
        if now - self._last < self.every_s or not done:
            return
        self._last = now
        rate = done / max(now - self._started, 1e-9)
        of = f"/{total:g}" if total else ""
        eta = f", about {(total - done) / rate:.0f} s left" if total and rate else ""
        unit = f" {self._unit}" if self._unit else ""
        self._console.print(
            escape(f"  {self._name}: {done:g}{of}{unit} ({rate:.1f}{unit}/s{eta}) {self.note}".rstrip())
        )
