"""From rows to what a reward model may learn from them: what each is worth, honestly.

In this order, each step a factor on the rows' weights:

    implicit    what copies, shares, retries and next messages are worth, learned beside explicit verdicts
    propensity  how seldom a reply like this is rated at all: silence is no label
    brigade     people who act together are not heard
    influence   nobody is heard louder than the cap

Rows that end with no weight are not learned from; the report says how many and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from reward_models import brigade, implicit, influence, rating_propensity
from reward_models.brigade import Brigade
from reward_models.brigade import Config as BrigadeConfig
from reward_models.features import NAMES, text_features
from reward_models.implicit import Config as ImplicitConfig
from reward_models.influence import Config as InfluenceConfig
from reward_models.rating_propensity import Config as PropensityConfig
from reward_models.rating_propensity import Served, Weights
from reward_models.representation import last_user_message

if TYPE_CHECKING:
    import pyarrow as pa


class Config(BaseModel):
    """What feedback is worth as a label."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    who_rates: bool = True
    """Whether replies that are seldom rated weigh more, where it can be told which are."""
    together: bool = True
    """Whether people who act together are looked for."""
    implicit: ImplicitConfig = ImplicitConfig()
    """What copies, shares, retries and next messages are worth."""
    propensity: PropensityConfig = PropensityConfig()
    """The correction for who rates."""
    brigade: BrigadeConfig = BrigadeConfig()
    """What makes people a brigade."""
    influence: InfluenceConfig = InfluenceConfig()
    """The cap on one person's weight."""


@dataclass(frozen=True)
class Exposure:
    """What was served, whether anybody said anything about it or not.

    Attributes:
        ids: (N,) interactions.
        served: of the same N.
    """

    ids: list[str]
    served: Served


@dataclass(frozen=True)
class Labels:
    """Rows that are worth what they say, and how that was found."""

    rows: pa.Table
    """In PREFERENCES; the weights are new, and what speaks for the opposite is turned."""
    implicit: Mapping[str, implicit.Kind]
    propensity: rating_propensity.Report | None
    """None where nothing was known of what was served."""
    brigade: Brigade | None
    influence: influence.Report
    weightless: Mapping[str, int]
    """Rows that weigh nothing now, by the step that decided."""

    @property
    def notes(self) -> list[str]:
        """What a reader of the report should know, in sentences."""
        said = []
        for name, kind in self.implicit.items():
            if kind.weight == 0:
                what = f"{kind.rows} rows of the rule `{name}` are not learned from"
                said.append(
                    f"{what}: explicit verdicts on {kind.compared} of the replies do not say what they mean."
                )
            else:
                turned = f", {kind.turned} of them turned" if kind.turned else ""
                said.append(
                    f"{kind.rows} rows of the rule `{name}` weigh {kind.weight:.2f} each on average{turned}: they "
                    f"agree with {kind.agreed:.0%} of {kind.compared} explicit verdicts on the same replies."
                )
        if self.propensity is not None and self.propensity.corrected:
            said.append(self.propensity.sentence)
        if self.brigade is not None and self.brigade.users:
            said.append(
                f"{len(self.brigade.users)} of {self.brigade.judged} people act together and are not heard; who and "
                "why is in the run's labels file."
            )
        if self.influence.capped:
            said.append(
                f"{len(self.influence.capped)} of {self.influence.people} people said more than the cap lets weigh."
            )
        return said

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "implicit": {name: asdict(kind) for name, kind in self.implicit.items()},
            "propensity": None if self.propensity is None else asdict(self.propensity),
            "brigade": None if self.brigade is None else dict(self.brigade.users),
            "influence": asdict(self.influence),
            "weightless": dict(self.weightless),
        }


def honest(rows: pa.Table, config: Config, *, exposure: Exposure | None = None, seed: int = 0) -> Labels:
    """What the rows are worth.

    Args:
        rows: in PREFERENCES, of one split; those that weigh nothing already are left out.
        config: settings.
        exposure: what was served to the people of that split; None leaves who rates uncorrected.
        seed: divides people into folds.
    """
    import pyarrow.compute as pc

    rows = rows.filter(pc.greater(rows["weight"], 0)).sort_by("preference_id")
    worth = implicit.worth(rows, config.implicit)
    rows = implicit.apply(rows, worth)
    weight = worth.weight.copy()
    gone: Counter[str] = Counter(implicit=int((weight == 0).sum()))
    explicit = ~np.isin(np.array(rows["rule"].to_pylist(), dtype=object), list(config.implicit.rules))

    heard = None
    if config.who_rates and exposure is not None:
        heard = rating_propensity.weigh(exposure.served, config.propensity, seed)
        weight[explicit] *= _factors(rows, exposure, heard)[explicit]
    found = None
    if config.together:
        told = rows.filter(explicit & (weight > 0))
        found = brigade.detect(told, config.brigade, _directions(told), NAMES)
        silenced = np.array([user in found.users for user in rows["user_id"].to_pylist()], dtype=bool)
        found = Brigade(np.where(silenced, config.brigade.factor, 1.0), found.users, found.judged)
        gone["brigade"] = int(((weight > 0) & (weight * found.factors == 0)).sum())
        weight *= found.factors
    capped = influence.capped(rows["user_id"].to_pylist(), weight, config.influence)
    kept = capped.weights > 0
    at = rows.schema.get_field_index("weight")
    rows = rows.set_column(at, rows.schema.field(at), [capped.weights]).filter(kept)
    return Labels(
        rows,
        worth.kinds,
        None if heard is None else heard.report,
        found,
        capped.report,
        {step: n for step, n in gone.items() if n},
    )


def _factors(rows: pa.Table, exposure: Exposure, heard: Weights) -> np.ndarray:
    """(N,) mean weight of the rated replies that each row rests on; 1 where none of them is known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rated = pa.array(exposure.ids, pa.string()).filter(pa.array(exposure.served.rated))
    evidence = rows["evidence"].combine_chunks()
    place = pc.index_in(pc.list_flatten(evidence), value_set=rated)
    parent = pc.list_parent_indices(evidence).to_numpy()
    known = pc.is_valid(place).to_numpy(zero_copy_only=False)
    weights = heard.weight[place.drop_null().to_numpy()]
    count = np.bincount(parent[known], minlength=rows.num_rows)
    total = np.bincount(parent[known], weights, minlength=rows.num_rows)
    return np.where(count > 0, total / np.maximum(count, 1), 1.0)


def _directions(rows: pa.Table) -> np.ndarray:
    """(N, F) named features of what was preferred less the other's.

    Nothing of a single reply: less the average one it would tell what people are served, not what they prefer, and
    people of a niche would look like a brigade.
    """
    columns = rows.select(["prompt", "chosen", "rejected"]).to_pydict()
    pairs = [i for i, text in enumerate(columns["rejected"]) if text is not None]
    directions = np.zeros((rows.num_rows, len(NAMES)))
    if pairs:
        asked = [last_user_message(columns["prompt"][i]) for i in pairs]
        chosen, rejected = (
            text_features(asked, [columns[side][i] for i in pairs]) for side in ("chosen", "rejected")
        )
        spread = chosen.std(axis=0)
        directions[pairs] = (chosen - rejected) / np.where(spread > 0, spread, 1.0)
    return directions
