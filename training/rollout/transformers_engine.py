"""Rollouts in the process that trains: a merged replica, decoded token by token on any device.

Each prompt is read once for its whole group. Rows that have ended are dropped from the cache at once, and waiting
groups take the free places. A row's draws come from its own seed, made of the run's, the prompt's place and the
member's: it does not depend on which other rows there are, but for the last bits that a matrix product of another
size may give, which flip a token about as often as a uniform number falls that close to an edge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.rollout.decoding import Name, Rows, advanced, drawn, joined, kept, prefilled
from training.rollout.engine import Group, Member, RolloutError, Sampling, check

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from training.rollout.replica import Replica


class TransformersEngine:
    """See the module, and `training.rollout.engine.Engine`."""

    def __init__(self, base: Path, *, slots: int = 64, dtype: torch.dtype | None = None) -> None:
        """An engine that samples nothing yet.

        Args:
            base: directory of the base model.
            slots: rows decoded side by side; a larger group still goes in one piece.
            dtype: number format; None is the one this machine is fast in.
        """
        self.base, self.slots, self.dtype = base, slots, dtype
        self._version = -1
        self._replica: Replica | None = None

    @property
    def version(self) -> int:
        """See `Engine.version`."""
        return self._version

    def load(self, policy: Any) -> None:
        """See `Engine.load`; base weights that are adapted stay the policy's own tensors.

        Raises:
            RolloutError: the adapter is not plain LoRA.
        """
        from reward_models.hardware import inference_dtype
        from training.rollout.replica import Replica

        self._replica = Replica(self.base, policy, self.dtype or inference_dtype())

    def update(self, adapter: Mapping[str, Tensor], version: int) -> None:
        """See `Engine.update`."""
        self._loaded().update(adapter)
        self._version = version

    def generate(
        self, prompts: Sequence[Sequence[int]], group_size: int, sampling: Sampling, seed: int
    ) -> Iterator[Group]:
        """See `Engine.generate`."""
        check(sampling, prompts)
        if self._version < 0:
            raise RolloutError("The engine was given no policy to sample from.", next_step="call update")
        model = self._loaded().model
        # Alike in length together, the longest first: least padding, and what does not fit the memory fails at once.
        waiting = deque(sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i)))
        written: dict[Name, _Draft] = {}
        rows: Rows | None = None
        while waiting or rows is not None:
            free = (self.slots - (len(rows.names) if rows else 0)) // group_size
            start = [waiting.popleft() for _ in range(min(len(waiting), free if rows else max(free, 1)))]
            if start:
                rows = joined(rows, prefilled(model, [prompts[i] for i in start], start, group_size))
                written |= {(i, m): _Draft(seed, i, m, sampling) for i in start for m in range(group_size)}
            assert rows is not None
            rows = _one_token(model, rows, written, sampling)
            yield from self._finished(written, rows, group_size)

    def _finished(self, written: dict[Name, _Draft], rows: Rows | None, group_size: int) -> Iterator[Group]:
        """Groups none of whose members is still in `rows`; they leave `written`."""
        open_ones = {place for place, _ in (rows.names if rows else [])}
        for place in sorted({place for place, _ in written} - open_ones):
            members = tuple(written.pop((place, m)).member() for m in range(group_size))
            yield Group(place, members, self._version)

    def _loaded(self) -> Replica:
        if self._replica is None:
            raise RolloutError("The engine has no model yet.", next_step="call load")
        return self._replica


class _Draft:
    """A completion being written, and the uniform numbers of its draws."""

    def __init__(self, seed: int, place: int, member: int, sampling: Sampling) -> None:
        self.uniform = np.random.default_rng([seed, place, member]).random(sampling.max_new_tokens)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finished = False

    def member(self) -> Member:
        return Member(tuple(self.ids), tuple(self.logprobs), self.finished)


def _one_token(model: Any, rows: Rows, written: dict[Name, _Draft], sampling: Sampling) -> Rows | None:
    """Draw each row's next token; rows that end with it are dropped. None when none is left."""
    import torch

    drafts = [written[name] for name in rows.names]
    uniform = torch.tensor(
        [d.uniform[len(d.ids)] for d in drafts], dtype=torch.float64, device=rows.logits.device
    )
    tokens, logprobs = drawn(rows.logits, uniform, sampling)
    for draft, token, logprob in zip(drafts, tokens.tolist(), logprobs.tolist(), strict=True):
        draft.ids.append(token)
        draft.logprobs.append(logprob)
        draft.finished = token in sampling.ends
    keep = [i for i, d in enumerate(drafts) if not d.finished and len(d.ids) < sampling.max_new_tokens]
    if not keep:
        return None
    if len(keep) < len(drafts):
        rows = kept(rows, keep)
        tokens = tokens[torch.tensor(keep, device=tokens.device)]
    return advanced(model, rows, tokens)
