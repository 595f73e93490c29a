"""Choose the preference rows an update learns from. Pure: Arrow in, Arrow out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

Fits = Callable[[str], bool]
"""Says of a row, by its `preference_id`, whether it can be trained on."""


@dataclass(frozen=True)
class Chosen:
    """Rows to train on, and what was left out."""

    rows: pa.Table
    """PREFERENCES rows of the train split, in training order."""
    left_out: dict[str, int]
    """Rows of the train split not used, by reason; nothing disappears unseen."""

    @property
    def weights(self) -> list[float]:
        """What each row's loss is multiplied by, not yet brought to a mean of 1.

        Where only some rows were drawn, their weights already decided which, and count no second time.
        """
        if "over_max_rows" in self.left_out:
            return [1.0] * self.rows.num_rows
        return [float(w) for w in self.rows["weight"].to_pylist()]


def choose_pairs(rows: pa.Table, *, most: int, seed: int, fits: Fits | None = None) -> Chosen:
    """Take at most `most` decided pairs of the train split; see `draw`."""
    import pyarrow.compute as pc

    train = rows.filter(pc.field("split") == "train")
    paired = train.filter(pc.is_valid(train["rejected"]))
    usable = paired.filter((pc.field("margin") > 0) & (pc.field("weight") > 0))
    left_out = {
        "unpaired": train.num_rows - paired.num_rows,
        "tie_or_zero_weight": paired.num_rows - usable.num_rows,
    }
    return draw(usable, left_out, most=most, seed=seed, fits=fits)


def choose_unpaired(rows: pa.Table, *, most: int, seed: int, fits: Fits | None = None) -> Chosen:
    """Take at most `most` rows of the train split on a single reply that somebody liked or disliked; see `draw`."""
    import pyarrow.compute as pc

    train = rows.filter(pc.field("split") == "train")
    single = train.filter(pc.and_(pc.is_null(train["rejected"]), pc.is_valid(train["label"])))
    usable = single.filter(pc.field("weight") > 0)
    left_out = {
        "paired": train.num_rows - single.num_rows,
        "zero_weight": single.num_rows - usable.num_rows,
    }
    return draw(usable, left_out, most=most, seed=seed, fits=fits)


def draw(
    usable: pa.Table, left_out: dict[str, int], *, most: int, seed: int, fits: Fits | None = None
) -> Chosen:
    """Take at most `most` rows, heavier ones first in expectation.

    A weighted sample without replacement by exponential keys: key = -log(u) / weight, smallest first, with u
    drawn from a hash of seed and `preference_id`, so that the choice does not depend on the order of the rows
    and adding a row never reshuffles the others.

    Args:
        usable: PREFERENCES rows of positive weight.
        left_out: rows that are not among them, by reason.
        most: how many at most.
        seed: of the draw.
        fits: see `Fits`; rows that do not fit do not count towards `most`.

    Source: Efraimidis and Spirakis 2006, Weighted random sampling with a reservoir.
    """
    import pyarrow as pa

    ids, weights = usable["preference_id"].to_pylist(), usable["weight"].to_pylist()
    keys = [-math.log(uniform(seed, i)) / w for i, w in zip(ids, weights, strict=True)]
    order: list[int] = []
    misfits = 0
    # In order of preference and only as far as needed: `fits` may have to tokenise.
    for k in sorted(range(len(ids)), key=lambda k: (keys[k], ids[k])):
        if len(order) == most:
            break
        if fits is None or fits(ids[k]):
            order.append(k)
        else:
            misfits += 1
    found = left_out | {
        "not_rendered": misfits,
        "over_max_rows": usable.num_rows - misfits - len(order),
    }
    return Chosen(usable.take(pa.array(order, pa.int64())), {k: n for k, n in found.items() if n})


def uniform(seed: int, text: str) -> float:
    """A number in (0, 1) that depends on nothing but seed and text."""
    digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
    return (int.from_bytes(digest[:7], "big") + 1) / (2**56 + 1)


def mean_one(weights: list[float]) -> list[float]:
    """Weights brought to a mean of 1, so that a learning rate means the same for every data set."""
    mean = sum(weights) / max(len(weights), 1)
    return [w / mean for w in weights]
