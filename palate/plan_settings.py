"""Settings of `palate plan`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Config(BaseModel):
    """What a plan asks about the people who will judge the update."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    difference: float = Field(default=0.02, gt=0, le=0.5)
    """Smallest difference in the share of satisfied verdicts that a canary is to see; 0.02 is two points."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Chance of seeing a difference where there is none, of a two-sided test."""
    power: float = Field(default=0.8, gt=0.5, lt=1)
    """Chance of seeing one that is there."""
    canary_share: float = Field(default=0.1, gt=0, le=0.5)
    """Share of the traffic that the candidate serves."""
    window_days: float = Field(default=14.0, ge=1)
    """What counts as the newest traffic, in days of event time before the newest event."""
    longest_days: float = Field(default=365.0, gt=0)
    """A canary that would take longer is called insufficient traffic."""
    champion_pairs: int = Field(default=64, ge=0)
    """At most this many held-out pairs are read to see how many the champion ranks right; 0 reads none."""
