"""Gates: each file here is one, found by its name; `module:object` names one of your own.

A gate has a frozen pydantic `Config` and `judge(evidence: Evidence, config: Config) -> Verdict`. To add one,
add a file; there is no list to extend. Gates of reward models are found the same way, in `evaluation.reward_gates`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Protocol, cast

from pydantic import BaseModel, ValidationError

from evaluation.compare import Comparison
from evaluation.errors import GateError
from evaluation.verdicts import Evidence, Verdict


class Gate(Protocol):
    """What a gate's module (or a user's object) offers."""

    Config: type[Any]

    def judge(self, evidence: Any, config: Any) -> Verdict:
        """The verdict; a pure function of its arguments. The evidence is what the gate's package judges."""
        ...


def names(package: str = __name__) -> list[str]:
    """The gates of a package that come with palate, sorted."""
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return sorted(module.name for module in found if not module.name.startswith("_"))


def load(name: str, package: str = __name__) -> Gate:
    """The gate of this name in a package of gates, or of `module:object`.

    Raises:
        GateError: there is none, or it lacks `Config` or `judge`.
    """
    module_name, _, attribute = name.partition(":")
    try:
        if attribute:
            found: Any = getattr(importlib.import_module(module_name), attribute)
        elif name in names(package):
            found = importlib.import_module(f"{package}.{name}")
        else:
            raise GateError("There is no such gate.", got=name, allowed=f"{names(package)} or module:object")
    except (ImportError, AttributeError) as error:
        raise GateError(
            "This gate cannot be loaded.", got=f"{name} ({error})", allowed="module:object"
        ) from error
    if not (hasattr(found, "Config") and callable(getattr(found, "judge", None))):
        raise GateError("A gate needs `Config` and `judge(evidence, config)`.", got=name)
    return cast(Gate, found)


def configure(
    gates_config: Mapping[str, Mapping[str, Any]], package: str = __name__
) -> list[tuple[str, Gate, BaseModel]]:
    """Gates with their checked settings, in the order given. Cheap: call it before anything expensive.

    Raises:
        GateError: an unknown gate, or settings it does not have.
    """
    ready = []
    for name, settings in gates_config.items():
        gate = load(name, package)
        try:
            ready.append((name, gate, cast(BaseModel, gate.Config(**settings))))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            fields = sorted(getattr(gate.Config, "model_fields", {}))
            raise GateError(f"Wrong settings for the gate {name}.", got=faults, allowed=fields) from error
    return ready


def judge_all(
    comparison: Comparison,
    gates_config: Mapping[str, Mapping[str, Any]],
    extra: Mapping[str, Any] | None = None,
) -> list[Verdict]:
    """One verdict for each configured gate, in the order given.

    Args:
        comparison: candidate against champion.
        gates_config: gate name to its settings, `{"win_rate": {"min_prompts": 50}, "kl_budget": {}}`.
        extra: anything else a gate of yours needs.

    Raises:
        GateError: an unknown gate, or settings it does not have.
    """
    evidence = Evidence(comparison, dict(extra or {}))
    return [gate.judge(evidence, config) for _, gate, config in configure(gates_config)]
