"""Datasets: immutable preference tables, each named by its content.

A version is a folder `datasets/<version>/` with `manifest.json` and its rows. Up to `PLAIN_ROWS` rows they
are one file, `preferences.parquet`, ordered by `preference_id`. More are left as the pieces in which the builds
wrote them: `rows-<n>.parquet` are links to files that a later version shares, and `keep-<n>.npy` says which
rows of each belong to this version; `export` writes them as one file. Either way the folder is whole in itself,
whatever else is removed.

It is written beside, fsynced and renamed, so a folder of that name is complete; loading checks sizes and
checksums all the same, because disks and people change files.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from .errors import DatasetError, disk_full, full_disk_error
from .workspace import Layout, fsync_path, staging_folder, write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = "preferences.parquet"
PLAIN_ROWS = 100_000
"""Up to so many rows a version is one plain file that anything can open."""
MANIFEST = "manifest.json"
NEWEST = "newest"
_GROUP_ROWS = 8_192
_VERSION = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Dataset:
    """One version that was checked: its rows and manifest are the ones that were written."""

    version: str
    path: Path
    manifest: dict[str, Any]
    reused: bool = False
    """Whether a build found this version already present and left it alone."""

    def rows(self, split: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Preference rows ordered by `preference_id`.

        Args:
            split: of one split (train, evaluation, test); of all when None.
            columns: only these; all when None.
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if ROWS in self.manifest["files"]:
            wanted = None if split is None else [("split", "=", split)]
            return pq.read_table(self.path / ROWS, columns=columns, filters=wanted)
        needed = None if columns is None else sorted({*columns, "preference_id", "split"})
        tables = []
        for path, keep in self.files():
            table = pq.read_table(path, columns=needed).filter(pa.array(keep))
            tables.append(table if split is None else table.filter(pc.equal(table["split"], split)))
        table = pa.concat_tables(tables).sort_by("preference_id")
        return table if columns is None else table.select(list(columns))

    def files(self) -> Iterator[tuple[Path, np.ndarray]]:
        """The Parquet files that its rows lie in, each with (rows,) bool: which of them are in this version."""
        import pyarrow.parquet as pq

        if ROWS in self.manifest["files"]:
            yield self.path / ROWS, np.ones(self.manifest["rows"], dtype=bool)
            return
        for number in range(self.manifest["pieces"]):
            path = self.path / _piece_name(number)
            keep = np.unpackbits(np.load(self.path / _keep_name(number))).astype(bool)
            yield path, keep[: pq.read_metadata(path).num_rows]


@dataclass(frozen=True)
class Piece:
    """Rows of one file that belong to a dataset.

    Attributes:
        path: A Parquet file of preference rows that never changes.
        sha256: Its checksum.
        keep: (rows,) bool; which of its rows belong to the dataset.
    """

    path: Path
    sha256: str
    keep: np.ndarray


def content_version(preference_ids: np.ndarray, config_digest: str) -> str:
    """The name of a dataset: 16 hex digits of the SHA-256 of its rows and of the configuration.

    Args:
        preference_ids: (N,) S32, the ids of its rows in any order; each is a SHA-256 of the row's content.
        config_digest: digest of the configuration that made them.

    Returns:
        The same name for the same rows, however they were divided, in whatever order the events came.
    """
    prefixes = preference_ids.view(">u8").reshape(-1, 4)[:, 0].astype(np.uint64)
    order = np.argsort(prefixes, kind="stable")
    if (np.diff(prefixes[order]) == 0).any():  # two ids that begin alike; hardly ever
        order = np.argsort(preference_ids, kind="stable")
    digest = hashlib.sha256(config_digest.encode())
    digest.update(preference_ids[order].tobytes())
    return digest.hexdigest()[:16]


def write(layout: Layout, version: str, pieces: Sequence[Piece], manifest: Mapping[str, Any]) -> Dataset:
    """Writes a version unless a sound one of that name is there; a damaged one is replaced.

    Args:
        layout: the workspace.
        version: from `content_version`.
        pieces: where its rows are.
        manifest: what else is to be recorded; the checksums are added here.
    """
    final = layout.datasets / version
    if final.exists():
        try:
            found = load(layout.root, version)
            return Dataset(found.version, found.path, found.manifest, reused=True)
        except DatasetError:
            pass  # damaged: replaced below by what it should have been
    layout.datasets.mkdir(parents=True, exist_ok=True)
    count = sum(int(piece.keep.sum()) for piece in pieces)
    with staging_folder(layout, "dataset") as staging:
        folder = staging / version
        folder.mkdir()
        files = (_write_plain if count <= PLAIN_ROWS else _link_pieces)(folder, pieces)
        content = {**manifest, "version": version, "rows": count, "files": files, "pieces": len(pieces)}
        content["digest"] = _digest(content)
        (folder / MANIFEST).write_bytes(
            orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        )
        for name in (*files, MANIFEST):
            fsync_path(folder / name)
        fsync_path(folder)
        if final.exists():
            final.rename(staging / "damaged")
        folder.rename(final)
        fsync_path(layout.datasets)
    return Dataset(version, final, content)


def _write_plain(folder: Path, pieces: Sequence[Piece]) -> dict[str, dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from feedback.tables import PREFERENCES

    tables = [pq.read_table(piece.path).filter(pa.array(piece.keep)) for piece in pieces if piece.keep.any()]
    table = pa.concat_tables([PREFERENCES.empty_table(), *tables]).sort_by("preference_id")
    pq.write_table(
        table, folder / ROWS, compression="zstd", row_group_size=_GROUP_ROWS, write_page_checksum=True
    )
    return {ROWS: {"bytes": (folder / ROWS).stat().st_size, "sha256": _sha256(folder / ROWS)}}


def _link_pieces(folder: Path, pieces: Sequence[Piece]) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    for number, piece in enumerate(pieces):
        rows, keep = folder / _piece_name(number), folder / _keep_name(number)
        try:
            rows.hardlink_to(piece.path)
        except OSError:  # a file system without links
            shutil.copyfile(piece.path, rows)
        np.save(keep, np.packbits(piece.keep))
        files[rows.name] = {"bytes": rows.stat().st_size, "sha256": piece.sha256}
        files[keep.name] = {"bytes": keep.stat().st_size, "sha256": _sha256(keep)}
    return files


def _piece_name(number: int) -> str:
    return f"rows-{number}.parquet"


def _keep_name(number: int) -> str:
    return f"keep-{number}.npy"


def export(dataset: Dataset, path: Path) -> None:
    """Writes all rows of a version to one Parquet file, ordered by `preference_id`; the whole file or none.

    Raises:
        DiskFullError: no space; what was at `path` is as it was.
    """
    import pyarrow.parquet as pq

    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        pq.write_table(dataset.rows(), partial, compression="zstd")
        fsync_path(partial)
        partial.replace(path)
    except OSError as error:
        if disk_full(error):
            raise full_disk_error(path.parent, "free some space and export again") from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def point_newest(layout: Layout, version: str) -> None:
    """Makes a version the one that `load` gives when none is named."""
    write_atomically(layout.datasets / NEWEST, version.encode())


def versions(workspace: Path) -> list[str]:
    """Names of the versions present, whether or not they are sound."""
    folder = Layout(workspace).datasets
    return sorted(path.name for path in folder.glob("*") if path.is_dir() and _VERSION.fullmatch(path.name))


def load(workspace: Path, version: str | None = None, *, contents: bool = True) -> Dataset:
    """Opens a version after checking that it is whole.

    Args:
        workspace: the workspace directory.
        version: 16 hex digits; None for the last one built.
        contents: whether files are read and compared with their checksums. Who reads little of them compares
            their sizes only, and has Parquet verify the pages that are read.

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
    return Dataset(version, path, _checked_manifest(path, version, contents))


def _newest(layout: Layout) -> str:
    try:
        return (layout.datasets / NEWEST).read_text().strip()
    except FileNotFoundError:
        raise DatasetError(f"No dataset was built in {layout.root}.", next_step="palate build") from None


def _checked_manifest(path: Path, version: str, contents: bool) -> dict[str, Any]:
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
            if (path / name).stat().st_size != wanted["bytes"] or (
                contents and _sha256(path / name) != wanted["sha256"]
            ):
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
