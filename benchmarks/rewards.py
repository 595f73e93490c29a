"""Every figure promised of the reward models, measured in one go; exit code 1 where one falls short of its promise.

All on real people's data, with seeds and intervals; `../shared/data`, or the folder that PALATE_SHARED_DATA names.
"""

from __future__ import annotations

import sys

from promises import suite

PARTS = {
    "a crowd in one pass": ["rewards_ladder.py"],
    "people nobody has met": ["rewards_unseen.py"],
    "copies, forward in time": ["rewards_copy.py"],
    "ranks, thumbs, and who rates": ["rewards_oasst.py"],
    "values of policies": ["rewards_bandit.py"],
    "speed": ["rewards_speed.py"],
    "a brigade": ["rewards_brigade.py"],
    "oracles": ["rewards_oracles.py"],
}

if __name__ == "__main__":
    sys.exit(suite("Reward models: promised against measured", PARTS))
