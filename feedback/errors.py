"""The error every package of palate raises when a person has to act."""

from __future__ import annotations


class PalateError(Exception):
    """An expected failure that says what happened, what was got, what is allowed and what to do next.

    Each package subclasses it together with a stdlib type (`class SourceError(PalateError, ValueError)`), so
    that callers may catch either. The command line prints the message without a traceback and exits with
    `exit_code`.
    """

    exit_code = 1

    def __init__(
        self, what: str, *, got: object = None, allowed: object = None, next_step: str | None = None
    ):
        self.what, self.got, self.allowed, self.next_step = what, got, allowed, next_step
        parts = [what]
        if got is not None:
            parts.append(f"Got: {got}")
        if allowed is not None:
            parts.append(f"Allowed: {allowed}")
        if next_step is not None:
            parts.append(f"Next: {next_step}")
        super().__init__("\n".join(parts))
