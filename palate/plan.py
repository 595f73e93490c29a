"""What an update would take and give, before anything is trained. Nothing is written, nothing is registered."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palate import plan_canary, plan_cost, plan_lift, plan_rows
from palate.config import ConfigError
from palate.context import Context, quiet_libraries
from palate.plan_champion import Start, registry_of, start
from palate.plan_settings import Config
from palate.plan_traffic import Traffic, traffic
from palate.wording import counted

if TYPE_CHECKING:
    from palate.plan_canary import Canary
    from palate.plan_cost import Cost
    from palate.plan_lift import Lift
    from palate.plan_rows import Found, Gathered
    from pipelines.dataset import Dataset
    from rollout.connection import Registry


@dataclass(frozen=True)
class Plan:
    """What one update would take and give."""

    method: str
    dataset: str
    """Its version."""
    champion: int | None
    """Its version; None of the untouched base model."""
    rows: Mapping[str, Found]
    """What every method makes of the dataset, the planned one first."""
    cost: Cost
    lift: Lift
    traffic: Traffic
    agents: tuple[str | None, ...]
    """Whose replies are learned from; None stands for rows that name none."""
    canary: Canary
    settings: Config

    @property
    def found(self) -> Found:
        """What the planned method learns from."""
        return self.rows[self.method]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "method": self.method,
            "dataset_version": self.dataset,
            "champion": self.champion,
            "rows": {
                name: {
                    "usable": each.rows,
                    "unit": each.unit,
                    "left_out": each.left_out,
                    "refused": str(each.refused or "") or None,
                }
                for name, each in self.rows.items()
            },
            "cost": self.cost.to_dict(),
            "lift": {
                name: {
                    "estimate": None if said.estimate is None else said.estimate.to_dict(),
                    "why": said.why,
                }
                for name, said in vars(self.lift).items()
            },
            "users": {
                "until": self.traffic.until,
                "days": self.traffic.days,
                "all": self.traffic.people,
                "affected": self.traffic.affected,
                "interactions_without_user": self.traffic.nameless,
                "agents": list(self.agents),
            },
            "canary": {**asdict(self.canary), **self.settings.model_dump(mode="json")},
        }


def make(context: Context, *, probe: bool = True) -> Plan:
    """Plan the update that `palate train` would make of the newest dataset.

    Args:
        context: the project; its `[train] method` is planned.
        probe: whether steps are tried.

    Raises:
        DatasetError: no dataset was built.
        ConfigError: the project trains no policy.
        NotEnoughPreferences: too few usable rows; the same as in training (exit code 4).
        ProbeFailed: the tried steps did not run to their end.
    """
    from pipelines.dataset import load

    method = context.project.train.method
    if method == "none":
        raise ConfigError(
            "This project trains a reward model only, so there is no update to plan.",
            got="[train] method = none",
            next_step="palate plan --method dpo",
        )
    dataset, settings = load(context.project.dir), settings_of(context)
    quiet_libraries()
    registry = registry_of(context)
    with tempfile.TemporaryDirectory(prefix="palate-plan-") as folder:
        began = start(context, registry, Path(folder))
        gathered, rows = _rows(context, dataset, began, method)
        if (refused := rows[method].refused) is not None:
            _tell_others(context, rows)
            raise refused
        cost = (
            plan_cost.measure(context, dataset, began, gathered, rows[method], registry, Path(folder))
            if probe
            else plan_cost.count(context, rows[method], "not measured: --no-probe")
        )
        lift = _lift(context, registry, dataset, began, method, settings.champion_pairs if probe else 0)
    with context.out.stage("Newest traffic"):
        agents = plan_rows.agents_of(context, method, gathered)
        seen = traffic(context, agents, settings.window_days)
    ordered = tuple(sorted(agents, key=lambda agent: (agent is None, agent or "")))
    return Plan(
        method, dataset.version, began.version, rows, cost, lift, seen, ordered,
        plan_canary.plan(seen.verdicts, settings), settings,
    )  # fmt: skip


def settings_of(context: Context) -> Config:
    """The table `[plan]` of the project, where its settings have one."""
    found = getattr(context.project, "plan", None)
    return found if isinstance(found, Config) else Config()


def _rows(
    context: Context, dataset: Dataset, began: Start, planned: str
) -> tuple[Gathered, dict[str, Found]]:
    """What every method makes of the dataset."""
    from training.update import methods

    names = [planned, *(name for name in methods() if name != planned)]
    rows = {}
    with context.out.stage("Rows by method", "methods") as advance:
        gathered = plan_rows.gather(context, dataset, began, names)
        for number, name in enumerate(names, 1):
            rows[name] = plan_rows.found(context, name, began, gathered)
            advance(number, len(names), name)
    return gathered, rows


def _tell_others(context: Context, rows: Mapping[str, Found]) -> None:
    """Say which methods could learn from what there is."""
    others = [f"{name} ({counted(each.rows, each.unit)})" for name, each in rows.items() if not each.refused]
    context.out.say(f"Enough for: {', '.join(others) or 'no method'}.")


def _lift(
    context: Context, registry: Registry | None, dataset: Dataset, began: Start, method: str, pairs: int
) -> Lift:
    unread = plan_lift.Said(None, "not measured: no pair was to be read by the champion.")
    with context.out.stage("Expected lift"):
        return plan_lift.Lift(
            plan_lift.earlier(registry, method, context.base.id),
            plan_lift.ceiling(registry, context.base.id),
            plan_lift.ranks_right(context, dataset, began, pairs) if pairs else unread,
        )
