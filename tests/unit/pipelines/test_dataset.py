"""A version is named by its content and never loaded when it is not whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedback.tables import PREFERENCES
from pipelines import dataset
from pipelines.errors import DatasetError
from pipelines.groups_store.keys import group_keys
from pipelines.workspace import Layout

IDS = [hashlib.sha256(name.encode()).hexdigest() for name in "cab"]
ROWS = pa.Table.from_pylist(
    [
        {"preference_id": name, "split": split, "margin": margin}
        for name, split, margin in zip(sorted(IDS), ("train", "test", "train"), (1.0, 0.5, 0.0), strict=True)
    ],
    schema=PREFERENCES,
)


def _keys(table: pa.Table) -> np.ndarray:
    return group_keys(table["preference_id"].to_pylist())


def _pieces(folder: Path, *tables: pa.Table) -> list[dataset.Piece]:
    """Files of rows of which all belong to the dataset."""
    folder.mkdir(exist_ok=True)
    made = []
    for number, table in enumerate(tables):
        path = folder / f"{number}.parquet"
        pq.write_table(table, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        made.append(dataset.Piece(path, digest, np.ones(table.num_rows, dtype=bool)))
    return made


def _written(workspace: Path, note: str = "x") -> dataset.Dataset:
    version = dataset.content_version(_keys(ROWS), "config")
    pieces = _pieces(workspace.with_name(workspace.name + "-pieces"), ROWS.slice(2), ROWS.slice(0, 2))
    made = dataset.write(Layout(workspace), version, pieces, {"note": note})
    dataset.point_newest(Layout(workspace), version)
    return made


def test_the_name_depends_on_rows_and_config_and_not_on_order() -> None:
    ids = _keys(ROWS)
    assert dataset.content_version(ids, "c") == dataset.content_version(ids[::-1].copy(), "c")
    assert dataset.content_version(ids, "c") != dataset.content_version(ids, "d")
    assert dataset.content_version(ids, "c") != dataset.content_version(ids[1:], "c")
    alike = np.frombuffer(b"12345678" + b"b" * 24 + b"12345678" + b"a" * 24, "S32")
    assert dataset.content_version(alike, "c") == dataset.content_version(alike[::-1].copy(), "c")


def test_rows_come_back_by_split(tmp_path: Path) -> None:
    _written(tmp_path)
    found = dataset.load(tmp_path)
    assert found.rows().equals(ROWS)
    assert found.rows("train")["preference_id"].to_pylist() == [sorted(IDS)[0], sorted(IDS)[2]]
    assert found.rows("test", ["margin"]).equals(ROWS.slice(1, 1).select(["margin"]))
    assert found.manifest["rows"] == 3 and found.manifest["note"] == "x"


def test_many_rows_stay_in_pieces_and_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "PLAIN_ROWS", 2)
    folder = tmp_path / "pieces"
    pieces = _pieces(folder, pa.concat_tables([ROWS, ROWS.slice(0, 1)]))
    pieces[0].keep[3] = False  # a row that a later build replaced
    version = dataset.content_version(_keys(ROWS), "config")
    made = dataset.write(Layout(tmp_path), version, pieces, {})
    for piece in pieces:
        piece.path.unlink()  # the folder is whole without them
    assert not (made.path / dataset.ROWS).exists()
    assert dataset.load(tmp_path, version).rows().equals(ROWS)
    assert dataset.load(tmp_path, version).rows("test").equals(ROWS.slice(1, 1))
    assert dataset.load(tmp_path, version).rows(columns=["margin"]).equals(ROWS.select(["margin"]))
    dataset.export(made, tmp_path / "all.parquet")
    assert pq.read_table(tmp_path / "all.parquet").equals(ROWS)
    _cut(made.path / "rows-0.parquet")
    with pytest.raises(DatasetError, match="damaged"):
        dataset.load(tmp_path, version)


def test_a_version_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    first = _written(tmp_path)
    stamp = (first.path / dataset.ROWS).stat().st_mtime_ns
    again = _written(tmp_path, note="other")
    assert again.reused and not first.reused
    assert again.manifest["note"] == "x"
    assert (first.path / dataset.ROWS).stat().st_mtime_ns == stamp


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [dataset.ROWS, dataset.MANIFEST])
@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink])
def test_a_damaged_version_is_refused_and_made_again(tmp_path: Path, name: str, damage) -> None:
    made = _written(tmp_path)
    damage(made.path / name)
    with pytest.raises(DatasetError, match="damaged"):
        dataset.load(tmp_path)
    assert _written(tmp_path).rows().equals(ROWS)
    assert dataset.load(tmp_path).version == made.version


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    made = _written(tmp_path)
    made.path.rename(made.path.with_name("0" * 16))
    with pytest.raises(DatasetError, match="damaged"):
        dataset.load(tmp_path, "0" * 16)


@pytest.mark.parametrize("version", ["../datasets", "", "ABCDEF0123456789", "0123456789abcdef0"])
def test_what_is_no_version_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(DatasetError, match="no dataset version"):
        dataset.load(tmp_path, version)


def test_absent_versions_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="palate build"):
        dataset.load(tmp_path)
    made = _written(tmp_path)
    with pytest.raises(DatasetError, match=made.version):
        dataset.load(tmp_path, "0" * 16)
