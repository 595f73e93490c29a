"""Files of models: which model lies in a directory, and how a reward model is kept in one, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_models.scorer import RewardModelError

if TYPE_CHECKING:
    import numpy as np

ABOUT = "reward_model.json"
"""Written last: where it is, the model is complete."""
WEIGHTS = "weights.npz"
"""The file of a reward model's numbers."""
PEOPLE = "people.parquet"
"""The file of what it believes of people."""

_END_BYTES = 1 << 20


class OtherFeatures(RewardModelError):
    """A reward model weighs other named features than texts have now."""


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
    """A reward model's folder while files of fixed names are written; not loadable until the end, and then all of it.

    An older model there is gone once this begins; `replacing` keeps it until the new one is whole.

    Yields what is to be written about the model, as JSON.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ABOUT).unlink(missing_ok=True)
    about: dict[str, Any] = {}
    yield about
    _write_about(directory, about)


@dataclass
class Draft:
    """A reward model that is being written beside an older one, if there is one.

    Attributes:
        directory: of both.
        about: what is to be written about the new one, as JSON.
        older: files of the older one: the name each goes by, and its name in the directory.
        files: the same of the new one.
    """

    directory: Path
    about: dict[str, Any]
    older: Mapping[str, str]
    files: dict[str, str]

    def path(self, name: str) -> Path:
        """Where to write the file that goes by this name: never where the older model has it."""
        plain = Path(name)
        self.files[name] = name if self.older.get(name) != name else f"{plain.stem}.other{plain.suffix}"
        return self.directory / self.files[name]


@contextmanager
def replacing(directory: Path) -> Iterator[Draft]:
    """A reward model's folder while files are written with `Draft.path`.

    Killed at any instant it holds the older model or the new one, each whole: files of both lie beside each other, the
    JSON says whose are whose, and renaming it is what makes the new one the model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    older = _files(directory)
    draft = Draft(directory, {}, older, {})
    yield draft
    named = {name: file for name, file in draft.files.items() if name != file}
    _write_about(directory, draft.about | ({"files": named} if named else {}))
    for file in set(older.values()) - set(draft.files.values()):
        (directory / file).unlink(missing_ok=True)


def file_of(directory: Path, about: Mapping[str, Any], name: str) -> Path:
    """Where the file lies that goes by this name in the model that `about` is about."""
    return directory / Path(str(about.get("files", {}).get(name, name))).name


def _files(directory: Path) -> dict[str, str]:
    """By the name they go by, the files that a model in the directory may need; none where there is no model."""
    try:
        about = json.loads((directory / ABOUT).read_text())
        files = {name: file_of(directory, about, name) for name in (WEIGHTS, PEOPLE)}
    except (OSError, ValueError, AttributeError):
        return {}
    return {name: file.name for name, file in files.items() if file.is_file()}


def _write_about(directory: Path, about: Mapping[str, Any]) -> None:
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
        OtherFeatures: the reader raised it.
    """
    damaged: tuple[type[Exception], ...] = (
        OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, *also
    )  # fmt: skip
    try:
        yield json.loads((directory / ABOUT).read_text())
    except OtherFeatures:
        raise  # nothing is damaged
    except damaged as error:
        raise RewardModelError(
            "The reward model cannot be read.", got=directory, next_step="palate train"
        ) from error


def refuse_other_features(about: Mapping[str, Any], names: Sequence[str], directory: Path) -> None:
    """Raise unless a linear model weighs exactly these named features, in this order.

    Args:
        about: what was written about it, its `feature_weights` in the order of its columns.
        names: the features that texts have now.
        directory: where it lies.

    Raises:
        OtherFeatures: it was fitted to others, by another version of palate.
    """
    stored = list(about["feature_weights"])
    if stored == list(names):
        return
    differences = [f"without {name}" for name in names if name not in stored]
    differences += [f"with {name}" for name in stored if name not in names]
    raise OtherFeatures(
        f"The reward model in {directory} was fitted to other named features than texts have now.",
        got=f"{len(stored)} features: {', '.join(differences) or 'in another order'}",
        allowed=f"{len(names)} features: {', '.join(names)}",
        next_step="palate train",
    )


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Numbers of a reward model as an .npz file; complete or not there at all."""
    import numpy as np

    partial = path.with_suffix(".partial.npz")
    np.savez(partial, allow_pickle=False, **arrays)
    partial.replace(path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote."""
    import numpy as np

    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}
