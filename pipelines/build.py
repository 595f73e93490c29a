"""Build: the events table becomes a dataset of preferences and one fate for each event.

A build looks at one snapshot of the events table. Feedback is joined to its interaction here and not while
events stream in, so late, early and out-of-order events need no state: they are simply there at the next
build. Killed at any instant, nothing is half there: the dataset is renamed into place, then the fates are
replaced in one commit, then `newest` is pointed at the dataset; running again completes what is missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from feedback.errors import PalateError
from feedback.preferences import PreferConfig
from feedback.tables import FATES, PREFERENCES

from . import dataset, events_table, fates_table, provenance
from .dataset import Dataset, load
from .errors import DatasetError, PipelineError, disk_full, full_disk_error, last_line
from .events_table import EventFile
from .fates_table import BuiltFrom
from .runner import import_beam, run_pipeline
from .workspace import Layout, locked, staging_folder

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BuildConfig", "Dataset", "build", "load"]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

_STEPS = 4


class BuildConfig(BaseModel):
    """How preferences are read from events, and how the work is divided."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prefer: PreferConfig = PreferConfig()
    """Which rules apply, with which weights and splits. Part of the dataset's name."""
    shards: int = Field(default=8, ge=1)
    """Largest number of parts the work is divided into. Has no influence on the result."""
    rows_per_shard: int = Field(default=20_000, ge=1)
    """Fewer parts are made when there are fewer rows than this for each."""

    def digest(self) -> str:
        """SHA-256 of what decides the content."""
        content = orjson.dumps(self.prefer.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(content).hexdigest()


def build(*, workspace: Path, config: BuildConfig | None = None, progress: Progress | None = None) -> Dataset:
    """Makes the dataset of all events ingested so far, or gives the one that is already there.

    Args:
        workspace: the workspace directory, in which something was ingested.
        config: see `BuildConfig`.
        progress: called after every step.

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
            return _build(layout, config, tell)
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


def _build(layout: Layout, config: BuildConfig, tell: Progress) -> Dataset:
    """One build, under the lock."""
    tell("build", 0, _STEPS)
    table = events_table.open_table(layout)
    code = provenance.code_version()
    wanted = (str(table.version()), config.digest(), code["sources_sha256"])
    if (unchanged := _unchanged(layout, wanted)) is not None:
        tell("build", _STEPS, _STEPS)
        return unchanged
    files = events_table.files(table)
    received = sum(file.rows for file in files)
    with staging_folder(layout, "build") as staging:
        rows, fates = _work(files, received, staging, config)
        tell("build", 1, _STEPS)
        counts = _fate_counts(fates)
        if fates.num_rows != received:
            raise PipelineError(
                "Events and fates do not balance; nothing was written.",
                got=f"{received} events in, {fates.num_rows} fates out",
                next_step="run `palate build` again",
            )
        version = dataset.content_version(rows, config.digest())
        manifest = {
            **_row_counts(rows),
            "balance": {"in": received, "fates": counts["by_fate"]},
            "fates": counts,
            "config": config.prefer.model_dump(mode="json"),
            "config_sha256": config.digest(),
            "code": code,
            "dependencies": provenance.versions(),
            "events_version": table.version(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        made = dataset.write(layout, version, rows, manifest)
        tell("build", 2, _STEPS)
        fates_table.replace(layout, fates, BuiltFrom(version, *wanted))
        tell("build", 3, _STEPS)
    dataset.point_newest(layout, version)
    tell("build", _STEPS, _STEPS)
    return made


def _unchanged(layout: Layout, wanted: tuple[str, str, str]) -> Dataset | None:
    """The dataset of the last build, if that saw the same events, configuration and code and is sound."""
    table = fates_table.open_table(layout)
    built = fates_table.built_from(table) if table else None
    if built is None or (built.events_version, built.config_sha256, built.code_sha256) != wanted:
        return None
    try:
        found = load(layout.root, built.dataset)
    except DatasetError:
        return None
    dataset.point_newest(layout, built.dataset)
    return Dataset(found.version, found.path, found.manifest, reused=True)


def _work(
    files: list[EventFile], received: int, staging: Path, config: BuildConfig
) -> tuple[pa.Table, pa.Table]:
    """Runs the pipeline. Returns preference rows ordered by id, and the fates of all events."""
    if not files:
        return PREFERENCES.empty_table(), FATES.empty_table()
    import_beam()
    from . import build_transforms as steps

    claims = staging / "claims"
    claims.mkdir()
    shards = max(1, min(config.shards, -(-received // config.rows_per_shard)))
    run_pipeline(lambda pipeline: steps.construct(pipeline, files, staging, claims, shards, config.prefer))
    paths = steps.read_claims(claims)
    rows = steps.read_arrow(paths["rows"], PREFERENCES)
    return rows.sort_by("preference_id"), steps.read_arrow(paths["fates"], FATES)


def _row_counts(rows: pa.Table) -> dict[str, Any]:
    """What a manifest tells of the rows."""
    import pyarrow.compute as pc

    times = pc.min_max(rows["event_time"]).as_py()
    first, last = times["min"], times["max"]
    return {
        "by_rule": _counted(rows, ["rule"]),
        "by_split": _counted(rows, ["split"]),
        "by_rule_and_split": _counted(rows, ["rule", "split"]),
        "first_event_time": first.isoformat() if first else None,
        "last_event_time": last.isoformat() if last else None,
    }


def _fate_counts(fates: pa.Table) -> dict[str, Any]:
    """Fates by name, by kind of event, and with their reasons."""
    import pyarrow.compute as pc

    dead = fates.filter(pc.equal(fates["fate"], "dead_letter"))
    return {
        "by_fate": _counted(fates, ["fate"]),
        "by_kind": _counted(fates, ["kind", "fate"]),
        "by_reason": _counted(fates, ["fate", "reason"]),
        "dead_letters": _counted(dead, ["reason"]),
    }


def _counted(table: pa.Table, columns: Sequence[str]) -> dict[str, int]:
    """Number of rows by the values of some columns, which are joined with a slash; nulls are left out."""
    grouped = table.select(columns).group_by(columns).aggregate([([], "count_all")])
    return {
        "/".join(str(row[name]) for name in columns if row[name] is not None): row["count_all"]
        for row in sorted(grouped.to_pylist(), key=lambda row: [str(row[name]) for name in columns])
    }
