"""Is a registered reward model still fit to be used? Looked at again, through the held-out votes there are today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedback.errors import PalateError
from palate import reward_case
from palate.context import Context

if TYPE_CHECKING:
    import pyarrow as pa

    from evaluation.reward_case import RewardCase
    from evaluation.verdicts import Outcome, Verdict
    from pipelines.dataset import Dataset
    from reward_models.scorer import Scorer
    from rollout.reward_registry import RewardVersion

_FRESHNESS = "data_freshness"
_WRONG = {
    "heldout_accuracy": "ranks replies no better than a coin",
    "calibration": "is miscalibrated",
    "length_correlation": "loves length more, or less, than people do",
    "worst_decile_users": "serves the worst tenth of people badly",
}


class CannotCheck(PalateError, RuntimeError):
    """What it takes to look at a reward model again is not there, or would not be honest."""


@dataclass(frozen=True)
class Checked:
    """What the held-out votes of today say of a reward model."""

    version: RewardVersion
    dataset_version: str
    """Whose split `test` it was looked at through."""
    case: RewardCase | None
    """None without an explicit held-out pair."""
    verdicts: tuple[Verdict, ...]

    @property
    def outcome(self) -> Outcome:
        """All gates in one word."""
        from evaluation.verdicts import overall

        return overall(self.verdicts)

    @property
    def sentence(self) -> str:
        """Whether it is still fit to be used."""
        return fitness(f"v{self.version.version}", self.verdicts, self.case)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "fit": self.outcome,
            "said": self.sentence,
            "reward_model": self.version.model_dump(mode="json"),
            "dataset_version": self.dataset_version,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "case": None if self.case is None else self.case.to_dict(),
        }


def check(context: Context, wanted: str) -> Checked:
    """Look at a registered reward model through the split `test` of the newest dataset, and let its gates decide.

    Nothing is registered: a version keeps the verdicts that it was made with.

    Args:
        context: the project.
        wanted: a version's number, `newest` or `passed`.

    Raises:
        UnknownVersion: there is no such version.
        DatasetError: no dataset was built.
        BaseModelError: the base model is not there.
        CannotCheck: the base model is another, rows it learned from are gone, or held-out prompts are among them.
        EvaluationError: held-out rows or people are among those it learned from.
    """
    from pipelines.dataset import load as load_dataset
    from reward_models.scorer import load
    from rollout import reward_registry

    found = reward_registry.version_info(context.registry, wanted)
    dataset = load_dataset(context.project.dir)
    _refuse_other_base(context, found)
    directory = reward_registry.download(context.registry, found.version)
    scorer = load(directory, context.base.path, context.project.embeddings_dir)
    learned, test = _learned(context, dataset, found, scorer), dataset.rows("test")
    if context.project.prefer.split.test_prompts > 0:
        _refuse_seen_prompts(learned, test)
    with context.out.stage("Held-out votes"):
        case, verdicts = reward_case.look(context, scorer, test, learned)
    return Checked(found, dataset.version, case, verdicts)


def fitness(who: str, verdicts: Sequence[Verdict], case: RewardCase | None) -> str:
    """One sentence on whether a reward model is fit to be used, and one on drift where it could not be tested."""
    failed = [verdict for verdict in verdicts if verdict.verdict == "fail"]
    undecided = [verdict.gate for verdict in verdicts if verdict.verdict == "insufficient_data"]
    if failed:
        said = f"{who} is not fit to be used: it {_listed([w for v in failed for w in _wrong(v, case)])}."
    elif not verdicts:
        said = f"{who} could not be judged: there is no explicit held-out pair, or no gate is set."
    elif undecided:
        said = f"{who} could not be judged fully: nothing speaks against it, but {_listed(undecided)} could not decide."
    else:
        said = f"{who} is still fit to be used: every gate passed."
    asked = any(verdict.gate == _FRESHNESS for verdict in verdicts)
    if case is None or case.drift.tested or not asked:
        return said
    return f"{said} Drift was not tested{case.drift.why.removeprefix('Not tested')}"


def _wrong(verdict: Verdict, case: RewardCase | None) -> list[str]:
    """What a failed gate says of the reward model."""
    if verdict.gate != _FRESHNESS:
        return [_WRONG.get(verdict.gate, f"fails the gate {verdict.gate}")]
    found = ["is too old"] if verdict.value > verdict.threshold else []
    return found + (["has drifted"] if case is not None and case.drift.verdict == "worse" else [])


def _listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _refuse_other_base(context: Context, found: RewardVersion) -> None:
    base = context.base
    if (base.id, base.revision) != (found.base_id, found.base_revision):
        raise CannotCheck(
            f"Reward model v{found.version} reads replies with another base model than the project's.",
            got=f"{base.id} @ {base.revision}",
            allowed=f"{found.base_id} @ {found.base_revision}",
            next_step=f"palate rewards check {found.version} --set model.base={found.base_id}",
        )


def _learned(context: Context, dataset: Dataset, found: RewardVersion, scorer: Scorer) -> pa.Table:
    """The rows that it was fitted on: in today's dataset, or else in the one that it was fitted on.

    Feedback that came since may have made a row anew, under another id; a dataset is never changed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from pipelines.dataset import load
    from pipelines.errors import DatasetError

    ids = pa.array(sorted(scorer.trained_on), pa.string())
    split, missing = reward_case.SPLITS[found.role], 0
    for version in (dataset.version, found.dataset_version):
        try:
            there = dataset if version == dataset.version else load(context.project.dir, version)
        except DatasetError:
            continue
        rows = there.rows(split)
        rows = rows.filter(pc.is_in(rows["preference_id"], ids))
        missing = len(ids) - rows.num_rows
        if not missing:
            return rows
    raise CannotCheck(
        f"Rows that reward model v{found.version} has learned from are not there, so who is held out is not known.",
        got=f"{missing} of {len(ids)} rows in neither dataset {dataset.version} nor {found.dataset_version}",
        next_step="palate train",
    )


def _refuse_seen_prompts(learned: pa.Table, test: pa.Table) -> None:
    shared = set(learned["prompt_key"].to_pylist()) & set(test["prompt_key"].to_pylist())
    if shared:
        raise CannotCheck(
            "A reward model is judged by prompts it has not learned from.",
            got=f"{len(shared)} held-out prompts that it has: [prefer.split] was changed",
            next_step="palate train",
        )
