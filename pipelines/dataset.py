"""Datasets: immutable preference tables, each named by its content.

A version is a folder `datasets/<version>/` with `preferences.parquet` and `manifest.json`. It is written
beside, fsynced and renamed, so a folder of that name is complete; loading checks sizes and checksums all the
same, because disks and people change files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from .errors import DatasetError
from .workspace import Layout, fsync_path, staging_folder, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = "preferences.parquet"
MANIFEST = "manifest.json"
NEWEST = "newest"
_VERSION = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Dataset:
    """One version that was checked: its rows and manifest are the ones that were written."""

    version: str
    path: Path
    manifest: dict[str, Any]
    reused: bool = False
    """Whether a build found this version already present and left it alone."""

    def rows(self, split: str | None = None) -> pa.Table:
        """Preference rows ordered by `preference_id`, of one split (train, evaluation, test) or of all."""
        import pyarrow.parquet as pq

        return pq.read_table(self.path / ROWS, filters=None if split is None else [("split", "=", split)])


def content_version(rows: pa.Table, config_digest: str) -> str:
    """The name of a dataset: 16 hex digits of the SHA-256 of its rows and of the configuration.

    Args:
        rows: preference rows ordered by `preference_id`.
        config_digest: digest of the configuration that made them.

    Returns:
        The same name for the same rows, however they were sharded, in whatever order the events came.
    """
    digest = hashlib.sha256(config_digest.encode())
    for batch in rows.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            digest.update(orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z))
            digest.update(b"\n")
    return digest.hexdigest()[:16]


def write(layout: Layout, version: str, rows: pa.Table, manifest: Mapping[str, Any]) -> Dataset:
    """Writes a version unless a sound one of that name is there; a damaged one is replaced.

    Args:
        layout: the workspace.
        version: from `content_version`.
        rows: preference rows ordered by `preference_id`.
        manifest: what else is to be recorded; the checksums are added here.
    """
    import pyarrow.parquet as pq

    final = layout.datasets / version
    if final.exists():
        try:
            found = load(layout.root, version)
            return Dataset(found.version, found.path, found.manifest, reused=True)
        except DatasetError:
            pass  # damaged: replaced below by what it should have been
    layout.datasets.mkdir(parents=True, exist_ok=True)
    with staging_folder(layout, "dataset") as staging:
        folder = staging / version
        folder.mkdir()
        pq.write_table(rows, folder / ROWS, compression="zstd")
        content = {
            **manifest,
            "version": version,
            "rows": rows.num_rows,
            "files": {ROWS: {"bytes": (folder / ROWS).stat().st_size, "sha256": _sha256(folder / ROWS)}},
        }
        content["digest"] = _digest(content)
        (folder / MANIFEST).write_bytes(
            orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        )
        for name in (ROWS, MANIFEST):
            fsync_path(folder / name)
        fsync_path(folder)
        if final.exists():
            final.rename(staging / "damaged")
        folder.rename(final)
        fsync_path(layout.datasets)
    return load(layout.root, version)


def point_newest(layout: Layout, version: str) -> None:
    """Makes a version the one that `load` gives when none is named."""
    write_atomically(layout.datasets / NEWEST, version.encode())


def versions(workspace: Path) -> list[str]:
    """Names of the versions present, whether or not they are sound."""
    folder = Layout(workspace).datasets
    return sorted(path.name for path in folder.glob("*") if path.is_dir() and _VERSION.fullmatch(path.name))


def load(workspace: Path, version: str | None = None) -> Dataset:
    """Opens a version after checking that it is whole.

    Args:
        workspace: the workspace directory.
        version: 16 hex digits; None for the last one built.

    Raises:
        DatasetError: no such version, or it is incomplete or damaged.
    """
    layout = Layout(workspace)
    if version is None:
        version = _newest(layout)
    if not _VERSION.fullmatch(version):
        raise DatasetError("That is no dataset version.", got=version[:80], allowed="16 hex digits")
    path = layout.datasets / version
    if not path.is_dir():
        raise DatasetError(
            f"There is no dataset {version} in {workspace}.",
            allowed=versions(workspace) or "none was built yet",
            next_step="palate build",
        )
    return Dataset(version, path, _checked_manifest(path, version))


def _newest(layout: Layout) -> str:
    try:
        return (layout.datasets / NEWEST).read_text().strip()
    except FileNotFoundError:
        raise DatasetError(f"No dataset was built in {layout.root}.", next_step="palate build") from None


def _checked_manifest(path: Path, version: str) -> dict[str, Any]:
    """The manifest, if it and the files it names are as they were written."""

    def damaged(why: str) -> DatasetError:
        return DatasetError(
            f"Dataset {version} is damaged and was not loaded.",
            got=why,
            next_step="palate build (makes it again)",
        )

    try:
        manifest: dict[str, Any] = orjson.loads((path / MANIFEST).read_bytes())
        if manifest["digest"] != _digest(manifest) or manifest["version"] != version:
            raise damaged(f"{MANIFEST} was changed")
        for name, wanted in manifest["files"].items():
            if (path / name).stat().st_size != wanted["bytes"] or _sha256(path / name) != wanted["sha256"]:
                raise damaged(f"{name} was changed or cut off")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DatasetError):
            raise
        raise damaged(f"{type(error).__name__}: {error}") from error
    return manifest


def _digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the manifest without its own digest."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
