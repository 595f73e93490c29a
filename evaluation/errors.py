"""The errors of this package."""

from __future__ import annotations

from feedback.errors import PalateError


class EvaluationError(PalateError, ValueError):
    """Rows, numbers or settings that cannot be evaluated as they are."""


class GateError(EvaluationError):
    """A gate that does not exist, or whose settings are wrong."""

    exit_code = 2
