"""Every figure promised of policy updates that is measured so far; exit code 1 where one falls short of its promise."""

from __future__ import annotations

import sys

from promises import suite

PARTS = {
    "speed": ["updates_speed.py"],
    "what users feel": ["updates_learn.py"],
}

if __name__ == "__main__":
    sys.exit(suite("Policy updates: promised against measured", PARTS))
