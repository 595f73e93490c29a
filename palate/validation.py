"""The stop before training: what arrived and what was built is checked, kept as JSON and as a page, and logged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palate.context import Context, now, write_json

if TYPE_CHECKING:
    from pipelines.dataset import Dataset
    from pipelines.quality import Arrivals, Validation

ARTIFACTS = "validation"
"""Folder of the workspace, and of an MLflow run's artifacts, that holds the outcomes."""


def check_arrivals(context: Context) -> Arrivals:
    """Stop when too many of the events that arrived since the last build were refused.

    Raises:
        BadData: says which reason, and shows some rows; exit code 4.
    """
    from pipelines import events_table, quality
    from pipelines.workspace import Layout

    arrived = quality.arrivals(context.project.dir, context.project.ingest.quality)
    if not arrived.passed:
        events_version = events_table.open_table(Layout(context.project.dir)).version()
        found = quality.Validation(now(), None, arrived)
        page = _keep(context, found, f"arrivals-{events_version}")
        _log_stop(context, page)
        quality.refuse_bad(found, page)
    return arrived


def check_dataset(context: Context, dataset: Dataset, arrived: Arrivals | None = None) -> Path:
    """Run the suites of preferences and fates on a dataset, once for each dataset, its fates and thresholds.

    Args:
        context: the project.
        dataset: what is to be trained on.
        arrived: what `check_arrivals` found, to be shown beside the suites.

    Returns:
        The page with the outcome; the JSON document lies beside it.

    Raises:
        BadData: an expectation does not hold; exit code 4.
    """
    from feedback.splits import SplitConfig
    from pipelines import fates, ledger, quality, suites
    from pipelines.workspace import Layout

    layout, config = Layout(context.project.dir), context.project.ingest.quality
    built = fates.built_from(layout)
    name = _name(dataset.version, built.events_version if built else "", config.model_dump_json())
    page = context.project.dir / ARTIFACTS / f"{name}.html"
    if page.is_file() and _passed(page.with_suffix(".json")):
        return page
    with context.out.stage("Check what was built", "tables") as advance:
        split = SplitConfig.model_validate(dataset.manifest["config"]["split"])
        tables = [suites.check_preferences(dataset.rows(), config.preferences, config.examples, split)]
        if built is not None and built.dataset == dataset.version:
            advance(1, 2)
            ends, balance = fates.read(layout), ledger.balance(context.project.dir)
            tables.append(suites.check_fates(ends, balance, config.fates, config.examples))
        found = quality.Validation(now(), dataset.version, arrived, tuple(tables))
        page = _keep(context, found, name)
        checks = [check for table in tables for check in table.checks]
        held = sum(check.passed for check in checks)
        advance(len(tables), len(tables), f"{held} of {len(checks)} expectations hold")
    if not found.passed:
        _log_stop(context, page)
        quality.refuse_bad(found, page)
    return page


def log(context: Context, run_id: str, page: Path) -> None:
    """Keep the outcome with an MLflow run."""
    from rollout.connection import retrying

    for file in (page, page.with_suffix(".json")):
        retrying(lambda file=file: context.registry.client.log_artifact(run_id, str(file), ARTIFACTS))  # type: ignore[misc]


def _name(version: str, events_version: str, thresholds: str) -> str:
    """Names an outcome by all it depends on."""
    about = hashlib.sha256(f"{events_version}\0{thresholds}".encode()).hexdigest()[:8]
    return f"{version}-{about}"


def _passed(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_text(encoding="utf-8"))["passed"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _keep(context: Context, found: Validation, name: str) -> Path:
    """Write the JSON document and, last, the page."""
    from palate.validation_page import render
    from pipelines.workspace import write_atomically

    folder = context.project.dir / ARTIFACTS
    document: dict[str, Any] = found.document()
    document["thresholds"] = json.loads(context.project.ingest.quality.model_dump_json())
    write_json(folder / f"{name}.json", document)
    page = folder / f"{name}.html"
    html = render(found, title=context.project.name, simulated=context.project.simulated)
    write_atomically(page, html.encode())
    return page


def _log_stop(context: Context, page: Path) -> None:
    """A stop has an MLflow run of its own, found again by the page's name."""
    from palate import tracking

    key = f"validation-{page.stem}"
    run_id = tracking.open_run(
        context.registry, key, f"{context.project.name}-stopped", {"palate.stopped": "validation"}
    )
    log(context, run_id, page)
    tracking.close_run(context.registry, run_id, "FAILED")
