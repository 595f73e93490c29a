"""Every figure promised of the streams, measured in one go; exit code 1 where one falls short of its promise.

Each `streams_*.py` runs in its own process, one after the other, because these machines are noisy and ratios within
one run are what counts.
"""

from __future__ import annotations

import sys

from promises import suite

PARTS = {
    "throughput, 1e5 events": ["streams_throughput.py", "--events", "100000", "--rounds", "3"],
    "throughput, 1e6 events": ["streams_throughput.py", "--events", "1000000"],
    "broker": ["streams_broker.py"],
    "incremental": ["streams_incremental.py", "--events", "1000000"],
    "client": ["streams_client.py"],
    "soak": ["streams_soak.py", "--kills", "1000", "--minutes", "27", "--consumers", "4"],
}

if __name__ == "__main__":
    sys.exit(suite("Streams: promised against measured", PARTS))
