"""What was checked before training, as one self-contained HTML page: no script, no network, light and dark."""

from __future__ import annotations

from typing import Any

from pipelines.quality import Validation


def render(found: Validation, *, title: str, simulated: bool = False) -> str:
    """The page; the same outcome gives the same bytes."""
    return str(
        _environment()
        .get_template("validation.html.j2")
        .render(
            found=found,
            title=title,
            simulated=simulated,
            verdict="Good enough to train on" if found.passed else "Stopped before training",
            why=_why(found),
        )
    )


def _why(found: Validation) -> str:
    about = f"Dataset {found.dataset}. " if found.dataset else ""
    if found.arrivals is not None and not found.arrivals.passed:
        reason = next(iter(found.arrivals.reasons))
        return f"{about}Too many arrivals were refused, most of them for {reason}."
    broken = [
        f"{table.table}: {check.name}" for table in found.tables for check in table.checks if not check.passed
    ]
    if broken:
        return f"{about}Expectations that do not hold: {', '.join(broken)}."
    return f"{about}Every expectation holds."


def _environment() -> Any:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    from evaluation.untrusted import visible

    environment = Environment(
        # The styles are the report's, so that both pages look like one program's.
        loader=ChoiceLoader([PackageLoader("palate"), PackageLoader("evaluation")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if isinstance(value, str) else value,
    )
    environment.filters["words"] = lambda name: str(name).replace("_", " ")
    return environment
