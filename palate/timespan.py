"""Moments as people write them on a command line: a date, a time, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from palate.config import ConfigError

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def moment(text: str | None, *, now: datetime) -> datetime | None:
    """The moment that a text means; None for None.

    Args:
        text: RFC 3339 (`2026-03-01T12:00:00Z`), a date (its first moment in UTC), or a duration before now such
            as `90s`, `30min`, `24h`, `7d`, `2w`. A time without a zone is UTC.
        now: the clock, aware.

    Raises:
        ConfigError: it is none of these; exit code 2.
    """
    if text is None:
        return None
    try:
        if ago := _AGO.fullmatch(text.strip()):
            return now - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        found = datetime.fromisoformat(text.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            "That is no moment.",
            got=text[:80],
            allowed="2026-03-01, 2026-03-01T12:00:00Z, or a duration before now: 30min, 24h, 7d, 2w",
        ) from None
