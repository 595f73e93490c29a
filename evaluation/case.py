"""Everything a person needs to decide about one candidate: what a report shows and what MLflow keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from evaluation.calibration import Calibration
from evaluation.compare import Comparison
from evaluation.estimates import Estimate
from evaluation.k_shot import KShot
from evaluation.verdicts import Outcome, Verdict, overall


@dataclass(frozen=True)
class Case:
    """The case for or against a candidate.

    A run that only trains a reward model has no candidate: `comparison` and `rows` are then None.
    """

    title: str
    """What was run, in a few words."""
    simulated: bool
    """Whether the users were simulated; then every page says so."""
    created: datetime
    """When, with a time zone."""
    comparison: Comparison | None = None
    """Candidate against champion on held-out prompts."""
    rows: pa.Table | None = None
    """The compared replies, as `evaluation.compare.ROWS`."""
    verdicts: Sequence[Verdict] = ()
    """One by gate."""
    learned: Mapping[str, Estimate] = field(default_factory=dict)
    """What training learned, on held-out data: `{"Reward model accuracy": Estimate, ...}`."""
    calibration: Calibration | None = None
    """Of the reward model that judges the replies."""
    k_shot: Mapping[str, KShot] = field(default_factory=dict)
    """How well each reward model knows people it never met after k of their votes: `{"Reward model": KShot, ...}`."""
    training_curve: Sequence[Mapping[str, float]] = ()
    """By logged step: `step` and any of `loss`, `margin`, `accuracy`."""
    dataset: Mapping[str, Any] = field(default_factory=dict)
    """The manifest of the dataset that was trained on."""
    lineage: Mapping[str, str] = field(default_factory=dict)
    """What this rests on: dataset version, base, adapter digests, seeds, run."""
    satisfaction: Mapping[str, Estimate] | None = None
    """True satisfaction of simulated users: `champion`, `candidate` and, if known, `difference`."""
    notes: Sequence[str] = ()
    """Anything else the reader should know."""
    next_command: str = ""
    """What to type next."""

    @property
    def outcome(self) -> Outcome:
        """All gates in one word."""
        return overall(self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain JSON (without the replies)."""
        return {
            "title": self.title,
            "simulated": self.simulated,
            "created": self.created.isoformat(),
            "outcome": self.outcome,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "comparison": self.comparison.to_dict() if self.comparison else None,
            "learned": {name: estimate.to_dict() for name, estimate in self.learned.items()},
            "calibration": self.calibration.to_dict() if self.calibration else None,
            "k_shot": {name: curve.to_dict() for name, curve in self.k_shot.items()},
            "satisfaction": {k: v.to_dict() for k, v in (self.satisfaction or {}).items()},
            "dataset": dict(self.dataset),
            "lineage": dict(self.lineage),
            "notes": list(self.notes),
            "next_command": self.next_command,
        }
