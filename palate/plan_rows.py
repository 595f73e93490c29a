"""What each method would learn from in a dataset: usable rows, and what is left out by reason."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palate.context import Context, learn_key
from palate.plan_champion import Start

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.dataset import Dataset
    from training.errors import NotEnoughPreferences
    from training.grpo_prompts import Chosen
    from training.probe import Work
    from training.update import Data

UNITS = {"dpo": "pair", "grpo": "prompt"}
"""What a method learns from; rows of replies for all others."""
_LEAST = ("min_pairs", "min_rows", "min_prompts")


@dataclass(frozen=True)
class Gathered:
    """What an update could learn from."""

    data: Data
    not_read: dict[str, int]
    """Interactions of the split `train` that were not looked at, by reason."""


@dataclass(frozen=True)
class Found:
    """What one method makes of it."""

    method: str
    rows: int
    left_out: dict[str, int]
    refused: NotEnoughPreferences | None
    """What the method would refuse to run with; None where it would run."""
    work: Work | None = None
    """What it would do; None of a method that samples its replies, or that has no row at all."""
    prompts: Chosen | None = None
    """Of a method that samples its replies."""

    @property
    def unit(self) -> str:
        """What the rows are."""
        return UNITS.get(self.method, "row")


def gather(context: Context, dataset: Dataset, start: Start, methods: Collection[str]) -> Gathered:
    """The rows of the split `train`, as training reads them.

    Args:
        context: the project.
        dataset: what is to be learned from.
        start: the champion.
        methods: that are to learn from it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from feedback.served import SERVED
    from palate.policy_update import _learned_until
    from palate.served import Look, look
    from training.update import Data, method

    rows = dataset.rows("train")
    silenced = _silenced(context, dataset, rows, start)
    heard = rows.filter(pc.invert(pc.is_in(rows["user_id"], pa.array(silenced, pa.string()))))
    needed = any("served" in method(name).NEEDS for name in methods)
    seen = look(context, dataset, "train", silenced=silenced) if needed else Look(SERVED.empty_table(), {})
    return Gathered(
        Data(heard, seen.table, _learned_until(context, start.dataset)),
        {f"not_read_{reason}": count for reason, count in seen.left_out.items()},
    )


def _silenced(context: Context, dataset: Dataset, rows: pa.Table, start: Start) -> list[str]:
    """People who act together: as the run that fits the reward model finds them, or has found them."""
    from palate.learn import labels_file, labels_of
    from reward_models.labels import honest

    learned = learn_key(context, dataset.version, start.champion.digest)
    reward_model = context.project.dir / "updates" / learned / "reward-training"
    if labels_file(reward_model).is_file():
        return sorted(labels_of(reward_model).get("brigade") or ())
    # Who rates changes weights, and none to or from nothing: it silences nobody, and is dear to find.
    labels = context.project.reward.labels.model_copy(update={"who_rates": False})
    found = honest(rows, labels, seed=context.project.seed).brigade
    return sorted(found.users) if found is not None else []


def found(context: Context, method: str, start: Start, gathered: Gathered) -> Found:
    """What a method makes of what was gathered; too few rows are no error here, and `refused` says so."""
    from training.errors import NotEnoughPreferences

    config = getattr(context.project.train, method)
    try:
        return _found(context, method, config, start, gathered, None)
    except NotEnoughPreferences as error:
        refused = error
    fields = {name: 1 for name in _LEAST if name in type(config).model_fields}
    try:
        return _found(context, method, config.model_copy(update=fields), start, gathered, refused)
    except NotEnoughPreferences:
        return Found(method, 0, {}, refused)


def _found(
    context: Context,
    method: str,
    config: Any,
    start: Start,
    gathered: Gathered,
    refused: NotEnoughPreferences | None,
) -> Found:
    from training.update import method as named

    seed = context.project.seed
    unread = {} if "preferences" in named(method).NEEDS else gathered.not_read
    if method == "grpo":
        from training.probe_grpo import prompts_of

        chosen = prompts_of(config, start.champion, gathered.data, seed)
        return Found(method, len(chosen.prompts), {**chosen.left_out, **unread}, refused, prompts=chosen)
    from training.probe_work import work_of

    work, left_out = work_of(method, config, start.champion, gathered.data, seed)
    return Found(method, len(work.items), {**left_out, **unread}, refused, work)


def agents_of(context: Context, method: str, gathered: Gathered) -> set[str | None]:
    """Agents whose replies a method learns from; None stands for rows that name none."""
    import pyarrow.compute as pc

    from training.pairs import choose_pairs, choose_unpaired

    train, data = context.project.train, gathered.data
    if method == "mix":
        return set().union(*(agents_of(context, name, gathered) for name in train.mix.shares))
    if method in ("dpo", "kto"):
        choose = choose_pairs if method == "dpo" else choose_unpaired
        rows = choose(data.preferences, most=data.preferences.num_rows + 1, seed=0).rows
    elif method == "grpo" and not data.served.num_rows:
        rows = data.preferences
    else:
        rows = data.served
    if method == "words":
        written = [pc.is_valid(rows[name]) for name in ("edit", "next_message", "comment")]
        rows = rows.filter(pc.or_(pc.or_(written[0], written[1]), written[2]))
    return set(rows["agent"].unique().to_pylist())
