"""Build: the events table becomes a dataset of preferences and one fate for each event.

A build looks at one snapshot of the events table. Feedback is joined to its interaction here and not while
events stream in, so late, early and out-of-order events need no care: they are there at the next build.

The cost follows what is new. What the last build made of the events lies in groups (`groups_store`); a build
reads the files added since, loads the groups that they touch, decides about these again by the same functions
that decide about everything, and writes them as one more segment. With another configuration or other code,
or when what was remembered is damaged, everything is decided again; the dataset is the same either way.

Killed at any instant, nothing is half there: dataset and segment are renamed into place, then the state that
names them is replaced, then `newest` is pointed at the dataset; running again completes what is missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from pydantic import BaseModel, ConfigDict, Field

from feedback.errors import PalateError
from feedback.preferences import PreferConfig

from . import dataset, events_table, provenance
from .dataset import Dataset, load
from .errors import DatasetError, PipelineError, disk_full, full_disk_error, last_line
from .workspace import Layout, locked, staging_folder

if TYPE_CHECKING:
    from .groups_store.store import State
    from .runner import RunnerConfig

__all__ = ["BuildConfig", "Dataset", "build", "load"]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

_STEPS = 4


class BuildConfig(BaseModel):
    """How preferences are read from events, and how the work is divided."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prefer: PreferConfig = PreferConfig()
    """Which rules apply, with which weights and splits. Part of the dataset's name."""
    shards: int = Field(default=64, ge=1)
    """Largest number of parts a large build is divided into. Has no influence on the result."""
    rows_per_shard: int = Field(default=20_000, ge=1)
    """Fewer parts are made when there are fewer rows than this for each."""
    in_memory_rows: int = Field(default=50_000, ge=0)
    """Up to so many rows are worked on in this process without a pipeline, which takes seconds to start."""

    def digest(self) -> str:
        """SHA-256 of what decides the content."""
        content = orjson.dumps(self.prefer.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(content).hexdigest()


def build(
    *,
    workspace: Path,
    config: BuildConfig | None = None,
    progress: Progress | None = None,
    runner: RunnerConfig | None = None,
) -> Dataset:
    """Makes the dataset of all events ingested so far, or gives the one that is already there.

    Args:
        workspace: the workspace directory, in which something was ingested.
        config: see `BuildConfig`.
        progress: called after every step.
        runner: which Beam runner works a large build.

    Returns:
        The dataset; `reused` says that this version existed before.

    Raises:
        PipelineError: nothing was ever ingested, or the events that went in and the fates that came out do
            not balance; nothing was changed.
        DiskFullError: no space; the last dataset and its fates are as they were.
    """
    config = config or BuildConfig()
    layout = Layout(Path(workspace).resolve())
    if not events_table.exists(layout):
        raise PipelineError(f"Nothing was ingested into {layout.root}.", next_step="palate ingest <path>")
    tell = progress or (lambda *_: None)
    try:
        with locked(layout.staging / ".build"):  # two builds at once would only do the same work twice
            return _build(layout, config, tell, runner)
    except PalateError:
        raise
    except Exception as error:
        if disk_full(error):
            raise full_disk_error(layout.root, "free some space and run `palate build` again") from error
        raise PipelineError(
            "Build stopped; the last dataset and its fates are as they were.",
            got=last_line(error),
            next_step="mend the cause and run `palate build` again",
        ) from error


def _build(layout: Layout, config: BuildConfig, tell: Progress, runner: RunnerConfig | None) -> Dataset:
    """One build, under the lock."""
    from . import build_result, build_work
    from .groups_store import store as groups

    tell("build", 0, _STEPS)
    table = events_table.open_table(layout)
    code = provenance.code_version(config.prefer.rules)
    wanted = (config.digest(), code["sources_sha256"])
    last = build_work.remembered(layout, wanted, table)
    if last and not last.new:
        if last.sound() and (unchanged := _unchanged(layout, last.state, table.version())):
            tell("build", _STEPS, _STEPS)
            return unchanged
        last = None  # one of both is damaged, and they share files: trust neither
    files = [file for file in events_table.files(table) if file.kind in events_table.KINDS]
    with staging_folder(layout, "build") as staging:
        made = build_work.made(files, last, staging, config, runner)
        if not made.balances(files):
            raise PipelineError(
                "Events and fates do not balance; nothing was written.",
                got=f"{sum(file.rows for file in files)} events in, {made.events()} fates out",
                next_step="run `palate build` again",
            )
        tell("build", 1, _STEPS)
        about = {
            "config": config.prefer.model_dump(mode="json"),
            "config_sha256": wanted[0],
            "code": code,
            "dependencies": provenance.versions(),
            "events_version": table.version(),
        }
        written = build_result.write(layout, made, wanted[0], about)
        tell("build", 2, _STEPS)
        names = build_work.keep(layout, made)
        groups.write_state(
            layout, groups.State(names, written.version, table.version(), *wanted, made.dead_letters)
        )
    tell("build", 3, _STEPS)
    dataset.point_newest(layout, written.version)
    tell("build", _STEPS, _STEPS)
    return written


def _unchanged(layout: Layout, state: State, events_version: int) -> Dataset | None:
    """The dataset of the last build, to which nothing came since, if it is sound."""
    from .groups_store import store as groups

    try:
        found = load(layout.root, state.dataset)
    except DatasetError:
        return None
    if state.events_version != events_version:  # commits without new events, such as compaction
        groups.write_state(layout, groups.State(**{**vars(state), "events_version": events_version}))
    dataset.point_newest(layout, state.dataset)
    return Dataset(found.version, found.path, found.manifest, reused=True)
