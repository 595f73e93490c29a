"""Traces from an MLflow tracking server, into files that the source `mlflow_traces` reads.

Feedback arrives after the trace it is about, and a server tells when a trace began, not when somebody judged it.
So every fetch looks again at the traces of the last days (`rescan_s`), writes those that are new or changed
since they were written last, and moves its cursor. A trace that is judged later than that window is missed
unless a longer one is asked for once.

Delivery: at least once. The file appears whole before the cursor moves, so a fetch that was killed writes the
same traces again; their events bear the same ids, and the build keeps one of each.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from feedback.sources.mlflow_traces import Config

from .errors import InputError, PipelineError
from .workspace import fsync_path, write_atomically

MLFLOW = "mlflow_traces"
"""The source that reads what is fetched here."""
CURSOR = "cursor.state"
"""Name of the file that says up to when the folder's traces were fetched; no source reads it."""


_CONNECT_S = 10.0
_PAGE = 100
"""Traces asked for at once."""
_SCHEMES = ("http://", "https://", "sqlite://", "postgresql://", "mysql://", "databricks")


def is_tracking_uri(place: str) -> bool:
    """Whether that names an MLflow tracking server or store."""
    return place.startswith(_SCHEMES)


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
    until_ms, seen = _cursor(folder)
    since_ms = max(0, until_ms - int(config.rescan_s * 1000))
    now_ms = int(now.timestamp() * 1000)
    known: dict[str, str] = {}
    looked_at = written = unfinished = 0
    part = folder / f".{os.getpid()}.part"
    try:
        with part.open("wb") as file:
            for trace in _traces(uri, since_ms, config):
                looked_at += 1
                if trace["info"].get("state") == "IN_PROGRESS":
                    unfinished += 1
                    continue
                line = orjson.dumps(trace)
                name, digest = trace["info"]["trace_id"], hashlib.sha256(line).hexdigest()
                known[name] = digest
                if seen.get(name) != digest:
                    written += 1
                    file.write(line + b"\n")
        if written:
            content = hashlib.sha256(part.read_bytes()).hexdigest()[:12]
            fsync_path(part)
            part.rename(folder / f"traces-{now_ms}-{content}.jsonl")
            fsync_path(folder)
    finally:
        part.unlink(missing_ok=True)
    write_atomically(folder / CURSOR, orjson.dumps({"until_ms": now_ms, "seen": known}))
    return Fetched(folder, looked_at, written, unfinished)


def _cursor(folder: Path) -> tuple[int, dict[str, str]]:
    """Up to when traces were fetched, and the digests of those in the window; all from the start if unknown."""
    try:
        state = orjson.loads((folder / CURSOR).read_bytes())
        return int(state["until_ms"]), dict(state["seen"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, {}


def _traces(uri: str, since_ms: int, config: Config) -> Iterator[dict[str, Any]]:
    _reach(uri)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(tracking_uri=uri)
        experiments = _experiments(client, config)
        token: str | None = None
        while experiments:
            page = client.search_traces(
                locations=experiments,
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
    except MlflowException as error:
        raise _unanswered(uri, str(error).splitlines()[0]) from error


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
    ids = {}
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
