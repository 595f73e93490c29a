"""Choose the preference pairs an update learns from. Pure: Arrow in, Arrow out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Chosen:
    """Pairs to train on, and what was left out."""

    rows: pa.Table
    """PREFERENCES rows: paired, decided, of the train split, in training order."""
    left_out: dict[str, int]
    """Rows of the train split not used, by reason; nothing disappears unseen."""


def choose_pairs(
    rows: pa.Table, *, max_pairs: int, seed: int, fits: Callable[[dict[str, Any]], bool] | None = None
) -> Chosen:
    """Take at most `max_pairs` decided pairs of the train split, heavier rows first in expectation.

    A weighted sample without replacement by exponential keys: key = -log(u) / weight, smallest first, with u
    drawn from a hash of seed and `preference_id`, so that the choice does not depend on the order of the rows
    and adding a row never reshuffles the others.

    Args:
        rows: PREFERENCES table.
        max_pairs: how many at most.
        seed: of the draw.
        fits: says of a row whether it can be trained on; those that cannot do not count towards `max_pairs`.

    Source: Efraimidis and Spirakis 2006, Weighted random sampling with a reservoir.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    train = rows.filter(pc.field("split") == "train")
    paired = train.filter(pc.is_valid(train["rejected"]))
    usable = paired.filter((pc.field("margin") > 0) & (pc.field("weight") > 0))
    left_out = {
        "unpaired": train.num_rows - paired.num_rows,
        "tie_or_zero_weight": paired.num_rows - usable.num_rows,
    }
    ids, weights = usable["preference_id"].to_pylist(), usable["weight"].to_pylist()
    keys = [-math.log(_uniform(seed, i)) / w for i, w in zip(ids, weights, strict=True)]
    order: list[int] = []
    misfits = 0
    # In order of preference and only as far as needed: `fits` may have to tokenise.
    for k in sorted(range(len(ids)), key=lambda k: (keys[k], ids[k])):
        if len(order) == max_pairs:
            break
        if fits is None or fits(usable.slice(k, 1).to_pylist()[0]):
            order.append(k)
        else:
            misfits += 1
    left_out["longer_than_max_tokens"] = misfits
    left_out["over_max_pairs"] = usable.num_rows - misfits - len(order)
    return Chosen(usable.take(pa.array(order, pa.int64())), {k: n for k, n in left_out.items() if n})


def _uniform(seed: int, text: str) -> float:
    digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
    return (int.from_bytes(digest[:7], "big") + 1) / (2**56 + 1)
