"""`palate doctor --method`: an update's numbers on the installed libraries, and settings that run into known faults."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

from palate.config import ConfigError
from palate.context import Context, quiet_libraries

if TYPE_CHECKING:
    from training.known_faults import Fault
    from training.oracles import Finding

DONE, REFUSED = 0, 3


def preflight(context: Context, method: str) -> int:
    """Run the oracles of a method, look at its settings, tell both; the exit code.

    Args:
        context: the project, whose settings are looked at.
        method: a training method, or `all`.

    Raises:
        ConfigError: there is no such method.
    """
    from training.known_faults import VERIFIED, unverified
    from training.oracles import for_method
    from training.update import methods

    known = (*methods(), "all")
    if method not in known:
        raise ConfigError("No training method has that name.", got=method, allowed=", ".join(known))
    quiet_libraries()
    findings = _findings(context, for_method(method))
    faults = _faults(context, method)
    versions = {name: importlib.metadata.version(name) for name in VERIFIED}
    other = unverified(versions)
    _tell(context, findings, faults, other)
    failed = [finding.name for finding in findings if not finding.passed]
    code = REFUSED if failed or faults else DONE
    if failed:
        context.out.say(
            f"Not safe to train with: {', '.join(failed)}. Install the verified versions: make install"
        )
    elif not faults:
        context.out.say(f"Every number that {method} rests on is right here.")
    context.out.result(
        {
            "ok": code == DONE,
            "exit_code": code,
            "oracles": [finding.as_json() for finding in findings],
            "refused_settings": [vars(fault) for fault in faults],
            "versions": versions,
            "unverified": sorted(other),
        }
    )
    return code


def _findings(context: Context, oracles: list[Any]) -> list[Finding]:
    found = []
    with context.out.stage("Oracles", "oracles") as advance:
        for number, oracle in enumerate(oracles, 1):
            found.append(oracle.check())
            advance(number, len(oracles), oracle.name)
    return found


def _faults(context: Context, method: str) -> list[Fault]:
    """Of the method asked about, or of all."""
    from training.known_faults import faults_of
    from training.update import methods

    train = context.project.train
    return [
        fault
        for name in (methods() if method == "all" else [method])
        for fault in faults_of(name, getattr(train, name).model_dump())
    ]


def _tell(
    context: Context, findings: list[Finding], faults: list[Fault], other: dict[str, tuple[str, str]]
) -> None:
    def expected(finding: Finding) -> str:
        return f"{finding.expected} ± {finding.tolerance:.2g}" if finding.tolerance else finding.expected

    context.out.table(
        "what an update rests on",
        ["oracle", "", "measured", "expected", "protects against"],
        [(f.name, f.state, f.measured, expected(f), f.protects) for f in findings],
    )
    for fault in faults:
        context.out.say(
            f"Refused: {fault.setting} = {fault.got}: {fault.fault} ({fault.reference}). Set {fault.instead}."
        )
    for name, (here, verified) in sorted(other.items()):
        context.out.say(f"{name} {here} is not the verified version, {verified}.")
