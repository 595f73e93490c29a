"""A prompt and a completion as tokens, and many of them as one padded batch."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """One completion of one prompt."""

    prompt: tuple[int, ...]
    """Token ids of the prompt, at least one."""
    completion: tuple[int, ...]
    """Token ids of the completion, its end-of-turn token included."""
    trained: tuple[bool, ...] | None = None
    """Which of the completion's tokens a loss may read; None is all."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)

    @property
    def key(self) -> str:
        """sha256 of both lists of ids: names what a log-probability was computed of."""
        read = self.trained or ()
        content = array("q", [len(self.prompt), len(read), *self.prompt, *self.completion, *read]).tobytes()
        return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Padded:
    """B sequences side by side, padded on the right."""

    ids: Tensor
    """(B, T) token ids."""
    mask: Tensor
    """(B, T) 1 where a token is real."""
    rows: Tensor
    """(N,) row of each of the N tokens that a loss reads, in the order of the sequences."""
    places: Tensor
    """(N,) position whose hidden state predicts that token."""
    targets: Tensor
    """(N,) the tokens themselves."""
    lengths: list[int]
    """How many of them each sequence has; they sum to N."""


def padded(sequences: Sequence[Tokens], device: Any = None) -> Padded:
    """Put sequences side by side, as wide as the longest.

    Args:
        sequences: at least one.
        device: where the tensors go.
    """
    import torch

    width = max(len(s) for s in sequences)
    ids = torch.zeros((len(sequences), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    rows: list[int] = []
    places: list[int] = []
    targets: list[int] = []
    lengths: list[int] = []
    for row, s in enumerate(sequences):
        ids[row, : len(s)] = torch.tensor(s.prompt + s.completion)
        mask[row, : len(s)] = 1
        read = [k for k in range(len(s.completion)) if s.trained is None or s.trained[k]]
        rows += [row] * len(read)
        places += [len(s.prompt) - 1 + k for k in read]
        targets += [s.completion[k] for k in read]
        lengths.append(len(read))

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return Padded(
        ids.to(device),
        mask.to(device),
        tensor(rows),
        tensor(places),
        tensor(targets),
        lengths,
    )


def batches_by_length(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Positions in batches of at most `size`, alike in length, the longest batch first.

    The longest goes first so that a batch too large for the memory fails at once and not after hours.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    return [order[start : start + size] for start in range(0, len(order), size)]


def own_batches(lengths: Sequence[int], size: int, rank: int, processes: int) -> list[tuple[list[int], bool]]:
    """The batches by length that fall to one of several processes, as many to each.

    Processes that average gradients, or gather the weights of a layer, wait for each other in every pass: where the
    batches do not divide evenly, a process that has none left repeats one that counts for nothing.

    Args:
        lengths: of all sequences, in every process the same.
        size: sequences of a batch, at most.
        rank: which process, from 0.
        processes: how many there are.

    Returns:
        Positions of each batch, and whether it counts.
    """
    batches = batches_by_length(lengths, size)
    idle = [(batches[-1], False)] * (-len(batches) % processes) if batches else []
    return [*((batch, True) for batch in batches), *idle][rank::processes]
