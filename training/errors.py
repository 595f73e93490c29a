"""Errors of policy updates."""

from __future__ import annotations

from feedback.errors import PalateError


class TrainingError(PalateError, RuntimeError):
    """An update cannot start or go on."""


class NotEnoughPreferences(TrainingError):
    """Too few preference rows to learn from: wait for more feedback."""

    exit_code = 4
