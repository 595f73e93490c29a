"""What an update takes of this machine: tokens, time, memory, disk. Counted from its rows, measured by a probe."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palate.context import Context, learn_key
from palate.plan_champion import Start
from palate.plan_rows import Found, Gathered

if TYPE_CHECKING:
    from pipelines.dataset import Dataset
    from rollout.connection import Registry
    from rollout.reward_registry import Role
    from training.hardware import Hardware
    from training.probe import Duration, Probe, Size, Told

CHECKPOINTS = 3
"""Two are kept, and a third is there while it is written."""


@dataclass(frozen=True)
class Cost:
    """What an update takes of this machine."""

    size: Size | None
    """None of a method that samples its replies, where nothing was tried."""
    probe: Probe | None
    duration: Duration | None
    disk_needed: int | None
    """Bytes of checkpoints and of the champion's log-probabilities."""
    disk_free: int
    why: str = ""
    """Why nothing was measured; empty where it was."""

    @property
    def fits(self) -> bool | None:
        """Whether memory and disk are enough; None where that is not known."""
        if self.probe is None or self.disk_needed is None:
            return None
        told = [each.fits for each in self.probe.memory]
        if False in told or self.disk_needed > self.disk_free:
            return False
        return None if None in told else True

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        probe = self.probe
        return {
            "size": None if self.size is None else asdict(self.size),
            "duration_s": None if self.duration is None else asdict(self.duration),
            "probe": None if probe is None else asdict(probe),
            "activations": None
            if probe is None
            else {each.device: each.activations for each in probe.memory},
            "disk_needed": self.disk_needed,
            "disk_free": self.disk_free,
            "fits": self.fits,
            "why": self.why,
        }


def count(context: Context, found: Found, why: str) -> Cost:
    """What the rows alone tell.

    Args:
        context: the project.
        found: what the method learns from.
        why: nothing is measured.
    """
    from training.probe import size

    counted = None if found.work is None else size(found.work)
    return Cost(counted, None, None, None, _free(context), why)


def measure(
    context: Context,
    dataset: Dataset,
    start: Start,
    gathered: Gathered,
    found: Found,
    registry: Registry | None,
    folder: Path,
) -> Cost:
    """Try three steps of the update.

    Args:
        context: the project.
        dataset: what is to be learned from.
        start: the champion.
        gathered: all rows.
        found: what the method makes of them.
        registry: where reward models are; None where it was never used.
        folder: where files may be put; thrown away afterwards.

    Raises:
        ProbeFailed: the steps did not run to their end.
    """
    from training import probe

    with context.out.stage("Three steps of the real loop", "steps") as advance:

        def told(step: int, total: int, rate: float) -> None:
            advance(step, total, f"{rate:.0f} tokens/s")

        if found.work is not None:
            work = replace(found.work, hardware=_hardware(context))
            counted, tried = probe.size(work), probe.probe(work, told)
            every = found.work.settings.save_every_steps
        else:
            models = [
                _reward_model(context, dataset, start, registry, role, folder)
                for role in ("training", "evaluation")
            ]
            if models[0] is None and _needs_one(context):
                return count(context, found, NO_REWARD_MODEL)
            counted, tried = _generations(context, start, gathered, found, models, told)
            every = context.project.train.grpo.save_every_steps
    needed = CHECKPOINTS * tried.checkpoint_bytes + 4 * counted.reference_tokens
    return Cost(counted, tried, probe.duration(counted, tried, every), needed, _free(context))


NO_REWARD_MODEL = (
    "not measured: replies are paid by a reward model, and none was fitted yet. "
    "Fit one alone: palate train --set train.method=none"
)


def _generations(
    context: Context,
    start: Start,
    gathered: Gathered,
    found: Found,
    models: list[Path | None],
    told: Told,
) -> tuple[Size, Probe]:
    from training import probe_grpo

    assert found.prompts is not None
    config, seed = context.project.train.grpo, context.project.seed
    work = probe_grpo.Sampled(
        config, start.champion, gathered.data, models[0], models[1], None, seed, _hardware(context)
    )
    tried = probe_grpo.probe(work, found.prompts, told)
    return probe_grpo.size(config, found.prompts, tried), tried


def _hardware(context: Context) -> Hardware:
    """The table `[train.hardware]` for the one process that tries the steps."""
    return context.project.train.hardware.alone()


def _needs_one(context: Context) -> bool:
    from training.reward_sources import REWARD_MODEL

    return REWARD_MODEL in context.project.train.grpo.rewards.sources


def _reward_model(
    context: Context, dataset: Dataset, start: Start, registry: Registry | None, role: Role, folder: Path
) -> Path | None:
    """Directory of a fitted reward model: that of this very update, or the newest of this base model."""
    from reward_models.model_files import ABOUT
    from rollout import reward_registry, stored
    from rollout.log import all_versions

    learned = learn_key(context, dataset.version, start.champion.digest)
    own = context.project.dir / "updates" / learned / f"reward-{role}"
    if (own / ABOUT).is_file():
        return own
    if registry is None or not all_versions(registry, reward_registry.name(registry)):
        return None
    fitting = [
        each
        for each in reward_registry.versions(registry)
        if (each.role, each.base_id, each.base_revision) == (role, context.base.id, context.base.revision)
    ]
    if not fitting:
        return None
    newest = fitting[-1]
    return stored.materialise(
        registry, newest.model_id, newest.reward_sha256, folder / f"reward-{role}", reward_registry.check
    )


def _free(context: Context) -> int:
    """Bytes free where an update keeps its files."""
    return shutil.disk_usage(context.project.dir).free
