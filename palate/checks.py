"""What `palate doctor` looks at."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from feedback.errors import PalateError
from palate import config as config_module
from palate.context import Context

State = Literal["ok", "warn", "fail"]
NEEDED = (
    "apache-beam",
    "deltalake",
    "great-expectations",
    "mlflow",
    "peft",
    "pyarrow",
    "torch",
    "transformers",
    "trl",
)
FREE_WARN_GB, FREE_FAIL_GB, MEMORY_WARN_GB = 5.0, 1.0, 6.0


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    state: State
    found: str
    advice: str = ""

    @property
    def mark(self) -> str:
        """A word for the table."""
        return {"ok": "ok", "warn": "careful", "fail": "FAIL"}[self.state]


def run_checks(context: Context) -> list[Check]:
    """All checks, in the order in which they matter; one that fails does not stop the others."""
    looks: tuple[Callable[[Context], Check], ...] = (
        _python, _packages, _workspace, _disk, _memory, _compute, _model, _source, _registry
    )  # fmt: skip
    return [_safely(look, context) for look in looks]


def _safely(look: Callable[[Context], Check], context: Context) -> Check:
    try:
        return look(context)
    except Exception as error:
        name = look.__name__.strip("_").capitalize()
        return Check(
            name,
            "fail",
            f"{type(error).__name__}: {str(error)[:200]}",
            "make install sets the packages right",
        )


def _python(_: Context) -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    return Check("Python", "ok" if good else "fail", version, "" if good else "use Python 3.11 or 3.12")


def _packages(_: Context) -> Check:
    found, missing = [], []
    for name in NEEDED:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check(
            "Packages", "fail", f"missing: {', '.join(missing)}", "install with constraints.txt: make install"
        )
    return Check("Packages", "ok", ", ".join(found))


def _workspace(context: Context) -> Check:
    path = context.project.dir
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".doctor-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        return Check(
            "Workspace", "fail", f"{path}: {error.strerror}", "make it writable or set [workspace] dir"
        )
    return Check("Workspace", "ok", str(path))


def _disk(context: Context) -> Check:
    there = next(p for p in (context.project.dir, *context.project.dir.parents) if p.exists())
    free = shutil.disk_usage(there).free / 1e9
    state: State = "fail" if free < FREE_FAIL_GB else "warn" if free < FREE_WARN_GB else "ok"
    advice = "" if state == "ok" else "free some space: a run needs about 1 GB, a model cache more"
    return Check("Disk", state, f"{free:.1f} GB free", advice)


def _memory(_: Context) -> Check:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError):
        return Check("Memory", "warn", "unknown", "DPO on the default model needs about 5 GB")
    good = total >= MEMORY_WARN_GB
    return Check("Memory", "ok" if good else "warn", f"{total:.1f} GB", "" if good else "set smaller batches")


def _compute(_: Context) -> Check:
    import torch

    from reward_models.hardware import fast_bf16

    bf16 = "fast bf16" if fast_bf16() else "no fast bf16: fp32 is used"
    if torch.cuda.is_available():
        return Check("Compute", "ok", f"{torch.cuda.get_device_name()}, {bf16}")
    return Check("Compute", "ok", f"CPU, {torch.get_num_threads()} threads, {bf16}")


def _model(context: Context) -> Check:
    try:
        base = context.base
    except PalateError as error:
        return Check("Base model", "fail", error.what, error.next_step or "")
    return Check("Base model", "ok", f"{base.id} @ {base.revision}")


def _source(context: Context) -> Check:
    path = config_module.source_place(context.project, None)
    if isinstance(path, str):  # brokers are asked when there is something to read
        return Check("Source", "ok", path)
    if path is None:
        return Check(
            "Source", "warn", "no [source] path", "name a file with each ingest, or set it in palate.toml"
        )
    if not path.exists():
        variable = config_module.DATA_VARIABLE
        return Check("Source", "warn", f"{path} does not exist", f"set [source] path, --input or {variable}")
    return Check("Source", "ok", f"{context.project.source.name}: {path}")


def _registry(context: Context) -> Check:
    from rollout.promote import status

    try:
        found = status(context.registry)
    except PalateError as error:
        return Check("Registry", "fail", error.what, error.next_step or "")
    champion = (
        f"champion v{found.champion.version}"
        if found.champion
        else "no champion yet: the first run makes one"
    )
    if found.warnings:
        return Check("Registry", "warn", found.warnings[0].text, found.warnings[0].next_step)
    return Check("Registry", "ok", f"{context.registry.tracking_uri}: {champion}")
