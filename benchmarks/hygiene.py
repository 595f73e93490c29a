"""What hygiene costs per text: scrubbing personal data, and MinHash signatures by rensa and by datasketch.

python benchmarks/hygiene.py --texts 5000
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from feedback.hygiene.near_duplicates import SHINGLE_CHARS, NearDuplicateConfig, dropped, fold, signatures
from feedback.hygiene.pii import PiiConfig, scrub


def texts(count: int, words: int, seed: int = 7) -> list[str]:
    """Invented text; every tenth word is a short number, as prose has."""
    draw = random.Random(seed)
    known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    return [
        " ".join(
            str(draw.randint(1, 999)) if draw.random() < 0.1 else draw.choice(known) for _ in range(words)
        )
        for _ in range(count)
    ]


def micros(work: Callable[[], object], count: int) -> float:
    """CPU microseconds for each text, the best of three."""
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best / count * 1e6


def by_datasketch(made: list[str]) -> None:
    """The same shingles, hashed and signed by datasketch."""
    from datasketch import MinHash

    sets = [
        [t[i : i + SHINGLE_CHARS].encode() for i in range(len(t) - SHINGLE_CHARS + 1)]
        for t in map(fold, made)
    ]
    MinHash.bulk(sets, num_perm=128)


def main() -> int:
    """Measure and print."""
    import numpy as np

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=5000)
    options = parser.parse_args()
    made = texts(options.texts, 60)
    personal = [text + " mail jo@example.org or call +44 20 7946 0958" for text in made]
    config, few = PiiConfig(), made[: max(1, options.texts // 20)]
    signed = signatures(made)
    rows = [
        ("scrub, nothing to find", micros(lambda: [scrub(text, config) for text in made], len(made))),
        (
            "scrub, an address and a number",
            micros(lambda: [scrub(text, config) for text in personal], len(made)),
        ),
        ("signatures by rensa", micros(lambda: signatures(made), len(made))),
        ("signatures by datasketch", micros(lambda: by_datasketch(few), len(few))),
        (
            "comparing",
            micros(lambda: dropped(np.arange(len(made)), signed, NearDuplicateConfig()), len(made)),
        ),
    ]
    table = Table("step", "CPU µs per text", title=f"{len(made)} texts of {len(made[0])} characters")
    for name, cost in rows:
        table.add_row(name, f"{cost:.1f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
