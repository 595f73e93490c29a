"""Who votes together: groups of people whose votes agree far beyond what honest, like-minded people's do.

Two tests of agreement, each against a null that contains honest taste, and a third signal that only says whom to
compare:

direction: somebody's votes point one way along a column of `directions` (a style, a model, a topic) in k of n votes.
    Honest people lean one way or the other, so k is beta-binomial with the mean and the spread of this project's own
    people (Skellam 1948, JRSS B 10; moments of Kleinman 1973, JASA 68). One person with an extreme taste is no brigade;
    several with the same one are: the m smallest p-values of U people are compared with what U honest people would
    have, by the binomial tail of Berk and Jones 1979 (Z. Wahrscheinlichkeitstheorie 47), with Bonferroni's correction
    over m.
items: two people said the same about k of the n items both voted on. The mean is the items' own (on an easy item
    everybody agrees), the spread between pairs is that of all pairs. Improbable pairs are edges; a group is a set
    whose members have edges to nearly all others, found by peeling (Charikar 2000, APPROX), never by chaining, and
    too large for so many edges to be chance (`brigade_items.group_chance`).
burst: more people than this project's rate at that time of day explains voted within one window (a scan statistic;
    Kulldorff 1997, Comm. Stat. 26). Launch days are bursts, so that alone says nothing; people most of whose votes
    lie in one burst are compared among themselves too, where chance has less room.

All hypotheses of a test share one probability of a false alarm (Bonferroni), as columns and pairs depend on each other
and an honest person who is silenced costs more than a brigader who is found later. Once a group is found in a column,
the others as extreme there are found at a false discovery rate (Benjamini and Hochberg 1995). Agreement must also be
nearly complete (`min_agreement`): what is significant only because there are many votes is taste.

What is not found: a brigade larger than `trimmed`; one that votes with the majority every other time and else along a
column in which honest people differ as much; one whose cause lies along no column and whose members have too few items
in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reward_models.brigade_bursts import bursts
from reward_models.brigade_directions import by_direction
from reward_models.brigade_items import by_items
from reward_models.brigade_votes import Config, read
from reward_models.scorer import RewardModelError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Brigade", "Config", "detect"]


@dataclass(frozen=True)
class Brigade:
    """Who acts together."""

    factors: np.ndarray
    """(N,) in [0, 1], to multiply the weights of the rows by."""
    users: dict[str, str]
    """Who is flagged, and why; sorted by id."""
    judged: int
    """People who voted enough to be judged by either test."""


def detect(
    rows: pa.Table,
    config: Config | None = None,
    directions: np.ndarray | None = None,
    names: Sequence[str] = (),
) -> Brigade:
    """Decides which users of PREFERENCES rows act together.

    Rows of nobody in particular are neither judged nor changed. Of several votes of a person on one item the last
    counts.

    Args:
        rows: N of them, in PREFERENCES.
        config: settings.
        directions: (N, D) vector of the preferred reply less the other's; of a thumb, the reply's own, negated for
            thumbs down. Of ties the order does not matter. From `votes_of_rows.votes_of`:
            `np.where(votes.outcome == ties.LOSS, -1, 1)[:, None] * votes.x`. Without it only items are compared.
        names: of the columns of `directions`, for the reasons.

    Raises:
        RewardModelError: `directions` has another number of rows, or is not finite.
    """
    config = config or Config()
    if directions is not None and (len(directions) != rows.num_rows or not np.isfinite(directions).all()):
        raise RewardModelError(
            "Directions do not fit the rows.",
            got=f"{np.shape(directions)}, finite: {bool(np.isfinite(directions).all())}",
            allowed=f"({rows.num_rows}, D), all finite",
            next_step="pass the vectors of `votes_of` for the same rows",
        )
    user_ids = rows["user_id"].to_pylist()
    votes = read(rows, user_ids, directions)
    count = np.bincount(votes.user, minlength=len(votes.names))
    judged = int((count >= config.min_votes).sum())
    found: dict[str, str] = {}
    if judged >= config.min_people:
        cohorts = bursts(votes, config)
        found = by_items(votes, cohorts, config) | by_direction(votes, cohorts, config, names)
    factors = np.array([config.factor if name in found else 1.0 for name in user_ids])
    return Brigade(factors, dict(sorted(found.items())), judged)
