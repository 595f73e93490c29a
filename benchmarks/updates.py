"""Every figure promised of policy updates that is measured so far; exit code 1 where one falls short of its promise."""

from __future__ import annotations

import sys

from promises import suite

PARTS = {
    "speed": ["updates_speed.py"],
    "what users feel, and a taste that turns": ["updates_learn.py"],
    "shuffled labels": ["updates_shuffled.py"],
    "people's rankings": ["updates_oasst.py"],
}

if __name__ == "__main__":
    sys.exit(suite("Policy updates: promised against measured", PARTS))
