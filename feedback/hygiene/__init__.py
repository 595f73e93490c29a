"""What is done to text before it is trained on: personal data replaced, near-copies of prompts found."""

from __future__ import annotations

from feedback.errors import PalateError


class HygieneError(PalateError, RuntimeError):
    """A library that the configuration asks for is absent or another version."""
