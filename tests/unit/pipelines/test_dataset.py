"""A version is named by its content and never loaded when it is not whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import dataset
from pipelines.errors import DatasetError
from pipelines.workspace import Layout

ROWS = pa.table(
    {"preference_id": ["a", "b", "c"], "split": ["train", "test", "train"], "margin": [1.0, 0.5, 0.0]}
)


def _written(workspace: Path) -> dataset.Dataset:
    version = dataset.content_version(ROWS, "config")
    made = dataset.write(Layout(workspace), version, ROWS, {"note": "x"})
    dataset.point_newest(Layout(workspace), version)
    return made


def test_the_name_depends_on_rows_and_config_and_not_on_chunks() -> None:
    pieces = pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)])
    assert dataset.content_version(ROWS, "c") == dataset.content_version(pieces, "c")
    assert dataset.content_version(ROWS, "c") != dataset.content_version(ROWS, "d")
    assert dataset.content_version(ROWS, "c") != dataset.content_version(ROWS.slice(1), "c")


def test_rows_come_back_by_split(tmp_path: Path) -> None:
    _written(tmp_path)
    found = dataset.load(tmp_path)
    assert found.rows().equals(ROWS)
    assert found.rows("train")["preference_id"].to_pylist() == ["a", "c"]
    assert found.manifest["rows"] == 3 and found.manifest["note"] == "x"


def test_a_version_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    first = _written(tmp_path)
    stamp = (first.path / dataset.ROWS).stat().st_mtime_ns
    again = dataset.write(Layout(tmp_path), first.version, ROWS, {"note": "other"})
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
