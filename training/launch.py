"""One update in several processes of this machine, started, watched and ended by the process that asked for it.

The processes are those of torch's own launcher. They are given files alone, and say how it goes on in lines of JSON;
when the process that started them is gone, however it ended, they end too, so that no second update meets them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq
from pydantic import BaseModel

from training.errors import NotEnoughPreferences, TrainingError
from training.hardware import Hardware, refuse_unfit
from training.result import PROCESSES, RESULT, TrainResult, read_result
from training.update import Champion, Data, Run, method

_KEPT_LINES = 30
ERRORS: dict[str, type[TrainingError]] = {"NotEnoughPreferences": NotEnoughPreferences}
"""Errors of a process that keep their class, and with it their exit code."""


def train(name: str, config: BaseModel, champion: Champion, data: Data, run: Run) -> TrainResult:
    """The update `training.<name>.train(config, champion, data, None, run)`, over `run.hardware.processes`.

    Args:
        name: a method that learns from rows.
        config: its own `Config`.
        champion: where it starts.
        data: what it learns from.
        run: as of any update; only the first process speaks to `on_step`.

    Raises:
        TrainingError: the method runs in one process only, a process ended before it was done, or what the method
            raises.
        NotEnoughPreferences: too few usable rows.
    """
    refuse_unfit(run.hardware, processes=run.hardware.processes, method=name)
    method(name)
    done = run.output / RESULT
    if done.is_file():
        return read_result(done)
    spec = _write(name, config, champion, data, run)
    said: deque[str] = deque(maxlen=_KEPT_LINES)
    with _started(spec, run.hardware) as launched:
        reader = threading.Thread(target=_keep, args=(launched.stderr, said), daemon=True)
        reader.start()
        error = _follow(launched, run)
        code = launched.wait()
        reader.join(timeout=5)
    if error is not None:
        raise error
    if code or not done.is_file():
        raise TrainingError(
            "A process of the update ended before it was done.",
            got=f"exit code {code}; its last lines:\n" + "\n".join(said),
            next_step="run again: it goes on from the last checkpoint",
        )
    return read_result(done)


def _write(name: str, config: BaseModel, champion: Champion, data: Data, run: Run) -> Path:
    folder = run.output / PROCESSES
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(data.preferences, folder / "preferences.parquet")
    pq.write_table(data.served, folder / "served.parquet")
    until = data.learned_until
    spec = {
        "method": name,
        "config": json.loads(config.model_dump_json()),
        "champion": {
            "base": str(champion.base.resolve()),
            "base_id": champion.base_id,
            "adapter": str(champion.adapter.resolve()),
            "digest": champion.digest,
        },
        "preferences": str(folder / "preferences.parquet"),
        "served": str(folder / "served.parquet"),
        "learned_until": None if until is None else until.isoformat(),
        "output": str(run.output.resolve()),
        "cache": None if run.cache is None else str(run.cache.resolve()),
        "seed": run.seed,
        "hardware": run.hardware.model_dump(),
        "started_by": os.getpid(),
    }
    file = folder / "spec.json"
    file.write_text(json.dumps(spec, indent=1))
    return file.resolve()


@contextmanager
def _started(spec: Path, hardware: Hardware) -> Iterator[subprocess.Popen[str]]:
    """The launcher, in a group of its own; whatever is left of it at the end is ended."""
    processes = hardware.processes
    threads = max(1, (os.cpu_count() or 1) // processes)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "-m", "training.worker", str(spec)]
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    launched = subprocess.Popen(
        command,
        env={
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            **os.environ,
            "PYTHONPATH": path,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield launched
    finally:
        if launched.poll() is None:
            os.killpg(launched.pid, signal.SIGTERM)
            try:
                launched.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(launched.pid, signal.SIGKILL)
                launched.wait()


def _follow(launched: subprocess.Popen[str], run: Run) -> TrainingError | None:
    """Tell the steps on; the error that a process ended with, if it told one."""
    error = None
    for line in launched.stdout or ():
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # what a library prints
        if "step" in said and run.on_step:
            run.on_step(said["step"], said["steps"], said["metrics"])
        if "error" in said:
            told = said["error"]
            error = ERRORS.get(told.pop("class"), TrainingError)(told.pop("what"), **told)
    return error


def _keep(stream: IO[str] | None, lines: deque[str]) -> None:
    for line in stream or ():
        lines.append(line.rstrip())
