"""The same ingest on other runners: what they leave is what this process leaves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines import events_table
from pipelines.errors import PipelineError
from pipelines.ingest import IngestConfig, ingest
from pipelines.runner import RunnerConfig, run_pipeline
from pipelines.workspace import Layout
from tests.unit.pipelines.made import NOW, history, write

PORTABLE = "apache_beam.runners.portability.portable_runner.PortableRunner"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small files, one with a line that is no event."""
    folder = tmp_path_factory.mktemp("in")
    write(folder / "a.jsonl", history(30))
    second = write(folder / "b.jsonl", history(30, seed=1)[:20])
    second.write_bytes(second.read_bytes() + b"{broken\n")
    return folder


def rows(folder: Path, workspace: Path, runner: RunnerConfig) -> list[tuple[Any, ...]]:
    small = IngestConfig(batch_records=8, commit_records=100)
    summary = ingest(folder, source="palate_jsonl", workspace=workspace, now=NOW, config=small, runner=runner)
    assert (summary.received, summary.dead_letters) == (51, {"not_json": 1})
    table = events_table.open_table(Layout(workspace)).to_pyarrow_table()
    return sorted((row["partition"], row["offset"], row["kind"], row["digest"]) for row in table.to_pylist())


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return rows(folder, tmp_path_factory.mktemp("expected"), RunnerConfig())


@pytest.fixture
def job_server(tmp_path: Path) -> Iterator[str]:
    """Address of Beam's own job server, to which any portable runner's submission looks the same."""
    module = "apache_beam.runners.portability.local_job_service_main"
    port_file = tmp_path / "server" / "port"
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", module, "-p", "0", "--port_file", str(port_file)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(600):  # at most a minute
            if port_file.exists() and (port := port_file.read_text().strip()):
                break
            assert server.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield f"localhost:{port}"
    finally:
        server.kill()
        server.wait()


def test_a_portable_job_server_works_the_ranges(
    job_server: str, folder: Path, expected: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    options = (f"--job_endpoint={job_server}", "--environment_type=LOOPBACK")
    assert rows(folder, tmp_path / "w", RunnerConfig(runner=PORTABLE, options=options)) == expected


def test_dask_works_the_ranges(folder: Path, expected: list[tuple[Any, ...]], tmp_path: Path) -> None:
    from distributed import LocalCluster

    # Its workers are threads of this process, which start at once; the protocol is that of any cluster.
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster:
        runner = RunnerConfig(runner="dask", options=(f"--dask_client_address={cluster.scheduler_address}",))
        assert rows(folder, tmp_path / "w", runner) == expected


def test_dask_refuses_windows() -> None:
    def construct(pipeline: Any) -> None:
        import apache_beam as beam
        from apache_beam.transforms.window import FixedWindows

        pipeline | beam.Create([1]) | beam.WindowInto(FixedWindows(60))

    with pytest.raises(PipelineError, match="ignores windows"):
        run_pipeline(construct, RunnerConfig(runner="dask"))


def test_what_dask_would_lose_is_worked_in_this_process(tmp_path: Path) -> None:
    def construct(pipeline: Any) -> None:
        import apache_beam as beam

        numbers = pipeline | beam.Create([1, 2])
        for name in ("a", "b"):
            numbers | name >> beam.Map(lambda n, name=name: (tmp_path / f"{name}{n}").touch())

    run_pipeline(construct, RunnerConfig(runner="dask"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a1", "a2", "b1", "b2"]


def test_a_runner_that_is_not_there_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"module\.Class"):
        RunnerConfig(runner="flink")
    for name in ("no_such_module.Runner", "apache_beam.NoRunner"):
        with pytest.raises(PipelineError, match="could not be started"):
            run_pipeline(lambda pipeline: None, RunnerConfig(runner=name))
