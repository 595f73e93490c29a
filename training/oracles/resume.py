"""Whether a stopped update that goes on ends where an undisturbed one ends, to the byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from training.oracles.finding import Comparison, oracle
from training.oracles.given import quiet

STOP_AT = 5


class _Stopped(Exception):
    """Ends an update as a kill would, between two steps."""


@oracle(
    "dpo",
    "kto",
    "online",
    "words",
    protects="a resumed run that skips rows, repeats them, or draws other random numbers",
    reference="verl PR#4199",
)
def resume(subject: Callable[..., Any] | None) -> Iterator[Comparison]:
    """Six steps of pairs with dropout, in one go and stopped in the fifth; the subject is called as `fit.fit`."""
    from training.fit import fit

    with quiet() as folder:
        whole, _ = _update(subject or fit, folder / "whole", None)
        _update(subject or fit, folder / "cut", STOP_AT)
        resumed, steps = _update(subject or fit, folder / "cut", None)
        yield Comparison("first step after the stop", float(steps[0]), float(STOP_AT))
        yield Comparison("adapter", resumed, whole)


def _update(fit: Callable[..., Any], output: Path, stop_at: int | None) -> tuple[str, list[int]]:
    """The adapter's digest and the steps that were made."""
    import contextlib

    from training import dpo, tiny
    from training.adapter import save_adapter
    from training.oracles.items import objective
    from training.update import Champion, Run

    loss, items = objective("dpo")
    steps: list[int] = []

    def on_step(step: int, _total: int, _metrics: dict[str, float]) -> None:
        steps.append(step)
        if step == stop_at:
            raise _Stopped

    champion = Champion(tiny.base(), tiny.BASE_ID, output.parent / "champion")
    save_adapter(tiny.policy(dropout=0.1), tiny.BASE_ID, champion.adapter)
    settings = dpo.Config(learning_rate=1e-2, epochs=3.0, save_every_steps=2, warmup_share=0.0)
    with contextlib.suppress(_Stopped):
        fit(
            settings, champion, Run(output, 7, on_step=on_step), items, loss,
            per_step=4, micro_batch=2, metrics={}, left_out={},
        )  # fmt: skip
    file = output / "adapter" / "adapter_model.safetensors"
    return (hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else "none"), steps
