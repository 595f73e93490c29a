"""Traces from an MLflow tracking server, into files that the source `mlflow_traces` reads.

Feedback arrives after the trace it is about, and a server tells when a trace began, not when somebody judged it.
So every fetch looks again at the traces of the last days (`rescan_s`), writes those that are new or changed
since they were written last, and moves its cursor. There is one cursor an experiment, so that an experiment that
is added later is read from its beginning. A trace that is judged later than that window is missed unless a longer
one is asked for once.

An assessment that was written before and is now gone, or says something else, is written once more beside its
trace as one that holds no more (`"valid": false`), so that it is taken back.

Delivery: at least once. The file appears whole before the cursor moves, so a fetch that was killed writes the
same traces again; their events bear the same ids, and the build keeps one of each.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import orjson

from feedback.sources.mlflow_traces import Config, signal_id

from .errors import InputError, PipelineError
from .workspace import fsync_path, write_atomically

MLFLOW = "mlflow_traces"
"""The source that reads what is fetched here."""
CURSOR = "cursor.state"
"""Name of the file that says up to when the folder's traces were fetched; no source reads it."""


_CONNECT_S = 10.0
_PAGE = 100
"""Traces asked for at once."""
_URI = re.compile(
    r"(https?|databricks|databricks-uc|(sqlite|postgresql|mysql|mssql)(\+\w+)?)://.*|databricks|databricks-uc",
    re.IGNORECASE | re.DOTALL,
)


def is_tracking_uri(place: str) -> bool:
    """Whether that names an MLflow tracking server or store; what is a file or a folder here never does.

    >>> is_tracking_uri("databricks://profile"), is_tracking_uri("databricks_traces.jsonl")
    (True, False)
    """
    return _URI.fullmatch(place) is not None and not os.path.exists(place)  # noqa: PTH110 - never raises


@dataclass
class _Cursor:
    """Up to when an experiment's traces were fetched, and what was written of those in the window.

    Attributes:
        seen: By trace, the digest of what was written and its assessments as they were.
    """

    until_ms: int = 0
    seen: dict[str, tuple[str, list[dict[str, Any]]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fetched:
    """What one fetch did.

    Attributes:
        folder: Where the traces lie, for `ingest(folder, source="mlflow_traces")`.
        looked_at: Traces in the window.
        written: Those that were new or changed.
        unfinished: Those still running, which are left for the next time.
    """

    folder: Path
    looked_at: int
    written: int
    unfinished: int


def folder_for(uri: str, workspace: Path) -> Path:
    """Where the traces of this server are kept in a workspace."""
    return workspace / "landing" / f"mlflow-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"


def fetch(uri: str, workspace: Path, *, now: datetime, config: Config | None = None) -> Fetched:
    """Writes the traces that are new or changed into the workspace's folder for this server.

    Args:
        uri: Tracking URI: `http(s)://…`, `sqlite:///…` or any other that MLflow's client takes. Credentials
            come from MLflow's own environment variables.
        workspace: The workspace directory.
        now: The clock, aware; the cursor moves to it.
        config: Its `experiments` and `rescan_s`.

    Raises:
        InputError: There is no such experiment.
        PipelineError: The server does not answer.
    """
    config = config or Config()
    folder = folder_for(uri, workspace)
    folder.mkdir(parents=True, exist_ok=True)
    cursors = _cursors(folder)
    now_ms = int(now.timestamp() * 1000)
    counts = _Counts()
    part = folder / f".{os.getpid()}.part"
    try:
        with part.open("wb") as file, _answering(uri):
            client = _client(uri)
            for experiment in _experiments(client, config):
                before = cursors.get(experiment, _Cursor())
                since_ms = max(0, before.until_ms - int(config.rescan_s * 1000))
                after = _Cursor(now_ms)
                for trace in _traces(client, experiment, since_ms):
                    _take(trace, before, after, file, counts)
                cursors[experiment] = after
        if counts.written:
            content = hashlib.sha256(part.read_bytes()).hexdigest()[:12]
            fsync_path(part)
            part.rename(folder / f"traces-{now_ms}-{content}.jsonl")
            fsync_path(folder)
    finally:
        part.unlink(missing_ok=True)
    _keep(folder, cursors)
    return Fetched(folder, **vars(counts))


@dataclass
class _Counts:
    looked_at: int = 0
    written: int = 0
    unfinished: int = 0


def _take(trace: dict[str, Any], before: _Cursor, after: _Cursor, file: IO[bytes], counts: _Counts) -> None:
    """Writes a trace that is new or changed, and notes what is known of it from now on."""
    counts.looked_at += 1
    name = trace["info"]["trace_id"]
    known = before.seen.get(name)
    if trace["info"].get("state") == "IN_PROGRESS":
        counts.unfinished += 1
        return
    digest = hashlib.sha256(orjson.dumps(trace)).hexdigest()
    after.seen[name] = (digest, trace["info"].get("assessments") or [])
    if known is None or known[0] != digest:
        counts.written += 1
        file.write(orjson.dumps(_with_withdrawn(trace, known[1] if known else [])) + b"\n")


def _with_withdrawn(trace: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
    """The trace, and with it those assessments of earlier that are gone or say something else now."""
    now = trace["info"].get("assessments") or []
    stands = {signal_id(assessment) for assessment in now}
    gone = [{**one, "valid": False} for one in before if signal_id(one) not in stands]
    return {**trace, "info": {**trace["info"], "assessments": [*now, *gone]}} if gone else trace


def _cursors(folder: Path) -> dict[str, _Cursor]:
    """The cursor of each experiment that was fetched; what cannot be read is fetched anew from the start."""
    try:
        state = orjson.loads((folder / CURSOR).read_bytes())["experiments"]
        return {
            experiment: _Cursor(int(one["until_ms"]), {name: tuple(was) for name, was in one["seen"].items()})
            for experiment, one in state.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _keep(folder: Path, cursors: dict[str, _Cursor]) -> None:
    state = {experiment: vars(cursor) for experiment, cursor in cursors.items()}
    write_atomically(folder / CURSOR, orjson.dumps({"experiments": state}))


def _traces(client: Any, experiment: str, since_ms: int) -> Iterator[dict[str, Any]]:
    token: str | None = None
    while True:
        page = client.search_traces(
            locations=[experiment],
            filter_string=f"trace.timestamp_ms >= {since_ms}",
            order_by=["timestamp_ms ASC"],
            max_results=_PAGE,
            page_token=token,
        )
        for trace in page:
            yield trace.to_dict()
        token = page.token
        if not token:
            return


@contextmanager
def _answering(uri: str) -> Iterator[None]:
    """Says of what MLflow's client raises that the server does not give its traces."""
    _reach(uri)
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise _unanswered(uri, str(error).splitlines()[0]) from error


def _client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _reach(uri: str) -> None:
    """Finds in seconds that nobody listens; MLflow's client would try again for minutes."""
    address = urlsplit(uri)
    if address.scheme not in ("http", "https"):
        return
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        with socket.create_connection((address.hostname or "", port), timeout=_CONNECT_S):
            return
    except (OSError, ValueError) as error:
        raise _unanswered(uri, str(error)) from error


def _unanswered(uri: str, why: str) -> PipelineError:
    address = urlsplit(uri)
    place = address.netloc.rpartition("@")[2]  # never a password
    shown = f"{address.scheme}://{place}" if place else uri
    return PipelineError(
        "The MLflow server does not give its traces.",
        got=f"{shown} ({why})",
        next_step="check the address, the server, and MLFLOW_TRACKING_TOKEN or _USERNAME and _PASSWORD",
    )


def _experiments(client: Any, config: Config) -> list[str]:
    """Ids of the experiments asked for."""
    ids: dict[str, str] = {}
    token = None
    while True:
        page = client.search_experiments(page_token=token)
        ids.update({experiment.name: experiment.experiment_id for experiment in page})
        token = page.token
        if not token:
            break
    if strangers := sorted(set(config.experiments) - set(ids)):
        raise InputError(
            "There is no such experiment on the MLflow server.",
            got=", ".join(strangers),
            allowed=", ".join(sorted(ids)),
        )
    return sorted(ids[name] for name in config.experiments or ids)
