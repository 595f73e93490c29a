"""What an implicit signal is worth: learned where people said explicitly what they thought of the same reply.

A copy, a share, a retry or a next message is not a verdict. Where somebody also gave a thumb, a rating or a vote on
that reply, one sees how often the two agree, and that is what the signal is worth everywhere else:

    p = P(the explicit verdict agrees | kind of signal, length of the reply)        weight = |2 p - 1|

which is the expected vote of a signal that is right with probability p; below one half it speaks for the opposite,
and its label is turned. p is a logistic regression whose intercepts and slopes of each kind are drawn to nothing
(p = 1/2) by Gaussian priors, so that a kind nobody has ever confirmed weighs nothing, not a constant. Weights are
taken at the posterior mean of p, which MacKay's approximation gives in closed form (Neural Computation 4, 1992,
"The evidence framework applied to classification networks", eq. 4.2):

    p = sigmoid(m / sqrt(1 + pi v / 8))        m, v: mean and variance of the log-odds
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import pyarrow as pa


class Config(BaseModel):
    """What implicit signals are worth."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rules: tuple[str, ...] = ("retry", "copy", "share", "next_message")
    """Rules whose rows are implicit; rows of all other rules are people's explicit word."""
    prior_std: float = Field(default=1.0, gt=0)
    """Standard deviation of the prior of each kind's log-odds of agreeing, around zero."""
    length_std: float = Field(default=0.5, ge=0)
    """Of the change in them with each standard deviation of the reply's length."""
    min_agreements: int = Field(default=10, ge=1)
    """With fewer explicit verdicts beside a kind of signal, its rows weigh nothing."""


@dataclass(frozen=True)
class Kind:
    """What was found of one kind of signal.

    Attributes:
        rows: its rows.
        compared: those of them on whose reply the same person gave a verdict.
        agreed: share of those that agree.
        weight: mean weight of all its rows now.
        turned: rows whose label was turned.
    """

    rows: int
    compared: int
    agreed: float
    weight: float
    turned: int


@dataclass(frozen=True)
class Worth:
    """What each row weighs after the mapping, and why.

    Attributes:
        weight: (N,) between 0 and 1 for implicit rows, as it was for the others.
        turned: (N,) bool: the row speaks for the opposite.
        kinds: by the rule.
    """

    weight: np.ndarray
    turned: np.ndarray
    kinds: Mapping[str, Kind]


def worth(rows: pa.Table, config: Config) -> Worth:
    """What implicit rows are worth beside the explicit ones among them.

    Args:
        rows: N of PREFERENCES, of one split.
        config: settings.
    """
    columns = rows.select(
        ["rule", "prompt_key", "chosen", "rejected", "label", "margin", "weight", "user_id"]
    ).to_pydict()
    rule = np.array(columns["rule"], dtype=object)
    weight = np.asarray(columns["weight"], dtype=np.float64).copy()
    turned = np.zeros(len(rule), dtype=bool)
    implicit = np.flatnonzero(np.isin(rule, list(config.rules)))
    if not len(implicit):
        return Worth(weight, turned, {})
    agrees = _agreements(columns, implicit, set(config.rules))
    names, code = np.unique(rule[implicit].astype(str), return_inverse=True)
    words = np.log1p([len(_spoken_of(columns, i).split()) for i in implicit.tolist()])
    known = ~np.isnan(agrees)
    counts = np.bincount(code[known], minlength=len(names))
    p = _posterior_mean(code, words, agrees, len(names), config)
    p = np.where(counts[code] >= config.min_agreements, p, 0.5)
    weight[implicit] = np.abs(2 * p - 1)
    turned[implicit] = p < 0.5
    kinds = {}
    for k, name in enumerate(names.tolist()):
        own = code == k
        seen = agrees[own & known]
        kinds[name] = Kind(
            int(own.sum()), len(seen), float(seen.mean()) if len(seen) else float("nan"),
            float(weight[implicit[own]].mean()), int(turned[implicit[own]].sum()),
        )  # fmt: skip
    return Worth(weight, turned, kinds)


def apply(rows: pa.Table, found: Worth) -> pa.Table:
    """The rows with their new weights; turned ones have their replies swapped, or their label where there is one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    turned = pa.array(found.turned)
    swap = pc.and_(turned, pc.is_valid(rows["rejected"]))
    changed = {
        "weight": pa.array(found.weight, pa.float64()),
        "chosen": pc.if_else(swap, rows["rejected"], rows["chosen"]),
        "rejected": pc.if_else(swap, rows["chosen"], rows["rejected"]),
        "label": pc.if_else(
            pc.and_(turned, pc.is_valid(rows["label"])), pc.invert(rows["label"]), rows["label"]
        ),
    }
    for name, values in changed.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


def _spoken_of(columns: Mapping[str, Sequence[Any]], i: int) -> str:
    """The reply that the signal was about: a pair comes from a reply that was asked for again."""
    rejected = columns["rejected"][i]
    return str(columns["chosen"][i] if rejected is None else rejected)


def _agreements(
    columns: Mapping[str, Sequence[Any]], implicit: np.ndarray, implicit_rules: set[str]
) -> np.ndarray:
    """(M,) share of the explicit verdicts on each signal's reply that agree with it; NaN where there is none.

    The same person's verdict counts; where they gave none, or are not known, nobody else's does: others may have
    other tastes.
    """
    verdicts: dict[tuple[str, str, str | None], list[float]] = defaultdict(list)
    each = zip(
        columns["rule"], columns["prompt_key"], columns["chosen"], columns["rejected"], columns["label"],
        columns["margin"], columns["user_id"], strict=True,
    )  # fmt: skip
    for rule, prompt, chosen, rejected, label, margin, user in each:
        if rule in implicit_rules or (rejected is not None and margin == 0):
            continue
        verdicts[prompt, chosen, user].append(0.0 if label is False else 1.0)
        if rejected is not None:
            verdicts[prompt, rejected, user].append(0.0)
    found = np.full(len(implicit), np.nan)
    for at, i in enumerate(implicit.tolist()):
        about = columns["prompt_key"][i], _spoken_of(columns, i), columns["user_id"][i]
        if about[2] is None:
            continue
        if said := verdicts.get(about):
            liked = columns["rejected"][i] is None and columns["label"][i] is not False
            found[at] = np.mean(said) if liked else 1 - np.mean(said)
    return found


def _posterior_mean(
    code: np.ndarray, words: np.ndarray, agrees: np.ndarray, kinds: int, config: Config
) -> np.ndarray:
    """(M,) mean of p of every implicit row; see the module's text."""
    spread = words.std()
    z = (words - words.mean()) / (spread if spread > 0 else 1.0)
    x = np.zeros((len(code), 2 * kinds))
    x[np.arange(len(code)), code] = 1.0
    x[np.arange(len(code)), kinds + code] = z
    precision = np.repeat([config.prior_std**-2, max(config.length_std, 1e-6) ** -2], kinds)
    seen = ~np.isnan(agrees)
    mean, covariance = _laplace(x[seen], agrees[seen], precision)
    log_odds = x @ mean
    variance = np.einsum("mi,ij,mj->m", x, covariance, x)
    return _sigmoid(log_odds / np.sqrt(1 + np.pi * variance / 8))


def _laplace(x: np.ndarray, y: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode and covariance of a Bayesian logistic regression of y (M,) in [0, 1] on x (M, K)."""
    from scipy.optimize import minimize

    def negative(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = x @ w
        loss = float((np.logaddexp(0, z) - y * z).sum() + 0.5 * (precision * w**2).sum())
        return loss, x.T @ (_sigmoid(z) - y) + precision * w

    mode = minimize(negative, np.zeros(len(precision)), jac=True, method="BFGS").x
    p = _sigmoid(x @ mode)
    return mode, np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x + np.diag(precision))


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(z, -30, 30))))
