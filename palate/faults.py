"""What is wrong with a setting, in words, with the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from pydantic import BaseModel, ValidationError


def faults(error: ValidationError, project: type[BaseModel]) -> str:
    """Everything that pydantic found, each with its dotted name."""
    known = list(_names(project))
    said = []
    for fault in error.errors():
        name = ".".join(map(str, fault["loc"])) or "file"
        if fault["type"] == "extra_forbidden":
            near = _near(name, known)
            said.append(
                f"{name}: there is no such setting" + (f"; did you mean {' or '.join(near)}?" if near else "")
            )
        else:
            said.append(f"{name}: {fault['msg']} (got {fault['input']!r:.80})")
    return "; ".join(said)


def _near(name: str, known: list[str]) -> list[str]:
    """The right name in a wrong section, else the most similar one."""
    last = name.rpartition(".")[2]
    moved = [other for other in known if other.rpartition(".")[2] == last]
    return moved[:3] or difflib.get_close_matches(name, known, n=1)


def _names(section: type[BaseModel], before: str = "") -> Iterator[str]:
    """Dotted names of all settings of a section."""
    for name, about in section.model_fields.items():
        yield before + name
        if isinstance(about.annotation, type) and issubclass(about.annotation, BaseModel):
            yield from _names(about.annotation, f"{before}{name}.")
