"""Weights that differ between the members of an ensemble: the Bayesian bootstrap, over people.

Source: Rubin 1981, The Bayesian Bootstrap (Annals of Statistics 9). Unlike a draw with replacement it loses nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_FEWEST_CLUSTERS = 8  # a bootstrap of fewer says little: then prompts vary, else rows
_LIGHTEST = 1e-3  # of the average weight; a row of no weight would be left out


def clusters(rows: pa.Table) -> np.ndarray:
    """(N,) codes of what varies together: the person of each row, or the prompt where nobody is known.

    With few people a bootstrap over them says little, and with one nothing: then it is prompts that vary, and with
    few of them rows.
    """
    import pyarrow.compute as pc

    people = pc.binary_join_element_wise("user", rows["user_id"], " ")  # null where nobody is known
    prompts = pc.binary_join_element_wise("prompt", rows["prompt_key"], " ")
    for names in (pc.coalesce(people, prompts), prompts):
        codes = np.asarray(pc.rank(names, tiebreaker="dense")) - 1
        if len(codes) and codes.max() + 1 >= _FEWEST_CLUSTERS:
            return codes.astype(int)
    return np.arange(rows.num_rows)


def weights_of_members(codes: np.ndarray, members: int, seed: int) -> np.ndarray:
    """(M, N) factors on the rows' weights, 1 on average over clusters, never 0.

    Rubin 1981: weights of C clusters are flat Dirichlet, that is exponentials divided by their sum.

    Args:
        codes: (N,) cluster of each row, 0 to C - 1.
        members: M.
        seed: of the draws.
    """
    if not len(codes):
        return np.ones((members, 0))
    drawn = np.random.default_rng([seed, 0]).standard_exponential((members, int(codes.max()) + 1))
    drawn = np.maximum(drawn / drawn.mean(axis=1, keepdims=True), _LIGHTEST)
    return np.asarray(drawn[:, codes])
