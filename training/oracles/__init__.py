"""Numeric oracles: what an update rests on, measured on the installed libraries before anything is trained.

Every module here may hold oracles, and a new one is found by being there:

    @oracle("dpo", protects=…, reference=…)
    def dpo_loss(subject): ...            -> comparisons of numbers

`check()` measures the installed library or palate's own code; `check(subject)` another implementation, which is how
the tests show that each oracle fails where it should.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from training.oracles.finding import Comparison, Finding, Oracle

__all__ = ["Comparison", "Finding", "Oracle", "for_method", "oracles"]

PARTS = {"mix": ("dpo", "kto", "online", "words")}
"""Methods that are made of others rest on what these rest on."""


def oracles() -> dict[str, Oracle]:
    """All oracles by name, in the order of modules and lines; nothing heavy is imported."""
    found: dict[str, Oracle] = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if "oracle(" in file.read_text(encoding="utf-8") and file.stem not in ("__init__", "finding"):
            module = importlib.import_module(f"training.oracles.{file.stem}")
            found |= {o.name: o for o in vars(module).values() if isinstance(o, Oracle)}
    return found


def for_method(method: str) -> list[Oracle]:
    """The oracles that a method rests on, or all of them for `all`."""
    wanted = {method, *PARTS.get(method, ())}
    return [o for o in oracles().values() if method == "all" or o.methods & wanted]
