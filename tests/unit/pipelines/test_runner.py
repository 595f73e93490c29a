"""The runner's settings, and the ready files for other runners."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import orjson
import pytest

from pipelines.receipts import Receipt, read_receipts
from pipelines.runner import RunnerConfig

READY = sorted((Path(__file__).parents[3] / "conf" / "runners").glob("*.toml"))


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_the_ready_files_are_valid(path: Path) -> None:
    config = RunnerConfig.model_validate(tomllib.loads(path.read_text())["pipeline"])
    assert config.options and all(option.startswith("--") for option in config.options)


def test_there_is_a_ready_file_for_each_runner() -> None:
    assert [path.stem for path in READY] == ["dask", "dataflow", "flink", "spark"]


def test_a_batch_that_was_worked_twice_counts_once(tmp_path: Path) -> None:
    first = Receipt("p", 0, 8, False, 1, {"interaction": 1}, {}, 0, 9, {"interaction": "a"})
    again = dataclasses.replace(first, files={"interaction": "b"})
    other = dataclasses.replace(first, checksum=10)
    for name, receipt in (("1", first), ("2", again)):
        (tmp_path / f"{name}.json").write_bytes(orjson.dumps(dataclasses.asdict(receipt)))
    assert read_receipts(tmp_path) == [first]
    # Two that differ are not the same work: both are kept, and the driver refuses them.
    (tmp_path / "3.json").write_bytes(orjson.dumps(dataclasses.asdict(other)))
    assert read_receipts(tmp_path) == [first, other]
