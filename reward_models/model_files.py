"""Files of models: which model lies in a directory, and how a reward model is kept in one, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_models.scorer import RewardModelError

if TYPE_CHECKING:
    import numpy as np

ABOUT = "reward_model.json"
"""Written last: where it is, the model is complete."""

_END_BYTES = 1 << 20


def digest(directory: Path) -> str:
    """SHA-256 in hex over names, sizes, beginnings and ends of a model's configuration and weight files.

    Exact enough to notice another model or another training of the same one, cheap for any size.
    """
    hashed = hashlib.sha256()
    for file in sorted([*directory.glob("*.json"), *directory.glob("*.safetensors")]):
        size = file.stat().st_size
        hashed.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            hashed.update(stream.read(_END_BYTES))
            stream.seek(max(0, size - _END_BYTES))
            hashed.update(stream.read())
    return hashed.hexdigest()


@contextmanager
def writing(directory: Path) -> Iterator[dict[str, Any]]:
    """A reward model's folder while its files are written; not loadable until the end, and then all of it.

    Yields what is to be written about the model, as JSON.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ABOUT).unlink(missing_ok=True)
    about: dict[str, Any] = {}
    yield about
    partial = directory / "reward_model.partial"
    partial.write_text(json.dumps(about, indent=1))
    partial.replace(directory / ABOUT)


@contextmanager
def reading(directory: Path, *also: type[Exception]) -> Iterator[dict[str, Any]]:
    """What was written about a reward model, while its other files are read.

    Args:
        directory: its folder.
        also: what else a reader raises at damaged files.

    Raises:
        RewardModelError: files are missing or unreadable.
    """
    damaged: tuple[type[Exception], ...] = (
        OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, *also
    )  # fmt: skip
    try:
        yield json.loads((directory / ABOUT).read_text())
    except damaged as error:
        raise RewardModelError(
            "The reward model cannot be read.", got=directory, next_step="palate train"
        ) from error


def write_arrays(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Numbers of a reward model, as `weights.npz`."""
    import numpy as np

    partial = directory / "weights.partial.npz"
    np.savez(partial, allow_pickle=False, **arrays)
    partial.replace(directory / "weights.npz")


def read_arrays(directory: Path) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote."""
    import numpy as np

    with np.load(directory / "weights.npz") as stored:
        return {name: stored[name] for name in stored.files}
