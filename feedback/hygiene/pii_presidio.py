"""Names, places and more by Presidio, where it is installed; the rules run after it on what is left."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from feedback.hygiene import HygieneError

_LABELS = {
    "EMAIL_ADDRESS": "EMAIL", "PHONE_NUMBER": "PHONE", "CREDIT_CARD": "CARD", "IP_ADDRESS": "IP", "IBAN_CODE": "IBAN",
}  # fmt: skip
_LEFT_ALONE = {"DATE_TIME", "URL", "NRP"}
"""Entities that say nothing about who somebody is, or too often are something else."""


@functools.cache
def _analyzer() -> Any:
    try:
        from presidio_analyzer import AnalyzerEngine

        return AnalyzerEngine()
    except (ImportError, OSError, SystemExit) as problem:  # spaCy ends the program where its model is absent
        raise HygieneError(
            "The configuration asks for presidio, which cannot be loaded.",
            got=str(problem),
            next_step="pip install presidio-analyzer and its spaCy model, or set engine = 'rules'",
        ) from problem


def scrub_entities(text: str, language: str, found: Counter[str]) -> str:
    """Replaces the entities that Presidio finds and counts them in `found`.

    Raises:
        HygieneError: Presidio or its language model is absent.
    """
    entities = [
        e for e in _analyzer().analyze(text=text, language=language) if e.entity_type not in _LEFT_ALONE
    ]
    taken = len(text)
    # From the end, so that places further ahead stay right; of two that overlap the longer stands.
    for entity in sorted(entities, key=lambda e: (-e.end, e.start)):
        if entity.end > taken:
            continue
        label = _LABELS.get(entity.entity_type, entity.entity_type)
        text = f"{text[: entity.start]}<{label}>{text[entity.end :]}"
        taken = entity.start
        found[label] += 1
    return text
