"""Settings that run into a fault which is known, each with its name and with what to set instead. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERIFIED = {
    "torch": "2.13.0", "transformers": "5.24.0", "trl": "1.16.0", "peft": "0.21.2", "accelerate": "1.15.0",
}  # fmt: skip
"""Versions that all oracles were run on; others are said to be unverified."""


@dataclass(frozen=True)
class Fault:
    """One setting that would train something else than it says."""

    setting: str
    """Its name in the project file."""
    got: Any
    fault: str
    reference: str
    instead: str


def faults_of(method: str, settings: Mapping[str, Any]) -> list[Fault]:
    """The known faults that a method's settings run into.

    Args:
        method: name of a training method.
        settings: its resolved settings.
    """
    found = []
    prefix = f"train.{method}"
    if method == "grpo" and (settings.get("top_p", 1.0) < 1.0 or settings.get("top_k", 0) > 0):
        found.append(
            Fault(
                f"{prefix}.top_p / top_k",
                (settings.get("top_p"), settings.get("top_k")),
                "importance ratios are biased: tokens come from another distribution than the one that is trained",
                "trl#6789, trl PR#7269",
                "top_p = 1.0 and top_k = 0",
            )
        )
    if method == "grpo" and settings.get("loss") == "bnpo":
        found.append(
            Fault(
                f"{prefix}.loss",
                "bnpo",
                "the denominator is that of the micro-batch: the gradient changes with its size",
                "trl#3021, ms-swift#10117",
                'loss = "dr_grpo" or "dapo"',
            )
        )
    return found


def unverified(installed: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Libraries in another version than the verified one: name to (installed, verified)."""
    return {
        name: (installed[name], wanted)
        for name, wanted in VERIFIED.items()
        if name in installed and installed[name].split("+")[0] != wanted
    }
