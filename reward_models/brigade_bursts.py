"""Windows of time in which more people voted than usual, and who voted in little else."""

from __future__ import annotations

import numpy as np

from reward_models.brigade_votes import Config, Votes

_HOUR_US = 3_600_000_000


def bursts(votes: Votes, config: Config) -> list[np.ndarray]:
    """Codes of people most of whose votes lie in one unusually busy window, for each such window."""
    from scipy.stats import poisson

    timed = votes.time_us >= 0
    if not timed.any():
        return []
    user, hours = votes.user[timed], votes.time_us[timed] / _HOUR_US
    count = np.bincount(votes.user, minlength=len(votes.names))
    found: list[tuple[float, np.ndarray]] = []
    for window in config.windows_h:
        for shift in (0.0, window / 2):
            place = np.floor((hours - shift) / window).astype(int)
            seen = np.unique(np.stack([place, user], axis=1), axis=0)  # people, not votes: one may be busy
            first = place.min()
            people = np.bincount(seen[:, 0] - first)
            p = poisson.sf(people - 1, _usual(people, 24 // window))
            for i in np.flatnonzero((p < 1e-3) & (people >= config.min_group)):
                inside = np.bincount(user[place == i + first], minlength=len(count))
                found.append((float(p[i]), np.flatnonzero((2 * inside >= count) & (inside > 0))))
    found.sort(key=lambda each: each[0])
    cohorts = {tuple(c.tolist()): c for _, c in found if config.min_group <= len(c) < len(votes.names)}
    return list(cohorts.values())[: config.most_bursts]


def _usual(people: np.ndarray, a_day: int) -> np.ndarray:
    """(W,) how many are expected in each window: the median of the same time of other days, or a fair part of all."""
    fair = people.mean()
    usual = np.empty(len(people))
    for phase in range(a_day):
        usual[phase::a_day] = np.median(people[phase::a_day]) if phase < len(people) else fair
    return np.maximum(usual, fair)
