"""Every figure promised of the reward models, measured in one go; exit code 1 where one falls short of its promise.

All on real people's data, with seeds and intervals; `../shared/data`, or the folder that PALATE_SHARED_DATA names.
"""

from __future__ import annotations

import sys

from promises import suite

PARTS = {
    "1. a crowd in one pass": ["rewards_ladder.py"],
    "2. people nobody has met": ["rewards_unseen.py"],
}

if __name__ == "__main__":
    sys.exit(suite("Reward models: promised against measured", PARTS))
