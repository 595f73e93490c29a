"""How much memory this process came to, and how much there was for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

SPARE = 1.1
"""What an update is given beyond the peak of three of its steps: memory is cut up differently in a longer run."""
_HOST = Path("/")
_UNLIMITED = 1 << 60
"""A control group without a limit says a number beyond this, or `max`."""


@dataclass(frozen=True)
class Memory:
    """Where memory went, in bytes."""

    device: str
    """`cpu` or `cuda`."""
    libraries: int
    """In use before there was a model."""
    weights: int
    """Base model and adapter; 0 where they could not be told apart from the rest."""
    optimizer: int
    """State of the optimizer."""
    peak: int
    """The most there was at any moment."""
    free: int | None
    """What the process could have had when it started; None where the system does not say."""

    @property
    def activations(self) -> int:
        """What is left of the peak: activations, gradients, batches, buffers."""
        return max(0, self.peak - self.libraries - self.weights - self.optimizer)

    @property
    def fits(self) -> bool | None:
        """Whether there is enough, with room to spare; None where that is not known."""
        return None if self.free is None else self.peak * SPARE <= self.free


@dataclass(frozen=True)
class Before:
    """What a process used, and what it could have had, before it loaded a model."""

    libraries: int
    free: int | None
    free_cuda: int | None


def before() -> Before:
    """As it is now. With a GPU this opens it."""
    import torch

    cuda = int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None
    used, free = peak_bytes(), available_bytes()
    # What this process has already is no longer free, but was there for it.
    return Before(used, None if free is None else free + used, cuda)


def memory(start: Before, weights: int, optimizer: int) -> tuple[Memory, ...]:
    """What this process came to at most; with a GPU, first there."""
    host = peak_bytes()
    if start.free_cuda is None:
        return (Memory("cpu", start.libraries, weights, optimizer, host, start.free),)
    import torch

    own = int(torch.cuda.max_memory_reserved())
    return (
        Memory("cuda", 0, weights, optimizer, own, start.free_cuda),
        Memory("cpu", start.libraries, 0, 0, host, start.free),
    )


def peak_bytes() -> int:
    """The most memory this process ever had.

    Linux counts it anew for a new program only in `VmHWM`; what `getrusage` says began with the parent's.
    """
    import resource

    found = _number(Path("/proc/self/status"), "VmHWM:")
    if found is not None:
        return found * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def available_bytes(root: Path = _HOST) -> int | None:
    """Memory that can be had without pushing others out, within the limit of the control group; None if unknown.

    Args:
        root: where `proc` and `sys` are.
    """
    kibibytes = _number(root / "proc/meminfo", "MemAvailable:")
    if kibibytes is None:
        return None
    group = _left_in_group(root / "sys/fs/cgroup")
    return kibibytes * 1024 if group is None else min(kibibytes * 1024, group)


def _left_in_group(root: Path) -> int | None:
    """What the control group leaves, in its version 2 or 1; files it has read can be dropped and count as free."""
    for folder, limit, usage in (
        (root, "memory.max", "memory.current"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        most, used = (_number(folder / name) for name in (limit, usage))
        if most is not None and used is not None and most < _UNLIMITED:
            return max(0, most - used + (_number(folder / "memory.stat", "inactive_file ") or 0))
    return None


def _number(file: Path, line: str = "") -> int | None:
    """The first whole number of the first line that starts so; None where there is none."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return None
    for found in text.splitlines():
        if found.startswith(line):
            word = found[len(line) :].split()[:1]
            return int(word[0]) if word and word[0].isdigit() else None
    return None
