"""What every command that works on a project needs: its settings, its base model, its registry."""

from __future__ import annotations

import datetime as dt
import getpass
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedback.errors import PalateError
from palate import config as config_module
from palate.config import Project
from palate.console import Out

if TYPE_CHECKING:
    from palate.base_model import BaseModel
    from rollout.connection import Registry


# What takes part in learning and judging, beside what the dataset's manifest names.
LEARNING = ("accelerate", "mlflow", "peft", "scipy", "tokenizers", "torch", "transformers", "trl")


class WorkspaceBusy(PalateError, RuntimeError):
    """Another command is changing this workspace."""


@dataclass
class Context:
    """A project, opened. Expensive parts are opened on first use."""

    project: Project
    out: Out
    config_file: Path | None = None

    @cached_property
    def base(self) -> BaseModel:
        """The base model on local disk; converted or fetched on first use."""
        from palate.base_model import resolve

        with self.out.stage(f"Base model {self.project.model.base}") as advance:
            base = resolve(self.project.model.base, self.project.models_dir)
            advance(1, 1, f"revision {base.revision}")
        return base

    @cached_property
    def registry(self) -> Registry:
        """The model registry."""
        from rollout.connection import connect

        with self.out.stage("Registry"):
            return connect(self.project.dir, self.project.registry)

    def first_champion(self) -> int:
        """The champion's version; the untouched base model becomes it where nothing serves yet."""
        from rollout.registry import ensure_base_champion
        from training.adapter import new_adapter

        adapter = new_adapter(
            self.base.path,
            self.base.id,
            self.project.dir / "base-adapters" / self._adapter_key(),
            self.project.model.lora,
            self.project.seed,
        )
        return ensure_base_champion(self.registry, adapter, self.base.id, self.base.revision, None)

    def _adapter_key(self) -> str:
        """Another base, shape or seed is another first champion."""
        lora = self.project.model.lora.model_dump(mode="json")
        return _digest({"base": [self.base.id, self.base.revision], "lora": lora, "seed": self.project.seed})

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the workspace for one writer. The lock dies with its process, so it is never stale.

        Raises:
            WorkspaceBusy: another process holds it.
        """
        import fcntl

        self.project.dir.mkdir(parents=True, exist_ok=True)
        with (self.project.dir / "run.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise WorkspaceBusy(
                    "Another palate command is working in this workspace.",
                    got=lock.read().strip() or self.project.dir,
                    next_step="wait for it, or use another [workspace] dir",
                ) from None
            lock.truncate(0)
            lock.write(f"process {os.getpid()} since {now().isoformat(timespec='seconds')}\n")
            lock.flush()
            yield


def open_project(file: Path | None, overrides: list[str], out: Out) -> Context:
    """Read the project file and prepare quiet, offline-safe libraries. Nothing heavy is imported."""
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "true")
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    project = config_module.load(file, overrides)
    # Libraries that keep caches keep them where the project says.
    os.environ.setdefault("MPLCONFIGDIR", str(project.workspace.cache_dir.resolve() / "matplotlib"))
    if not project.model.base.startswith("hub:"):
        # Local weights only: no library may spend seconds asking a hub that is not needed.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return Context(project, out, file)


def quiet_libraries() -> None:
    """Warnings and progress bars of libraries would drown palate's own; errors still show."""
    import logging
    import warnings

    import datasets
    import transformers

    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in ("trl", "accelerate", "torch", "peft"):
        logging.getLogger(name).setLevel(logging.ERROR)


def learn_key(context: Context, dataset_version: str, champion_sha256: str) -> str:
    """Names what is learned by all it depends on; judging it anew with other gates does not train it anew."""
    from reward_models.features import NAMES

    project = context.project
    parts = {part: json.loads(getattr(project, part).model_dump_json()) for part in ("reward", "train")}
    base = [context.base.id, context.base.revision]
    return _digest(
        {
            "dataset": dataset_version,
            "champion": champion_sha256,
            "base": base,
            "seed": project.seed,
            "features": NAMES,  # a reward model of other columns must not be taken up
            **parts,
        }
    )


def run_key(context: Context, learned: str) -> str:
    """Names one piece of work: what was learned, and how it is judged."""
    project = context.project
    evaluation = json.loads(project.evaluation.model_dump_json(exclude={"prompts"}))
    if project.evaluation.prompts is not None and project.evaluation.prompts.is_file():
        evaluation["prompts_sha256"] = hashlib.sha256(project.evaluation.prompts.read_bytes()).hexdigest()
    sampling = json.loads(project.model.sampling.model_dump_json())
    return _digest(
        {
            "learned": learned,
            "evaluation": evaluation,
            "sampling": sampling,
            "gates": project.gates,
            "reward_gates": project.reward_gates,
        }
    )


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def record(context: Context, **more: Any) -> dict[str, Any]:
    """The record of a run: what is needed to do it again."""
    from pipelines.provenance import code_version, versions

    return {
        "config": config_module.resolved(context.project),
        "config_file": str(context.config_file) if context.config_file else None,
        "seed": context.project.seed,
        "base": {"id": context.base.id, "revision": context.base.revision},
        "code": code_version(),
        "dependencies": {**versions(), **{name: importlib.metadata.version(name) for name in LEARNING}},
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
        },
        "created": now().isoformat(),
        **more,
    }


def write_json(path: Path, document: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(document, indent=1, default=str, ensure_ascii=False), encoding="utf-8")
    partial.replace(path)


def actor() -> str:
    """Who is deciding: the user of the operating system."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def now() -> dt.datetime:
    """The clock."""
    return dt.datetime.now(dt.UTC)
