"""Does a reward model like long replies more than people do, and how to take that back out.

Only differences between replies to one prompt count: d of rewards, l of log(1 + words), y = 1, 0, -1 of people's
choice. A pair has no first reply, so correlations are those of every pair in both orders:

    pearson    sum d l / sqrt(sum d^2 sum l^2)
    spearman   the same of signed ranks
    people     sum y l / sqrt(sum y^2 sum l^2)                   how people's own choices go with length
    expected   sum (P(win) - P(loss)) l / sqrt(sum y^2 sum l^2)  what `people` would be if the model were right
    excess     expected - people

People may honestly prefer longer replies, so `pearson` alone accuses nobody; and it is not to be compared with
`people`, as choices are noisy and a reward is not. `excess` compares like with like: it is zero in expectation for a
calibrated model, however much people love length, and positive where the model loves it more.

To debias, a slope times l is subtracted from d. The slope that makes `expected` equal to `people` is, for the tie model
of `ties`, the maximum likelihood one of length beside the reward (its score is sum (y - (P(win) - P(loss))) l / 2); the
one that makes `pearson` zero is the least-squares one. Dubois, Galambosi, Liang and Hashimoto, "Length-Controlled
AlpacaEval", arXiv 2404.04475, 2024, likewise fit length beside quality and set it to zero. That a policy otherwise
learns length instead of quality: Shen et al., "Loose lips sink ships", arXiv 2310.05199, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from reward_models import model_files, ties
from reward_models.features import WORD
from reward_models.scorer import INNER, Chat, RewardModelError, Rewards, Scorer, load
from reward_models.temperature import parts

if TYPE_CHECKING:
    import pyarrow as pa

Target = Literal["people", "zero"]
NAMES = ("pearson", "spearman", "people", "expected", "excess")
SLOPE_RIDGE = 0.01  # precision of the prior on the slope: keeps it finite where the longer reply always wins


def log_words(completions: Sequence[str]) -> np.ndarray:
    """(B,) log(1 + words), as the named feature `log_words` has it."""
    return np.log1p([len(WORD.findall(text)) for text in completions]).reshape(len(completions))


def moments(difference: np.ndarray, lean: np.ndarray, choice: np.ndarray, longer: np.ndarray) -> np.ndarray:
    """(N, 9) what each pair adds to the sums that `correlations` reads; any resampling of rows may sum them.

    Ranks are those of all N pairs.

    Args:
        difference: (N,) reward of the first reply less the second's.
        lean: (N,) predicted P(win) - P(loss) of the first reply, calibrated: overconfidence looks like excess.
        choice: (N,) 1 where it won, -1 where it lost, 0 for a tie.
        longer: (N,) log words of the first reply less the second's.
    """
    d, y, x = (np.asarray(values, dtype=np.float64) for values in (difference, choice, longer))
    rank_d, rank_x = _signed_ranks(d), _signed_ranks(x)
    return np.stack(
        [d * x, d * d, x * x, rank_d * rank_x, rank_d**2, rank_x**2, lean * x, y * x, y * y], axis=1
    )


def correlations(sums: np.ndarray) -> np.ndarray:
    """(..., 5) `NAMES` of (..., 9) summed `moments`; NaN where nothing varies."""
    dx, dd, xx, rank_dx, rank_dd, rank_xx, leans, chosen, decided = np.moveaxis(np.asarray(sums), -1, 0)
    people, expected = _over(chosen, decided * xx), _over(leans, decided * xx)
    pearson, spearman = _over(dx, dd * xx), _over(rank_dx, rank_dd * rank_xx)
    return np.stack([pearson, spearman, people, expected, expected - people], axis=-1)


def _over(top: np.ndarray, square: np.ndarray) -> np.ndarray:
    return np.divide(top, np.sqrt(square), out=np.full(np.shape(top), np.nan), where=square > 0)


def _signed_ranks(values: np.ndarray) -> np.ndarray:
    """Centred ranks of values among themselves and their opposites."""
    from scipy.stats import rankdata

    return np.sign(values) * (rankdata(np.abs(values)) - 0.5) if len(values) else np.zeros(0)


def within(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(N,) or (N, F) values less the mean of their group (N,), e.g. of the replies to one prompt."""
    _, codes = np.unique(np.asarray(groups).astype(str), return_inverse=True)
    counts = np.bincount(codes)
    columns = np.asarray(values, dtype=np.float64).reshape(len(codes), -1).T
    means = [np.bincount(codes, weights=column) / np.maximum(counts, 1) for column in columns]
    centred = [column - mean[codes] for column, mean in zip(columns, means, strict=True)]
    return np.stack(centred, axis=1).reshape(np.shape(values)) if centred else np.asarray(values, dtype=float)


def debias(
    rewards: np.ndarray,
    log_words: np.ndarray,
    groups: np.ndarray,
    strength: float = 1.0,
    style: np.ndarray | None = None,
) -> np.ndarray:
    """Rewards without what length, and style if given, explains of them within groups, by least squares.

    Group means stay. This removes honest preferences for length, too: `strength` says how much.

    Args:
        rewards: (B,)
        log_words: (B,)
        groups: (B,) which prompt each reply answers.
        strength: share that is removed, 0 to 1.
        style: (B, F) other columns whose influence is removed.

    Raises:
        RewardModelError: a number is not finite, or the strength is not in [0, 1].
    """
    if not 0 <= strength <= 1:
        raise RewardModelError(
            "A share of the length's influence is removed.",
            got=strength,
            allowed="0 to 1",
            next_step="pass 1",
        )
    r = np.asarray(rewards, dtype=np.float64)
    columns = np.column_stack([log_words] if style is None else [log_words, style]).astype(np.float64)
    if not (np.isfinite(r).all() and np.isfinite(columns).all()):
        raise RewardModelError(
            "Debiasing needs finite rewards and features.", got="NaN or infinite ones",
            next_step="look at the scorer that made them",
        )  # fmt: skip
    if not len(r):
        return r
    x = within(columns, groups)
    slopes = np.linalg.lstsq(x, within(r, groups), rcond=None)[0]
    return np.asarray(r - strength * (x @ slopes))


def slope(
    probabilities: np.ndarray,
    choice: np.ndarray,
    longer: np.ndarray,
    target: Target = "people",
    weight: np.ndarray | None = None,
) -> float:
    """Reward per log word that is to be subtracted; see the module's text.

    Args:
        probabilities: (N, 3) predicted win, tie, loss of the first reply.
        choice: (N,) 1 where it won, -1 where it lost, 0 for a tie.
        longer: (N,) log words of the first reply less the second's.
        target: `people`: expected as they choose; `zero`: no correlation of rewards with length.
        weight: (N,) of the pairs; all alike when None.

    Raises:
        RewardModelError: no pair whose lengths differ, or no such target.
    """
    d, log_nu = parts(probabilities)
    x, y = np.asarray(longer, dtype=np.float64), np.asarray(choice, dtype=np.float64)
    w = np.ones(len(x)) if weight is None else np.asarray(weight, dtype=np.float64)
    if not (w * x).any():
        raise RewardModelError(
            "A length slope needs pairs whose lengths differ.",
            got=f"{len(x)} pairs",
            next_step="palate build",
        )
    if target == "zero":
        return float((w * d) @ x / ((w * x) @ x))
    if target != "people":
        raise RewardModelError(
            "There is no such target.", got=target, allowed="people, zero", next_step="choose one"
        )

    def score(added: float) -> float:
        return float((w * (y - _lean(d + added * x, log_nu))) @ x / 2 - SLOPE_RIDGE * added)

    from scipy.optimize import brentq

    # The score falls in `added`; |y - lean| <= 2 bounds how far from zero its root can lie.
    far = float((w * np.abs(x)).sum()) / SLOPE_RIDGE + 1
    return -float(brentq(score, -far, far, xtol=1e-10))


def _lean(difference: np.ndarray, log_nu: np.ndarray) -> np.ndarray:
    """(N,) P(win) - P(loss)."""
    from scipy.special import softmax

    p = softmax(np.stack([difference / 2, log_nu, -difference / 2], axis=1), axis=1)
    return np.asarray(p[:, ties.WIN] - p[:, ties.LOSS])


@dataclass(frozen=True)
class LengthControlled:
    """A scorer less what it gives for length beyond its due. See `reward_models.scorer.Scorer`."""

    scorer: Scorer
    slope: float
    """Reward per log word that is subtracted."""
    centre: float = 0.0
    """Log words at which rewards stay as they are; differences do not depend on it."""

    @property
    def trained_on(self) -> frozenset[str]:
        """`preference_id`s the scorer was fitted on."""
        return self.scorer.trained_on

    def score(
        self,
        prompts: Sequence[Chat],
        completions: Sequence[str],
        user_ids: Sequence[str | None] | None = None,
        agents: Sequence[str | None] | None = None,
    ) -> Rewards:
        """Length-controlled rewards of B completions; the slope counts as known exactly."""
        raw = self.scorer.score(prompts, completions, user_ids, agents)
        return Rewards(raw.mean - self.slope * (log_words(completions) - self.centre), raw.std)

    def probabilities(self, difference: np.ndarray) -> np.ndarray:
        """(N, 3) win, tie, loss for differences of this scorer's rewards."""
        return self.scorer.probabilities(difference)

    def save(self, directory: Path) -> None:
        """Write the scorer into a folder of `directory`, then `reward_model.json`, which makes it loadable."""
        with model_files.writing(directory) as about:
            self.scorer.save(directory / INNER)
            about |= {"method": "length_bias", "slope": self.slope, "centre": self.centre}


def load_length_controlled(directory: Path, base: Path, cache_dir: Path | None = None) -> LengthControlled:
    """Load what `LengthControlled.save` wrote.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    with model_files.reading(directory) as about:
        inner = load(directory / INNER, base, cache_dir)
        return LengthControlled(inner, float(about["slope"]), float(about["centre"]))


def length_controlled(scorer: Scorer, rows: pa.Table, target: Target = "people") -> LengthControlled:
    """The scorer with the slope that rows ask for, which only ever takes out of what it gives for length.

    On the rows it was fitted on, a scorer that has length among its features loves it no more than people do, and less
    where a ridge shrinks it: `people` then changes nothing there. Rows that it has not seen tell more.

    Args:
        scorer: a fitted one.
        rows: PREFERENCES rows; unpaired ones are passed over. Without a pair whose lengths differ nothing is taken out.
        target: see `slope`.
    """
    import pyarrow.compute as pc

    columns = rows.filter(pc.is_valid(rows["rejected"])).to_pydict()
    n, texts = len(columns["chosen"]), columns["chosen"] + columns["rejected"]
    rewards = scorer.score(columns["prompt"] * 2, texts, columns["user_id"] * 2, columns["agent"] * 2).mean
    words = log_words(texts)
    # Chosen first throughout: turning a pair round changes no sum.
    choice = np.array([margin != 0 for margin in columns["margin"]], dtype=float)
    p = scorer.probabilities(rewards[:n] - rewards[n:])
    longer, weight = words[:n] - words[n:], np.asarray(columns["weight"], dtype=np.float64)
    if not (weight * longer).any():
        return LengthControlled(scorer, 0.0)
    found = slope(p, choice, longer, target, weight)
    # A ridge makes a scorer care less for length than people do: that is caution, and is not to be undone here.
    own = slope(p, choice, longer, "zero", weight)
    found = float(np.clip(found, min(0.0, own), max(0.0, own)))
    return LengthControlled(scorer, found, float(words.mean()))
