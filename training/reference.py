"""Log-probabilities under the champion: computed once, kept by content, never computed again.

They are the same in every epoch and every run that starts from the same champion, whatever its settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.sequences import Tokens, batches_by_length

Progress = Callable[[int, int], None]


def cache_file(directory: Path, base_id: str, adapter: Path | None, dtype: str) -> Path:
    """Where the log-probabilities of one policy lie: named by its base, its adapter's bytes and the precision."""
    content = hashlib.sha256(f"{base_id}\n{dtype}\n".encode())
    for file in sorted(adapter.glob("adapter_*")) if adapter else ():
        content.update(file.name.encode() + b"\n" + hashlib.sha256(file.read_bytes()).digest())
    return directory / f"logprobs-{content.hexdigest()[:32]}.arrow"


def reference_logprobs(
    model: Any,
    sequences: Sequence[Tokens],
    file: Path,
    *,
    batch_size: int,
    autocast: Callable[[], Any],
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """For each of B sequences (T_b,) nats, single precision, under the policy that the file is named after.

    Args:
        model: that policy; read only where a sequence is new.
        sequences: what to score.
        file: see `cache_file`; a damaged one is made again.
        batch_size: sequences per forward pass.
        autocast: makes the context that forward passes run in.
        progress: called with (done, all) of the new ones.
    """
    import torch

    from training.logprobs import token_logprobs

    known = _read(file)
    new = list({s.key: s for s in sequences if s.key not in known}.values())
    fresh: dict[str, np.ndarray] = {}
    training = model.training
    model.eval()
    try:
        for batch in batches_by_length([len(s) for s in new], batch_size):
            with torch.no_grad(), autocast():
                found = token_logprobs(model, [new[i] for i in batch])
            fresh |= {new[i].key: logp.float().cpu().numpy() for i, logp in zip(batch, found, strict=True)}
            if progress:
                progress(len(fresh), len(new))
    finally:
        model.train(training)
    if fresh:
        # Read again: another run may have written meanwhile, and what it found is as good.
        known = _read(file) | fresh
        _write(file, known)
    return [known[s.key] for s in sequences]


def _read(file: Path) -> dict[str, np.ndarray]:
    import pyarrow as pa

    if not file.is_file():
        return {}
    try:
        with pa.memory_map(str(file)) as source:
            table = pa.ipc.open_file(source).read_all()
        logps = table["logp"].combine_chunks()
        values, ends = logps.flatten().to_numpy(), logps.offsets.to_numpy()
        parts = np.split(values.copy(), ends[1:-1])
    except (pa.ArrowException, OSError, KeyError):
        return {}
    return dict(zip(table["key"].to_pylist(), parts, strict=True)) if table.num_rows else {}


def _write(file: Path, known: dict[str, np.ndarray]) -> None:
    import os

    import pyarrow as pa

    lengths = [len(v) for v in known.values()]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = pa.array(np.concatenate(list(known.values())).astype(np.float32))
    table = pa.table({"key": list(known), "logp": pa.ListArray.from_arrays(pa.array(offsets), values)})
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
