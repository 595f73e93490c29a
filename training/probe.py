"""What an update costs, measured: three steps of the real loop on the real rows, then thrown away.

The steps run in a process of their own. So its peak memory is that of the update and of nothing else, and where the
machine has too little of it, it is the probe that is killed and not whoever asked. One of the steps is made of the
longest rows: no step of the update is wider. The others are rows drawn by the seed, like those of any step. Whichever
comes first warms up; what that takes counts once.
"""

from __future__ import annotations

import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.errors import TrainingError
from training.hardware import Hardware
from training.probe_memory import Memory
from training.sequences import batches_by_length
from training.settings import UpdateSettings
from training.update import Champion

if TYPE_CHECKING:
    from training.policy_trainer import Item, Objective

STEPS = 3
Told = Callable[[int, int, float], None]
"""Called with (step, all steps, tokens per second) while it runs."""
Attempt = Callable[[Any, Path, float, Told], "Probe"]
"""Tries work in a folder; the third argument is when it was asked for, seconds since 1970."""


class ProbeFailed(TrainingError):
    """The steps that were to be tried did not run to their end."""


@dataclass(frozen=True)
class Work:
    """An update that learns from items, as its method hands it to `training.fit`."""

    settings: UpdateSettings
    champion: Champion
    items: Sequence[Item]
    """What is learned from, without references."""
    objective: Objective
    per_step: int
    """Items per optimizer step; where `steps` says which, it is 1, as for `fit`."""
    micro_batch: int
    seed: int
    steps: Sequence[Sequence[int]] | None = None
    """Places of the items of each step, where the method puts its steps together itself."""
    check: Callable[[Sequence[Item]], dict[str, float]] | None = None
    """What the method asks of its items once their references are known."""
    hardware: Hardware = field(default_factory=Hardware)
    """Of the process that tries it."""


@dataclass(frozen=True)
class Size:
    """How much an update reads."""

    rows: int
    steps: int
    tokens: int
    """Of all optimizer steps, prompts and replies, without padding."""
    tokens_once: int
    """Of one pass over the rows."""
    reference_tokens: int
    """Of the passes without gradients before training: each sequence once for each reference that is asked for."""
    longest: int
    """Tokens of the longest sequence."""


@dataclass(frozen=True)
class Step:
    """One optimizer step as it was measured."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class Probe:
    """What three steps took."""

    steps: tuple[Step, ...]
    """In the order they ran; the first one warms up."""
    start_s: float
    """Importing libraries and loading the model."""
    reference_s_per_token: float
    """Of a pass without gradients."""
    save_s: float
    """Of writing a checkpoint."""
    checkpoint_bytes: int
    memory: tuple[Memory, ...]
    """Of the machine's and, with a GPU, of its own."""
    warning: str = ""
    """What the method's check would refuse, as far as the tried rows tell."""


@dataclass(frozen=True)
class Duration:
    """Seconds an update would take; the range is that of the measured steps' speed, no interval of confidence."""

    seconds: float
    low: float
    high: float


def size(work: Work) -> Size:
    """How much an update reads."""
    per_item = np.array([item.tokens for item in work.items], dtype=np.int64)
    once = int(per_item.sum())
    if work.steps is None:
        steps = math.ceil(work.settings.epochs * math.ceil(len(work.items) / work.per_step))
        tokens = round(work.settings.epochs * once)
    else:
        steps = math.ceil(work.settings.epochs * len(work.steps))
        tokens = round(work.settings.epochs * sum(int(per_item[list(step)].sum()) for step in work.steps))
    referenced = {s.key: len(s) for item in work.items for s in item.sequences[: item.referenced]}
    references = 1 if work.settings.base_kl_budget is None else 2
    longest = max((len(s) for item in work.items for s in item.sequences), default=0)
    return Size(len(work.items), steps, tokens, once, references * sum(referenced.values()), longest)


def duration(size: Size, probe: Probe, save_every_steps: int) -> Duration:
    """Seconds of the whole update: loading, warming up, references, steps by their tokens, checkpoints."""
    first, *timed = probe.steps
    rates = [step.seconds / step.tokens for step in timed]
    mean = sum(step.seconds for step in timed) / sum(step.tokens for step in timed)
    fixed = (
        probe.start_s
        + max(0.0, first.seconds - first.tokens * mean)
        + size.reference_tokens * probe.reference_s_per_token
        + size.steps // save_every_steps * probe.save_s
    )
    return Duration(*(fixed + size.tokens * rate for rate in (mean, min(rates), max(rates))))


def tried_steps(work: Work) -> list[list[int]]:
    """Places of the items of the three steps: the one that needs most memory, and two as they come.

    Raises:
        TrainingError: there is no item.
    """
    if not work.items:
        raise TrainingError("Nothing can be tried without rows.", got="0 rows")
    # A part of a batch is padded to its longest sequence, whatever its other sequences are.
    widths = [max(map(len, item.sequences)) for item in work.items]
    dice = np.random.default_rng(work.seed)
    if work.steps is None:
        longest = batches_by_length(widths, work.per_step)[0]
        order = np.resize(dice.permutation(len(widths)), (STEPS - 1) * work.per_step).tolist()
        size = min(work.per_step, len(widths))
        return [longest, *(order[k * work.per_step :][:size] for k in range(STEPS - 1))]
    longest = list(max(work.steps, key=lambda step: max(widths[i] for i in step)))
    others = np.resize(dice.permutation(len(work.steps)), STEPS - 1).tolist()
    return [longest, *(list(work.steps[k]) for k in others)]


def probe(work: Work, on_step: Told | None = None) -> Probe:
    """Try three steps in a process of their own; nothing stays behind.

    Raises:
        ProbeFailed: they did not run to their end; says whether memory was short.
    """
    from training.probe_steps import attempt

    return apart(attempt, _cut(work), on_step)


def apart(attempt: Attempt, work: Any, on_step: Told | None = None) -> Probe:
    """Run an attempt in a process and a folder of its own.

    Args:
        attempt: tries `work` in a folder, tells its steps, and returns what they took; a function of a module.
        work: what it tries; it is sent to the process.
        on_step: who watches.

    Raises:
        ProbeFailed: it did not run to its end.
    """
    context = multiprocessing.get_context("spawn")
    listen, speak = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="palate-probe-") as folder:
        started = time.time()
        process = context.Process(
            target=_child, args=(attempt, work, Path(folder), started, speak), daemon=True
        )
        process.start()
        speak.close()  # else the pipe would not end with the child
        try:
            return _heard(listen, process, on_step)
        finally:
            process.kill()
            process.join()
            listen.close()


def _child(attempt: Attempt, work: Any, folder: Path, started: float, speak: Connection) -> None:
    try:
        speak.send(attempt(work, folder, started, lambda *step: speak.send(step)))
    except Exception as error:  # whatever it is, whoever asked has to hear it
        speak.send(f"{type(error).__name__}: {error}")


def _cut(work: Work) -> Work:
    """The work with the tried items alone, so that no more than these has to be sent."""
    steps = tried_steps(work)
    places = sorted({i for step in steps for i in step})
    at = {place: k for k, place in enumerate(places)}
    return replace(
        work, items=[work.items[i] for i in places], steps=[[at[i] for i in step] for step in steps]
    )


def _heard(listen: Connection, process: Any, on_step: Told | None) -> Probe:
    """What the child says, until it has said all."""
    while True:
        try:
            said: Any = listen.recv()
        except EOFError:
            process.join()
            raise _died(process.exitcode) from None
        if isinstance(said, Probe):
            return said
        if isinstance(said, str):
            raise ProbeFailed("The steps that were tried failed.", got=said, next_step="palate doctor")
        if on_step:
            on_step(*said)


def _died(code: int | None) -> ProbeFailed:
    memory = code == -9
    return ProbeFailed(
        "The machine ended the steps that were tried: most likely memory is short."
        if memory
        else "The steps that were tried ended without a word.",
        got=f"exit code {code}",
        next_step="set a smaller micro-batch or max_tokens for the method in [train], or close other programs",
    )
