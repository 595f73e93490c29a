"""Which code made a result: versions and a digest of the sources, for manifests."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

_DEPENDENCIES = (
    "apache-beam",
    "deltalake",
    "great-expectations",
    "numpy",
    "orjson",
    "pandas",
    "pyarrow",
    "pydantic",
)
_PACKAGES = ("feedback", "pipelines")


@functools.cache
def versions() -> dict[str, str]:
    """Installed versions of what takes part in building a dataset."""
    return {name: _version(name) for name in _DEPENDENCIES}


def code_version(own: Sequence[str] = ()) -> dict[str, str]:
    """The release of palate, and a digest of the packages that make datasets.

    The digest also tells apart two states of a checkout that carry the same release number.

    Args:
        own: names of parts, of which those of the form `module:object` are a project's own; the files of their
            modules are in the digest too. What these import is not: an own part is one file.
    """
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    for module in sorted({name.partition(":")[0] for name in own if ":" in name}):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            digest.update(module.encode() + b"\0" + Path(spec.origin).read_bytes() + b"\0")
    return {"palate": _version("palate"), "sources_sha256": digest.hexdigest()}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
