"""From a broker to the tables: events a second, with one consumer process and with two.

    python benchmarks/streams_broker.py --events 200000

Events of 1.2 KB are written first, to four partitions; then as many processes as asked for drain the topic
into a fresh workspace: read, validate, check expectations, write Parquet, commit. Two processes are members
of a group, so they share the partitions. The clock runs from the moment the processes are told to start,
after their imports, until every offset is committed. The broker runs on the same machine and takes its share of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.promises import Check, finish  # noqa: E402
from benchmarks.streams_events import write_events  # noqa: E402
from tests.broker import running  # noqa: E402

PARTITIONS = 4
PROMISED_PER_S = 20_000
SETTLE_S = 10.0
"""The tests' broker writes its whole log again for some seconds after every change, which takes most of a core."""


def consume(url: str, workspace: str, share: bool, ready: Any, go: Any, answers: Any) -> None:
    """One consumer: imports, waits for the start, drains."""
    import great_expectations.expectations  # noqa: F401
    import kafka  # noqa: F401

    from pipelines import ingest_transforms, processes  # noqa: F401
    from pipelines.follow import follow

    wait(processes.start(processes.available(), "kafka"))
    ready.release()
    go.wait()
    summary = follow(
        url,
        workspace=Path(workspace),
        once=True,
        source_config={"share": share, "group": Path(workspace).name},
    )
    times = os.times()
    answers.put((summary.received, times.user + times.system))


def drain(url: str, workspace: Path, processes: int) -> tuple[float, float, list[int]]:
    """Seconds until everything is committed, processor seconds, and what each process took."""
    context = multiprocessing.get_context("spawn")
    ready, go, answers = context.Semaphore(0), context.Event(), context.Queue()
    workers = [
        context.Process(target=consume, args=(url, str(workspace), processes > 1, ready, go, answers))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    started = time.monotonic()
    go.set()
    taken = [answers.get() for _ in workers]
    seconds = time.monotonic() - started
    for worker in workers:
        worker.join()
    return seconds, sum(cpu for _, cpu in taken), [count for count, _ in taken]


def main() -> int:
    """Prints a line for each number of processes; 1 when rows are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path, help="write the result there as well")
    options = parser.parse_args()
    from pipelines import events_table
    from pipelines.workspace import Layout

    results = []
    with tempfile.TemporaryDirectory(prefix="palate-broker-") as name:
        folder = Path(name)
        size = write_events(folder / "events.jsonl", options.events)
        with running(folder) as broker:
            topic = broker.topic(PARTITIONS)
            with (folder / "events.jsonl").open("rb") as file:
                written = broker.send(topic, (line.rstrip(b"\n") for line in file))
            print(f"{written} events of {size / written:.0f} bytes in {PARTITIONS} partitions", flush=True)
            for processes in options.processes:
                time.sleep(SETTLE_S)
                workspace = folder / f"w{processes}"
                seconds, cpu_s, taken = drain(broker.url(topic), workspace, processes)
                table = events_table.open_table(Layout(workspace))
                rows = sum(file.rows for file in events_table.files(table))
                results.append(
                    {
                        "processes": processes,
                        "events": rows,
                        "complete": rows == written,
                        "seconds": round(seconds, 2),
                        "events_per_s": round(rows / seconds),
                        "events_per_cpu_s": round(rows / cpu_s),
                    }
                )
                print(
                    f"{processes} process(es): {rows} rows in {seconds:.1f} s = {rows / seconds:,.0f} events/s, "
                    f"{rows / cpu_s:,.0f} per processor second of the consumers (imports included); "
                    f"each took {taken}",
                    flush=True,
                )
    best = max(result["events_per_s"] for result in results)
    checks = [
        Check(
            "end to end from a broker, events/s on this machine",
            f">= {PROMISED_PER_S:,}",
            f"{best:,}",
            best >= PROMISED_PER_S,
        ),
        Check("every record is a row", "yes", str(results), all(result["complete"] for result in results)),
    ]
    return finish(checks, options.json, results)


if __name__ == "__main__":
    raise SystemExit(main())
