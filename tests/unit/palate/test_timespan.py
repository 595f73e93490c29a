"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from palate.commands.ledger import time_range
from palate.config import ConfigError
from palate.timespan import moment

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-02-03", datetime(2026, 2, 3, tzinfo=UTC)),
        ("2026-02-03T04:05:06Z", datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)),
        ("2026-02-03T04:05:06+02:00", datetime(2026, 2, 3, 2, 5, 6, tzinfo=UTC)),
        ("2026-02-03 04:05", datetime(2026, 2, 3, 4, 5, tzinfo=UTC)),
        ("90s", NOW - timedelta(seconds=90)),
        ("30min", NOW - timedelta(minutes=30)),
        ("1.5h", NOW - timedelta(minutes=90)),
        (" 7d ", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(weeks=2)),
        (None, None),
    ],
)
def test_what_is_meant(text: str | None, meant: datetime | None) -> None:
    assert moment(text, now=NOW) == meant


@pytest.mark.parametrize("text", ["", "yesterday", "7", "d7", "7y", "2026-13-01", "-3d", "9" * 40 + "w"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ConfigError, match="no moment") as refused:
        moment(text, now=NOW)
    assert refused.value.exit_code == 2


def test_a_range_in_which_nothing_can_be_is_refused() -> None:
    assert time_range("2d", "1d", now=NOW) == (NOW - timedelta(days=2), NOW - timedelta(days=1))
    assert time_range(None, "1d", now=NOW)[0] is None
    for since, until in (("1d", "2d"), ("2026-03-01", "2026-03-01")):
        with pytest.raises(ConfigError, match="Nothing can have arrived"):
            time_range(since, until, now=NOW)
